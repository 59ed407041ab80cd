"""lab/play.py, lab/view.py: the pages' JavaScript against the models; the pages in a browser."""

import json
import re
import shutil
import subprocess
import sys
from unittest.mock import patch

import pytest
import torch
from browser import CHROMIUM, browser
from conftest import ENV, ROOT

import checkpoint
import policies
import sample
from lab import play, view
from model import Transformer

MINI = ROOT / "results/weights/sudoku_mini"
SIX = ".1..2....6....1...2..3.1.2...44.3..."
FILL = """(model, how) => {
  const clues = Uint8Array.from(model.puzzles[0][0]);
  const boards = [{grid: clues, at: new Uint16Array(clues.length), carry: null, steps: 0}];
  while (boards.at(-1).grid.includes(0)) boards.push(advance(model, boards.at(-1), how));
  return boards.map(({grid, at, thought: t}) =>
    ({grid: [...grid], at: [...at], said: t && [...logits(model, t.h)]}));
}"""
MASKED = "[...document.querySelectorAll('.board')].map(b => b.querySelectorAll('.hidden').length)"
EDGE = "document.querySelector('{}').getBoundingClientRect().{}"
ALONE = "document.querySelector('h2 span').textContent"
ORDER = """[...document.querySelector('.grid').children].map(cell => {
  const {content, fontSize} = getComputedStyle(cell, '::after');
  return parseFloat(fontSize) < 10 ? fontSize : content;
})"""  # as shown, if large enough to read


def toy(folder, variant="", data=MINI, n=6, task="sudoku", **options):
    """A run with random weights, sure of nothing, so that rounding decides no order."""
    sizes = dict(vocab_size=n + 1, mask_token=n, length=n * n)
    args = sizes | dict(dim=24, layers=2, heads=3, mlp=20, theta=50.0) | options
    torch.manual_seed(0)
    model = checkpoint.of_variant(variant, "make_model", Transformer)(**args)
    for p in model.parameters():
        p.data += torch.randn_like(p) * 0.3
    config = dict(
        task=task, data=str(data), method="mdm", variant=variant, k_schedule=[(0, 4)], tau=0.5
    )
    saved = {"args": args, "config": config, "averaged": model.state_dict(), "iteration": 5}
    checkpoint.save(saved, folder)
    return folder


@pytest.fixture(params=[("", {}), ("lab.carry", {"loops": 2})])
def run(request, tmp_path):
    """Folder, model, the model as a function of x and of the h before, its sampler."""
    variant, options = request.param
    folder = toy(tmp_path, variant, **options)
    model, _ = checkpoint.load_model(folder, "cpu")
    forward = model if options else lambda x, h: model(x)
    return folder, model, forward, checkpoint.of_variant(variant, "generate", sample.generate)


def problems(count):
    x0, prompt = checkpoint.module("sudoku").load(MINI, count).test[:count]
    return torch.as_tensor(x0).long(), ~torch.as_tensor(prompt)


def ask(file, expression):
    """The value of an expression in `data`, in node, by the page's own script."""
    parts = (part.split("</script>")[0] for part in file.read_text().split("<script ")[1:3])
    data, engine = (part.split(">", 1)[1] for part in parts)
    script = f"{engine}unpacked('{data}').then(data => console.log(JSON.stringify({expression})))"
    return json.loads(subprocess.check_output(["node", "-"], input=script, text=True))


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
@torch.no_grad()
def test_it_says_and_does_what_the_model_does(run, tmp_path):
    folder, model, forward, fill = run
    file = tmp_path / "play.html"
    play.write([play.about(folder)], ROOT / "lab/play.html", file)
    exact = model.lm_head.weight.clone()
    play.rounded(model)
    assert 0 < (model.lm_head.weight - exact).abs().max() < exact.abs().max() / 250
    for policy, tau in ("top_k", 0.5), ("margin", 1.0), ("entropy", 1.0):
        states = []
        show = lambda x, to=states: to.append(x.clone())  # noqa: E731
        fill(model, *problems(1), policies.POLICIES[policy], 2, tau, show=show)
        states = torch.cat(states)  # (steps + 1, L)
        how = json.dumps(dict(policy=policy, count=2, tau=tau))
        boards = ask(file, f"({FILL})(data[0], {how})")
        assert [board["grid"] for board in boards] == ((states + 1) % 7).tolist()
        assert boards[-1]["at"] == (states == 6).sum(0).tolist()
        h = None
        for x, board in zip(states[:-1, None], boards[:-1], strict=True):
            h = forward(x, h)
            assert torch.allclose(torch.tensor(board["said"]), model.lm_head(h).view(-1), atol=1e-3)


def test_a_page_knows_the_tokens_that_it_shows(tmp_path):
    numbered = toy(tmp_path, data="2", n=13, task="lab.products", length=12)  # no text, no grid
    written = []
    for folder in ROOT / "results/weights/gsm_mini", numbered:
        own = dict(out_dir=[str(folder)], out=str(tmp_path / "page.html"), examples=1)
        with patch.multiple(view, **own, write=lambda data, *files: written.append(data)):
            view.main()
        way = written[-1]["runs"][0]["panels"][1][0]  # the sampler
        assert {*written[-1]["truth"][0], *way["tokens"]} <= written[-1]["words"].keys()
    text, numbers = (data["words"] for data in written)
    assert len(text) < 300  # of 1,502
    assert all(int(word) == token for token, word in numbers.items())


