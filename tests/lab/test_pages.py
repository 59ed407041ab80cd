"""lab/view.py draws what models say, of any task, as whole XML."""

import json
import xml.etree.ElementTree as ET
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from conftest import ROOT

import checkpoint
import policies
from data import tokenizer
from lab import view
from lab.text import Text
from model import Transformer

SVG = "{http://www.w3.org/2000/svg}"
MINI = ROOT / "results/weights/sudoku_mini"


def shown(svg, frame):
    """[(column, line, text)] of an SVG in a frame, or in its last; text None: a masked token."""
    root = ET.fromstring(svg)
    parts = []
    for group in root.iter(f"{SVG}g"):
        times = group.find(f"{SVG}animate").attrib
        frames = float(times["dur"][:-1]) * 2
        _, first, last = (round(float(time) * frames) for time in times["keyTimes"].split(";"))
        parts += group if first <= min(frame, frames - 1) < last else []
    parts += root
    parts = [part for part in parts if part.get("x")]
    return [(round(int(p.get("x")) / 8.43), int(p.get("y")) // 18, p.text) for p in parts]


def words(svg, frame):
    return [text for _, _, text in shown(svg, frame)]


def saved(folder, **settings):
    """A run with random weights, sure of nothing, so that rounding decides no order."""
    run = checkpoint.load(MINI)
    run["config"] |= {"method": "mdm", "variant": "", "data": str(MINI)} | settings
    problem = checkpoint.module(run["config"]["task"]).load(run["config"]["data"], 1)
    run["args"] |= {k: getattr(problem, k) for k in ("vocab_size", "mask_token", "length")}
    run["args"] |= dict(dim=24, layers=2, heads=3, mlp=20, theta=50.0)
    torch.manual_seed(0)
    model = Transformer(**run["args"])
    for p in model.parameters():
        p.data += torch.randn_like(p) * 0.3
    run["averaged"] = model.state_dict()
    checkpoint.save(run, folder)
    return str(folder)


def drawn(tmp_path, **settings):
    with patch.multiple(view, out=str(tmp_path / "new/a.svg"), **settings):
        view.main()
    return (tmp_path / "new/a.svg").read_text()


def test_two_runs_side_by_side(tmp_path):
    own = saved(tmp_path / "run")
    svg = drawn(tmp_path, out_dir=str([own, own]), reveal=2, tau=1.0)
    left = (np.load(MINI / "test.npy")[0, 0] == 0).sum().item()
    for step in range(left // 2 + 4):
        masked = max(0, left - 2 * step)
        found = [(x, text) for x, _, text in shown(svg, step) if len(text) == 1]
        assert sum(text == "." for _, text in found) == 2 * masked
        assert sum(text in "123456" for _, text in found) == 2 * (36 - masked)
        assert sum(x < 20 for x, _ in found) == len(found) / 2
        passes = min(step, -(-left // 2))
        said = f"random masks: {passes} forward pass" + "es" * (passes != 1)
        assert words(svg, step).count(said + ", wrong" * (masked == 0)) == 2
    assert not any(each in svg for each in ("<script", "href", "url(", "@import"))


@pytest.mark.parametrize(("what", "states"), [("chain", 4), ("random", 4), ("sampler", 14)])
def test_the_states_as_a_strip(what, states, tmp_path):
    how = dict(reveal=2, tau=1.0) if what == "sampler" else dict(reveal=9, tau=0.9)
    said = words(drawn(tmp_path, what=what, still=True, out_dir=str(MINI), **how), 0)
    hidden = [int(text.split()[0]) for text in said if "hidden" in text]
    assert said.count(".") == sum(hidden) and hidden[-1] == 0
    assert hidden == sorted(hidden, reverse=True) and len(hidden) == states


def test_any_task_is_drawn_as_it_is_printed(tmp_path):
    own = saved(tmp_path, task="lab.products", data="20")
    svg = drawn(tmp_path, out_dir=own, tau=0.0)
    with patch.multiple(view, tau=0.0):
        run = view.filled(own)
    text = run.problem.render(run.x[0].numpy(), run.prompt[0].numpy())
    cells = [(y, x, c) for x, y, c in shown(svg, 1) if len(c) == 1]  # all in one forward pass
    assert "".join(c for *_, c in sorted(cells)) == text.replace(" ", "")
    assert len({y for y, *_ in cells}) == -(-len(text) // view.WIDTH)
    assert "random masks: 1 forward pass, wrong" in words(svg, 1)


def test_a_sampler_of_a_variant_is_followed(tmp_path):
    own = saved(tmp_path, variant="lab.ar")
    left = (np.load(MINI / "test.npy")[2, 0] == 0).sum()
    svg = drawn(tmp_path, out_dir=own, example=3)
    other = saved(tmp_path / "b", task="lab.products", data="3")
    assert [words(svg, step).count(".") for step in range(left + 1)] == [*range(left, -1, -1)]
    assert f"lab.ar: {left} forward passes, wrong" in words(svg, left)
    for settings, message in (
        ({"what": "chain"}, "lab.ar has chains of its own"),
        ({"what": "chains"}, "expected sampler, chain, random"),
        ({"example": 300}, "example=300: .* holds out 100"),
        ({"out_dir": str([own, other])}, "hold out other examples"),
        ({"out": "README.md/a.svg"}, "a.svg is not written"),
    ):
        how = patch.multiple(view, **{"out_dir": own} | settings)
        with how, pytest.raises(SystemExit, match=message):
            view.main()


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
        assert view.chain(Table(), x0, x0 == 0, policies.top_k, 2, tau).tolist() == [at]


# -- texts -----------------------------------------------------------------------------------------
@pytest.fixture
def text(tmp_path):
    """filled(prompt, answer): an example of which each step reveals one token more."""
    ranks = (ROOT / "results/weights/gsm_mini/tokenizer.tiktoken").read_bytes()
    coder = tokenizer.Tokenizer(ranks)
    header = dict(length=99, vocab_size=1502, places=tokenizer.PLAIN, end=1500, mask=1501)
    (tmp_path / "header.json").write_text(json.dumps(header))
    (tmp_path / "tokenizer.tiktoken").write_bytes(ranks)
    for name in "tokens", "starts", "prompts":
        np.save(tmp_path / f"val.{name}.npy", np.zeros(1, int))

    def filled(prompt, answer):
        given, own = coder.encode(prompt), coder.encode(answer)
        x = torch.tensor([given + own + [1500] * (99 - len(given + own))])
        at = (torch.arange(99) - len(given) + 1).clamp(min=0)[None]
        return view.Filled("a\x1b", Text(tmp_path), at == 0, x, at, [True])

    return filled


def test_a_text_has_its_places_from_the_first(text):
    run = text("say x\n", 'def f():\n    """\n    say x\n    """\n\treturn <x>')
    svg = view.animated([run])
    first, last = shown(svg, 0), shown(svg, 99)
    assert {cell[:2] for cell in first} == {cell[:2] for cell in last}
    rows = {}
    for y, _, text in sorted((y, x, text) for x, y, text in last):
        rows[y] = rows.get(y, "") + text
    passes = run.at.max().item()
    assert [*rows.values()] == ["say x", f"a: {passes} forward passes, right", "return<x>"]
    assert min(x for x, y, text in last if "r" in text and y > 2) == 4  # after a tab
    for step in range(passes):
        masked = [text is None for _, y, text in sorted(shown(svg, step), key=lambda c: c[1::-1])]
        assert masked == sorted(masked)  # in this run from left to right


@pytest.mark.parametrize("draw", [lambda run: view.animated([run, run]), view.side_by_side])
@pytest.mark.parametrize("answer", ["", "\x1b[2J", "\x00\uffff\x85\r", "<&\n\n]]>"])
def test_what_no_terminal_should_see_is_left_out(text, draw, answer):
    svg = draw(text("colour \x1b[31m \x0b\ufffe", answer))
    said = "".join(text for text in words(svg, 99) if text)
    assert not {*said} & {*"\x1b\x00\x0b\x85\r\ufffe\uffff"} and "a: " in said


def test_a_task_that_prints_escapes(tmp_path):
    problem = Mock(mask_token=9, render=lambda x, prompt: "\x1b[1;31mb\x1b[0m\x1b[2Jc\ud800\t\x00d")
    x = torch.zeros(1, 3, dtype=int)
    svg = view.animated([view.Filled("", problem, x > 0, x, x, [])])
    assert words(svg, 0)[1:] == ["b", "[", "2", "J", "c", "d"]
