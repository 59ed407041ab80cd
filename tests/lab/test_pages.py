"""lab/view.py and lab/twins.py show what the models say."""

import functools
import re
import xml.etree.ElementTree as ET
from unittest.mock import Mock, patch

import pytest
import torch
from conftest import ROOT

import checkpoint
import policies
from lab import twins, view
from model import Transformer

SVG = "{http://www.w3.org/2000/svg}"
MINI = ROOT / "results/weights/sudoku_mini"


def toy(folder):
    """A run with random weights, sure of nothing, so that rounding decides no order."""
    saved = checkpoint.load(MINI)
    saved["args"] |= dict(dim=24, layers=2, heads=3, mlp=20, theta=50.0)
    torch.manual_seed(0)
    model = Transformer(**saved["args"])
    for p in model.parameters():
        p.data += torch.randn_like(p) * 0.3
    saved["averaged"] = model.state_dict()
    saved["config"] |= dict(method="mdm", variant="")
    checkpoint.save(saved, folder)
    return folder


def seen(svg, frame):
    """The text that is visible in a frame of an animation, and how many tokens are masked."""
    root = ET.fromstring(svg)
    words = []
    masks = 0
    for group in root.iter(f"{SVG}g"):
        first, last = map(int, group.attrib["class"][1:].split("-"))
        if first <= frame < last:
            words += [text.text for text in group.iter(f"{SVG}text")]
            masks += len([*group.iter(f"{SVG}rect")])
    return words, masks


@torch.no_grad()
def test_an_animation_shows_each_state(tmp_path):
    how = functools.partial(view.sampled, how=(policies.top_k, 2, 1.0))
    run = view.filled(toy(tmp_path), 2, how)
    given, x, at = (part[0].tolist() for part in (run.prompt, run.x, run.at))
    assert [step > 0 for step in at] == [not each for each in given]
    svg = view.animated([run, run])
    last = max(at)
    assert all(at.count(step) == 2 for step in range(1, last))
    for step in 0, 3, last, last + 1:
        words, masks = seen(svg, step)
        digits = [word for word in words if len(word) == 1]
        shown = [str(x[i] + 1) for i in range(36) if at[i] <= step]
        assert sorted(digits) == sorted(2 * shown) and masks == 2 * (36 - len(shown))
        passes = f"{min(step, last)} forward pass{'es' * (step != 1)}"
        assert words.count(f"random masks: {passes}" + ", wrong" * (step >= last)) == 2
    until = last + view.HOLD
    assert seen(svg, until)[0] != seen(svg, until - 1)[0]  # the second example
    assert not re.search(r"<script|href|url\(|@import", svg)


@pytest.mark.parametrize(("what", "kinds"), [("chain", 4), ("random", 4), ("sampler", 14)])
def test_the_states_side_by_side(what, kinds, tmp_path):
    page = tmp_path / "a.svg"
    with patch.multiple(view, what=what, still=True, out=str(page)):
        view.main()
    root = ET.fromstring(page.read_text())
    hidden = [int(t.text.split()[0]) for t in root.iter(f"{SVG}text") if "hidden" in t.text]
    assert len([*root.iter(f"{SVG}rect")]) == sum(hidden) and hidden[-1] == 0
    assert hidden == sorted(hidden, reverse=True) and len(hidden) == kinds


def test_twins_race_over_the_same_problems(tmp_path, capsys):
    weights = str(ROOT / "results/weights/gsm_mini")
    with patch.multiple(twins, out_dir=[weights] * 2, problems=2):
        twins.main()
    said = capsys.readouterr().out
    assert "    return result" in said and said.count("✓") == 4
    assert said.count("PUMA+: 2 of 2 right") == 2
    with patch.multiple(twins, out_dir=[weights], svg=str(tmp_path / "a.svg")):
        twins.main()
    assert "wrote" in capsys.readouterr().out
    assert "return" in seen((tmp_path / "a.svg").read_text(), 5)[0]


class Table:
    """A model whose logits are a table whatever it sees: the surer the later in the row."""

    mask_token = 4
    model = None
    table = torch.arange(8.0)[:, None] * 0.5 * torch.eye(5)[0]  # (L, V)

    def __call__(self, x):
        return x

    def logits(self, h):
        return self.table.expand(len(h), -1, -1)


def test_a_chain_reveals_the_surest_first():
    """In 4 stages of 2; or, above tau, 3 at once, one for stage 2's share, 2, and the rest."""
    x0 = torch.zeros(1, 8, dtype=torch.long)
    fifth = Table.table.softmax(-1)[5, 0].item()
    for tau, at in (1.0, [4, 4, 3, 3, 2, 2, 1, 1]), (fifth - 1e-4, [4, 4, 3, 3, 2, 1, 1, 1]):
        states = view.chain(Table(), x0, x0 == 0, policies.top_k, 2, tau)
        assert (torch.cat(states) == 4).sum(0).tolist() == at


def test_no_escape_of_a_text_is_drawn():
    words = ["a", "\t", " \x1b[2J", "b"]
    problem = Mock(end=9, box=None, **{"tokenizer.decode": lambda ids: words[ids[0]]})
    x = torch.arange(4)[None]
    found = view.pieces(view.Filled("", problem, x > 9, x, 1 + x, []), 0)
    assert found == [(0, 0, "a", 1), (0, 3, "?[2J", 3), (0, 7, "b", 4)]