@pytest.mark.parametrize("page", [ROOT / "lab/play.html", ROOT / "lab/view.html"])
def test_a_page_loads_nothing(page):
    text = page.read_text()
    links = re.findall(r'href="([^"]+)"', text)
    assert links == re.findall(r"https?://[^\"'\s<]+", text) == ["https://arxiv.org/abs/2602.10314"]
    assert "default-src 'none'" in text and not re.search(r"\bsrc=|@import|url\(|import\(", text)


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


@torch.no_grad()
def test_a_panel_says_what_the_model_says_of_each_state(run):
    folder, model, forward, _ = run
    x0, hidden = problems(2)
    data = view.about(folder, x0, hidden, policies.top_k)
    assert data["ways"] == ["top_k, K = 4, and all above 0.5", "top_k, 2 a step"]
    chains, samplers = data["panels"]
    assert [panel["tokens"] for panel in chains] == x0.tolist()
    for panel, masked in zip(chains + samplers, [*hidden, *hidden], strict=True):
        assert [step > 0 for step in panel["at"]] == masked.tolist()
        assert len(panel["steps"]) == max(panel["at"])
        h = None
        for step, (guess, sure) in enumerate(panel["steps"], 1):
            left = [i for i in range(36) if panel["at"][i] >= step]
            x = [6 if i in left else panel["tokens"][i] for i in range(36)]
            h = forward(torch.tensor([x]), h)
            p = model.logits(h)[0].softmax(-1)
            assert [guess[i] for i in left] == [int(p[i].argmax()) for i in left]
            assert all(sure[i] - 1.01 <= 1000 * p[i].max() <= sure[i] + 0.01 for i in left)


@pytest.fixture
def chromium():
    CHROMIUM or pytest.skip("needs Chromium")
    with browser() as page:
        yield page
        assert not page.problems


def opened(chromium, name, folders, cells):
    """The page that the command makes, open; it is as wide as the screen."""
    file = folders[-1] / f"{name}.html"
    command = [sys.executable, f"lab/{name}.py", f"--out_dir={[*map(str, folders)]}"]
    subprocess.run([*command, f"--out={file}"], cwd=ROOT, env=ENV, check=True)
    for width in 1400, 400:
        chromium.open(file, width, 667)
        chromium.wait(f"document.querySelectorAll('.cell').length === {cells}")
        assert chromium.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.slow
def test_a_puzzle_is_typed_in(chromium, puzzles, tmp_path):
    opened(chromium, "play", [MINI, MINI, toy(tmp_path, "mdm", puzzles, 4)], 72)
    assert chromium.evaluate(f"{EDGE.format('main', 'bottom')} < {EDGE.format('form', 'top')}")
    buttons = EDGE.format("#actions", "top")  # they stay in sight, and cover nothing of a grid
    assert chromium.evaluate(f"{EDGE.format('.grid', 'bottom')} <= {buttons}")
    chromium.evaluate("document.getElementById('clear').click()")
    for symbol in SIX:
        chromium.press(symbol, symbol)
        chromium.press("ArrowRight")  # from the end of a row to the next one
    verdict = "document.querySelector('.verdict').textContent"
    said = []
    for key in " ", "ArrowUp", "2", "Delete", *12 * " ":
        said.append(chromium.evaluate(verdict))
        chromium.press(key, key.strip("ArowUpDelt"))
    assert said[1] == "1 step; 23 cells empty" and said[4] == "1 step; 24 cells empty"
    assert said[3].startswith("Breaks a rule: row 5 has more than one 2")
    for box, alone in ("2x2", "the only weights for 4x4 here"), ("2x3", ""):  # and back
        chromium.evaluate(f"size.value = '{box}', size.onchange()")
        assert chromium.evaluate(ALONE) == alone
    # What was typed outlives a look at another size
    assert chromium.evaluate(verdict) == "Solved in 13 steps"
    order = chromium.evaluate(ORDER)
    assert [at == "none" for at in order] == [c != "." for c in SIX[:29] + "." + SIX[30:]]
    assert {*order} == {"none", *(f'"{step}"' for step in range(1, 14))}  # 26 cells, 2 a step


@pytest.mark.slow
def test_it_plays_and_slides(chromium, tmp_path):
    folders = [MINI, toy(tmp_path)]
    opened(chromium, "view", folders, 144)
    example = int(chromium.evaluate("example.value"))  # an element's id is its name
    runs = [view.about(folder, *problems(3), policies.top_k) for folder in folders]
    panels = [panel[example] for run in runs for panel in run["panels"]]
    chromium.evaluate("step.value = 0, step.oninput()")
    for step in 1, 2:
        chromium.press("ArrowRight")
        left = [sum(at > step for at in panel["at"]) for panel in panels]
        assert chromium.evaluate(MASKED) == left
    chromium.press(" ", " ")  # plays to the end
    chromium.wait(f"step.value === '{max(max(panel['at']) for panel in panels)}'")
