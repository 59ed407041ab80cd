"""The page to play with: its forward pass and its sampler against ours, and a puzzle typed in."""

import json
import shutil
import subprocess

import pytest
import torch
from browser import CHROMIUM, browser
from conftest import ROOT, run_script
from toys import perturbed

import tasks
from model import Transformer
from runs.saved import Saved, open_run
from sample import Sampler, generate
from studies import play
from studies.view import page
from sudoku import Puzzles, parse

NINE = "..9748...7.........2.1.9.....7...24..64.1.59..98...3.....8.3.2.........6...2759.."
PAGE = ROOT / "studies/play.html"
SIX = ".1..2....6....1...2..3.1.2...44.3..."
FILL = """((model, text, sampler) => {
  const clues = {grid: Uint8Array.from(text), at: new Uint16Array(text.length)};
  const boards = [{...clues, carry: null, steps: 0}];
  while (boards.length < 5 && boards.at(-1).grid.includes(0))
    boards.push(advance(model, boards.at(-1), sampler));
  return boards.map(({grid, at, thought}) =>
    ({grid: [...grid], at: [...at], said: thought && [...logits(model, thought.h)]}));
})"""


def ask(file, expression):
    """The value of an expression in `data`, computed in node by the page's own script."""
    parts = (part.split("</script>")[0] for part in file.read_text().split("<script ")[1:3])
    data, engine = (part.split(">", 1)[1] for part in parts)
    script = f"{engine}unpacked('{data}').then(data => console.log(JSON.stringify({expression})))"
    return json.loads(subprocess.check_output(["node", "-"], input=script, text=True))


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
@torch.no_grad()
def test_it_says_and_does_what_the_model_does(tmp_path):
    torch.manual_seed(0)
    args = dict(vocab_size=7, mask_token=6, length=36, dim=24, layers=2, heads=3, mlp=20, loops=2)
    toy = Saved(perturbed(Transformer(**args), 0.3), {"method": "mdm"}, 5, 0, args)
    for saved, text, box in (toy, SIX, (2, 3)), (open_run("weights/sudoku_nine"), NINE, (3, 3)):
        test, exact = Puzzles(parse(text, box)[None], box), saved.model.lm_head.weight.clone()
        (file := tmp_path / "play.html").write_text(page([play.about(saved, test)], PAGE, file))
        assert 0 < (saved.model.lm_head.weight - exact).abs().max() < exact.abs().max() / 250
        for policy, tau in ("top_k", None), ("margin", 0.5), ("entropy", None):
            sampler = f"{{policy: '{policy}', count: 2, tau: {tau or 1}}}"
            *boards, last = ask(file, f"{FILL}(data[0], '{text}', {sampler})")
            h, mask = None, saved.model.mask_token
            for board in boards:
                grid = torch.tensor([board["grid"]])
                h = saved.model((grid - 1) % (mask + 1), carry=h if saved.model.carries else None)
                error = saved.model.lm_head(h).flatten() - torch.tensor(board["said"])
                assert error.abs().max() < 1e-3
            if saved is toy:  # sure of nothing, so that rounding decides no order
                x, hidden = tasks.problems_on("cpu", test, [0])
                tokens, at, _ = generate(saved.model, x, hidden, Sampler(policy, 2, tau))
                assert last["at"] == (at * (at <= 4)).flatten().tolist()
                assert last["grid"] == ((tokens + 1) * (at <= 4)).flatten().tolist()


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="needs Chromium")
def test_a_puzzle_is_typed_in(tmp_path):
    file = tmp_path / "play.html"
    folders = ["weights/sudoku_mini", "weights/sudoku_mini", "weights/sudoku_nine"]
    run_script("studies/play.py", f"--out_dir={folders}", f"--out={file}")
    said, verdict = [], "document.querySelector('.verdict').textContent"
    with browser() as chromium:
        for width in 1400, 400:
            chromium.open(file, width)
            chromium.wait("document.querySelectorAll('.cell').length === 72")
            assert chromium.evaluate("document.documentElement.scrollWidth") == width
        chromium.evaluate("document.getElementById('clear').click()")
        for symbol in SIX:
            chromium.press(symbol, symbol)
            chromium.press("ArrowRight")  # from the end of a row to the next one
        for key in " ", "ArrowUp", "2", "Delete", *12 * " ":
            said.append(chromium.evaluate(verdict))
            chromium.press(key, key.strip("ArowUpDelt"))
        chromium.wait(f"{verdict} === 'Solved in 13 steps'")
        size = "document.getElementById('size')"
        for box, cells in ("3x3", 81), ("2x3", 72):  # a puzzle outlives a look at another size
            chromium.evaluate(f"{size}.value = '{box}', {size}.onchange()")
            assert chromium.evaluate("document.querySelectorAll('.cell').length") == cells
        assert chromium.evaluate(verdict) == "Solved in 13 steps"
        assert said[:2] == ["0 steps; 25 cells empty", "1 step; 23 cells empty"]
        assert said[3].startswith("Breaks a rule: row 5 has more than one 2")
        assert said[4] == "1 step; 24 cells empty" and not chromium.problems
