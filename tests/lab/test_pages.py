"""lab/view.py draws what models say, of any task, as whole XML."""

import xml.etree.ElementTree as ET
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from conftest import ROOT

import checkpoint
from data.tokenizer import Tokenizer
from lab import view
from lab.text import Text
from model import Transformer

SVG = "{http://www.w3.org/2000/svg}"
MINI = ROOT / "results/weights/sudoku_mini"


def shown(svg, frame=99):
    """[(line, column, text)] of an SVG in a frame, or in its last one."""
    parts = [*ET.fromstring(svg)]
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        times = group[0].attrib
        frames = float(times["dur"][:-1]) * 2
        _, first, last = (round(float(time) * frames) for time in times["keyTimes"].split(";"))
        parts += group if first <= min(frame, frames - 1) < last else []
    texts = [part for part in parts if part.tag == f"{SVG}text"]
    return [(int(t.get("y")) // 18, round(int(t.get("x")) / 8.43), t.text or "") for t in texts]


def words(svg, frame=99):
    return [text for *_, text in shown(svg, frame)]


def saved(folder, **settings):
    """A run with random weights, sure of nothing, so that rounding decides no order."""
    _, run = checkpoint.load_weights(MINI)
    run["config"] |= {"method": "mdm", "data": str(MINI)} | settings
    problem = checkpoint.module(run["config"]["task"]).load(run["config"]["data"], 1)
    run["args"] = {k: getattr(problem, k) for k in ("vocab_size", "mask_token", "length")}
    run["args"] |= dict(dim=24, layers=2, heads=3, mlp=20, theta=50.0)
    torch.manual_seed(0)
    model = Transformer(**run["args"])
    weights = {k: p + torch.randn_like(p) * 0.3 for k, p in model.state_dict().items()}
    checkpoint.save_weights(weights, run, folder)
    return str(folder)


def drawn(tmp_path, **settings):
    with patch.multiple(view, out=str(tmp_path / "new/a.svg"), **settings):
        view.main()
    return (tmp_path / "new/a.svg").read_text()


def test_two_runs_side_by_side(tmp_path):
    own = saved(tmp_path)
    svg = drawn(tmp_path, out_dir=str([own, own]), reveal=2, tau=1.0)
    left = (np.load(MINI / "test.npy")[0, 0] == 0).sum().item()
    for step in range(left // 2 + 4):
        masked = max(0, left - 2 * step)
        cells = [(column, text) for _, column, text in shown(svg, step) if len(text) == 1]
        assert sum(text == "." for _, text in cells) == 2 * masked
        assert sum(text in "123456" for _, text in cells) == 2 * (36 - masked)
        assert sum(column < 20 for column, _ in cells) == len(cells) / 2
        passes = min(step, -(-left // 2))
        said = f"random masks: {passes} forward pass" + "es" * (passes != 1)
        assert words(svg, step).count(said + ", wrong" * (masked == 0)) == 2


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("chain", [25, 19, 13, 6, 0]),  # rounded quarters
        ("random", [25, 16, 7, 0]),
        ("sampler", [25, 16, 7, 0]),
    ],
)
def test_the_states_as_a_strip(what, expected, tmp_path):
    how = dict(what=what, reveal=9, tau=1.0, still=True)
    said = words(drawn(tmp_path, out_dir=saved(tmp_path), **how))
    assert [int(text.split()[0]) for text in said if "hidden" in text] == expected
    assert said.count(".") == sum(expected)


def test_any_task_and_any_sampler(tmp_path):
    """From left to right in this variant; the end is what `render` prints, wrapped."""
    own = saved(tmp_path, task="lab.products", data="9", variant="lab.ar")
    with patch.object(view, "out_dir", own):
        run = view.filled(own)
        svg = drawn(tmp_path)
        assert [words(svg, step).count(".") for step in range(46)] == [*range(45, -1, -1)]
        said = run.problem.render(run.x[0].numpy(), run.prompt[0].numpy())
        cells = sorted(cell for cell in shown(svg) if len(cell[-1]) == 1)
        assert "".join(c for *_, c in cells) == said.replace(" ", "")
        assert len({line for line, *_ in cells}) == -(-len(said) // view.WIDTH) == 2
        assert "lab.ar: 45 forward passes, wrong" in words(svg)
        for settings, message in (
            ({"what": "chain"}, "lab.ar has chains of its own"),
            ({"what": "chains"}, "expected sampler, chain, random"),
            ({"out_dir": "[]"}, "no whole weights"),
            ({"example": 300}, "example=300: .* holds out 256"),
            ({"out_dir": str([own, str(MINI)])}, "hold out other examples"),
            ({"out": "README.md/a.svg"}, "README.md"),
        ):
            failed = pytest.raises((SystemExit, OSError), match=message)
            with patch.multiple(view, **settings), failed:
                view.main()


def text(prompt, answer):
    """An example of 99 tokens of which each step reveals one more."""
    problem = Text.__new__(Text)
    ranks = ROOT / "results/weights/gsm_mini/tokenizer.tiktoken"
    problem.tokenizer = coder = Tokenizer(ranks.read_bytes())
    problem.end = coder.end
    given, own = coder.encode(prompt), coder.encode(answer)
    x = torch.tensor([given + own + [coder.end] * (99 - len(given + own))])
    at = (torch.arange(99) - len(given) + 1).clamp(min=0)[None]
    return view.Filled("a\x1b", problem, at == 0, x, at, [True])


def test_a_text_has_its_places_from_the_first():
    run = text("say x\n", 'def f():\n    """\n    say x\n    """\n\treturn <x>')
    svg = view.animated([run])
    first, last = shown(svg, 0), shown(svg)
    assert {cell[:2] for cell in first} == {cell[:2] for cell in last}
    rows = {}
    for line, _, word in sorted(last):
        rows[line] = rows.get(line, "") + word
    passes = run.at.max().item()
    assert [*rows.values()] == ["say x", f"a: {passes} forward passes, right", "return<x>"]
    assert min(column for line, column, _ in last if line > 2) == 4  # after a tab
    for step in range(passes):  # in this run from left to right
        masked = ["\N{FULL BLOCK}" in word for *_, word in sorted(shown(svg, step))]
        assert masked == sorted(masked)


@pytest.mark.parametrize("draw", [lambda run: view.animated([run, run]), view.side_by_side])
@pytest.mark.parametrize("answer", ["", "\x1b[2J", "\x00\uffff\x85\r", "<&\n\n]]>"])
def test_what_is_no_text_is_left_out(draw, answer):
    said = "".join(words(draw(text("colour \x1b[31m \x0b\ufffe", answer))))
    assert not {*said} & {*"\x1b\x00\x0b\x85\r\ufffe\uffff"} and "a: " in said
    printed = "\x1b[1;31mb\x1b[0m\x1b[2Jc\ud800\t\x00\uffffd" + answer
    problem = Mock(mask_token=9, render=lambda x, prompt: printed)
    x = torch.zeros(1, 3, dtype=int)
    said = words(draw(view.Filled("", problem, x > 0, x, x, [])))
    assert said[1:7] == ["b", "[", "2", "J", "c", "d"]
