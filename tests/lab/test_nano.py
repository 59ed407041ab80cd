"""lab/nano.py: its chain is puma.step's, its sums are right. The snippets of docs/lesson.md."""

import contextlib
import io
import re

import pytest
import torch
from conftest import ROOT

import puma
from lab import nano


def test_its_chain_is_that_of_puma():
    torch.manual_seed(0)
    for _ in range(200):
        hidden = nano.random_masks(torch.randint(1, nano.ANSWER + 1, (32,)))
        stage = torch.randint(nano.STAGES, (32,))
        sure = torch.rand(32, nano.L) ** 0.2  # some are above tau
        r = torch.rand(32)
        now = hidden, stage, torch.full((32,), nano.ANSWER), sure, sure, r
        expected = puma.step(*now, nano.STAGES, nano.TAU)
        assert all(map(torch.equal, nano.step(hidden, stage, sure, r), expected))


@pytest.mark.parametrize("method", ["random masks", "PUMA"])
def test_it_learns(method, monkeypatch):
    row = nano.draw(1)[0].tolist()
    digits, pairs = row[: nano.DIGITS], row[nano.DIGITS :]
    totals = [10 * a + b for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
    assert totals == [sum(digits[: i + 1]) for i in range(nano.DIGITS)]
    monkeypatch.setattr(nano, "UPDATES", 120)
    net = nano.train(method)
    x0 = nano.draw(100)
    x, passes = nano.fill(net, x0)
    assert (x[:, : nano.DIGITS] == x0[:, : nano.DIGITS]).all() and 1 <= passes.min() <= nano.ANSWER
    assert (x == x0).float().mean() > 0.5  # of all tokens; a third is given


def test_the_lesson_prints_what_it_says():
    text = (ROOT / "docs/lesson.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```\n```\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == text.count("```python") == 2
    names = {}
    for code, expected in snippets:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(code, names)
        assert said.getvalue() == expected
    now = torch.ones(1, 6).bool(), torch.tensor([0]), torch.tensor([6])
    seen = [names["confidence"]] * 2
    hidden, stage, _ = puma.step(*now, *seen, torch.tensor([0.0]), stages=3, tau=0.25)
    assert (hidden.sum().item(), stage.item()) == (1, 2)  # the first exercise
