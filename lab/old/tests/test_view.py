"""The page and the picture: their data against slow loops, and the page in a real browser."""

import base64
import itertools
import json
import re
import time
import xml.etree.ElementTree as ElementTree
import zlib
from operator import ne
from types import SimpleNamespace

import pytest
import torch
from browser import CHROMIUM, browser
from conftest import HOUSE, ROOT, run_script, train
from toys import MASK, Arrays, L, Table, make_model, make_problems

import policies
import tasks
from engine.log import read_metrics
from runs.saved import open_run
from runs.watch import probabilities
from sample import Sampler, generate
from studies.view import chain, held_out, panel
from studies.view import page as page_of
from sudoku import load


@pytest.fixture(scope="module")
def runs(trained, tmp_path_factory):
    """A run with kept weights beside one without."""
    kept = tmp_path_factory.mktemp("view") / "kept"
    train(kept, "--keep_every=10", "--method=mdm")
    return [str(kept), str(trained)]


def view(runs, *flags):
    return run_script("studies/view.py", f"--out_dir={runs}", "--device=cpu", *flags)


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "view.html"
    assert re.fullmatch(r"wrote .*view.html, 0.0\d MB\n", view(runs, f"--out={file}"))
    return file


def data_of(page):
    packed = re.search(r'type="text/plain">(.*?)</script>', page.read_text())[1]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def test_chain_reveals_in_the_order_of_the_policy():
    hidden = torch.ones(2, 8, dtype=torch.bool)
    hidden[1, :6] = False
    x0 = torch.zeros(2, 8, dtype=torch.long)
    table = Table(torch.arange(8.0)[:, None] * 0.5 * torch.eye(5)[0])  # the surer the later
    found = chain(table, x0, hidden, policies.top_k, 2, None)
    assert found.tolist() == [[4, 4, 3, 3, 2, 2, 1, 1], [0, 0, 0, 0, 0, 0, 2, 1]]  # 4 stages
    sure = torch.tensor(2.5).exp() / (torch.tensor(2.5).exp() + 3)  # of place 5
    found = chain(table, x0, hidden, policies.top_k, 2, sure.item() - 1e-4)
    # Three at once; one to reach stage 2's share; two; and what is left at the last stage.
    assert found[0].tolist() == [4, 4, 3, 3, 2, 1, 1, 1]
    assert found[1].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    sure = torch.tensor(2.0).exp() / (torch.tensor(2.0).exp() + 3)  # half at once: it skips a stage
    found = chain(table, x0, hidden, policies.top_k, 2, sure.item() - 1e-4)
    assert found[0].tolist() == [3, 3, 2, 2, 1, 1, 1, 1]


def test_chain_hands_states_on():
    """At each step the surest are revealed, by the probabilities of --watch, which carry states."""
    model, (x, hidden) = make_model(carry=True), make_problems()
    model.model.carry_norm.weight.data.fill_(1)
    x0 = torch.where(hidden, torch.arange(L) % MASK, x)
    at = chain(model, x0, hidden, policies.top_k, 2, None)
    for row, steps in zip(x0, at, strict=True):
        for step, p in enumerate(itertools.chain(*probabilities(model, row, steps)), 1):
            sure = p.amax(-1)
            now, later = sure[steps == step], sure[steps > step]
            assert not len(later) or now.min() >= later.max()


@torch.no_grad()
def test_a_panel_says_what_the_model_says_of_each_state():
    model, (x, hidden) = make_model(), make_problems()
    tokens, at, _ = generate(model, x, hidden, Sampler("random", 2))
    for row, steps in zip(tokens, at, strict=True):
        found = panel(model, row, steps)
        assert found["tokens"] == row.tolist() and found["at"] == steps.tolist()
        assert len(found["steps"]) == steps.max()
        for step, (guess, sure) in enumerate(found["steps"], 1):
            left = [i for i in range(L) if steps[i] >= step]
            state = [MASK if i in left else int(row[i]) for i in range(L)]
            said = model.logits(model(torch.tensor([state])))[0].softmax(-1)
            assert guess == [int(said[i].argmax()) for i in left]
            assert all(s - 1 <= 1000 * said[i].max() <= s for i, s in zip(left, sure, strict=True))


def test_the_page_holds_chain_and_sampler_of_every_weight(page, runs):
    data = data_of(page)
    assert 'href="https://arxiv.org/' in page.read_text()  # it lies outside the repository
    inside = page_of(data, ROOT / "studies/view.html", HOUSE / "results/view.html")
    assert 'href="../README.md"' in inside
    assert [run["name"] for run in data["runs"]] == ["random masks", "PUMA"]
    assert [run["iterations"] for run in data["runs"]] == [[0, 10, 20], [20]]
    assert data["box"] == [2, 2] and data["examples"] == [[*range(16)]] * 3
    assert data["words"] == {str(digit): str(digit + 1) for digit in range(4)}
    for run, folder in zip(data["runs"], runs, strict=True):
        saved = open_run(f"{folder}/checkpoint.pt")
        task = load(saved.config)
        x, hidden = tasks.problems_on("cpu", task.test, [0, 1, 2])
        tokens, at, _ = generate(saved.model, x, hidden, Sampler())
        chain, sampler = run["panels"][-1]
        assert [p["tokens"] for p in sampler] == tokens.tolist()
        assert [p["at"] for p in sampler] == at.tolist()
        assert [p["tokens"] for p in chain] == data["truth"]
        assert all(
            (p["at"][i] == 0) != hidden[n, i] for n, p in enumerate(chain) for i in range(16)
        )


def test_no_run_that_has_no_chain_and_no_runs_on_other_data(runs, tmp_path, refused):
    alike = SimpleNamespace(validation=Arrays([[1, 2]] * 4, [True, False]))
    other = SimpleNamespace(validation=Arrays([[1, 3]] * 4, [True, False]))
    assert next(held_out("ab", [alike, alike])).tolist() == [[1, 2]] * 3
    with pytest.raises(ValueError, match="b has different held-out examples from a"):
        held_out("ab", [alike, other])
    train(tmp_path / "ar", "--method=ar", "--max_iters=1")
    assert "has no such chain" in refused(view, [str(tmp_path / "ar")])
    svg = f"--svg={tmp_path}/no.svg"
    assert "no weights of the same iteration" in refused(view, runs, svg)
    assert not (tmp_path / "no.svg").exists()
    asked = "--out_dir=weights/gsm_mini", f"--out={tmp_path}/no.html"
    assert "expected runs on Sudoku" in refused(run_script, "studies/play.py", *asked)


def test_the_picture_moves_without_scripts(runs, page, tmp_path):
    file = tmp_path / "filling.svg"
    view([runs[0], runs[0]], f"--svg={file}", "--examples=2")
    text = file.read_text()
    assert len(text) < 1 << 20 and "script" not in text and "http://www.w3.org/2000/svg" in text
    tree = ElementTree.fromstring(text)
    groups = [g for g in tree.findall(".//{*}g") if "class" in g.attrib]
    shown = [(g.attrib["class"], g[0].text) for g in groups]
    panels = data_of(page)["runs"][0]["panels"][-1][1][:2] * 2
    pairs = [zip(p["at"], p["tokens"], strict=True) for p in panels]
    assert shown == [(f"a{at}", f"{token + 1}") for row in pairs for at, token in row if at]
    *_, last = read_metrics(f"{runs[0]}/metrics.jsonl")
    title = f"random masks, 20 updates, solves {last['accuracy']['top_k']:.1%} of"
    assert [t.text.startswith(title) for t in tree.findall("{*}text[@class='l h']")] == [True] * 2
    truths = data_of(page)["truth"][:2] * 2
    wrong = [sum(map(ne, p["tokens"], row)) for p, row in zip(panels, truths, strict=True)]
    results = [f"{n} wrong in" if n else "solved in" for n in wrong]
    assert re.findall(r"(\d+ wrong in|solved in)", text) == results and any(wrong)
    for at in {at for p in panels for at in p["at"]} - {0}:
        assert f"@keyframes a{at}{{" in text and f"@keyframes n{at}{{" in text


# -- in a browser ----------------------------------------------------------------------------------
HIDDEN = """[...document.querySelectorAll('.board')].map(
    board => board.querySelectorAll('.hidden').length)"""


@pytest.fixture(scope="module")
def chromium():
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with browser() as page:
        yield page


def hidden_after(page, step, time=-1):
    """Of each panel in the order of the page, the positions that are hidden after a step."""
    panels = [way[0] for run in data_of(page)["runs"] for way in run["panels"][time]]
    return [sum(at > step for at in p["at"]) for p in panels]


def set_to(chromium, slider, value):
    script = f"{slider}.value = {value}; {slider}.dispatchEvent(new Event('input'))"
    chromium.evaluate(f"document.getElementById('{slider}'), {script}")


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1400])
def test_it_plays_and_slides(width, chromium, page):
    chromium.open(page, width)
    chromium.wait("document.querySelectorAll('.cell').length === 64")
    assert chromium.evaluate("document.documentElement.scrollWidth") == width
    assert chromium.evaluate("play.textContent") == "Pause"  # it opens playing
    chromium.evaluate("example.value = 0, example.dispatchEvent(new Event('change'))")
    set_to(chromium, "time", 2)
    set_to(chromium, "step", 0)
    assert chromium.evaluate(HIDDEN) == hidden_after(page, 0)
    last = int(chromium.evaluate("step.max"))
    for key, at in ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1):
        chromium.press(key)
        assert chromium.evaluate(HIDDEN) == hidden_after(page, at)
    set_to(chromium, "step", last)
    assert chromium.evaluate(HIDDEN) == [0] * 4
    chromium.press(" ", " ")  # plays from the start
    assert chromium.evaluate("play.textContent") == "Pause"
    assert chromium.evaluate(HIDDEN) == hidden_after(page, 0)
    chromium.wait("Number(step.value) === 2")
    chromium.press(" ", " ")
    paused = chromium.evaluate("step.value")
    time.sleep(0.7)
    assert chromium.evaluate("[play.textContent, step.value]") == ["Play", paused]
    assert not chromium.problems


@pytest.mark.slow
def test_text_without_a_prompt_is_not_wrong(chromium, tmp_path):
    """Both tokens are other than in the data: in the chain, and where there is a prompt, wrong."""
    steps = [[[2, 2], [500, 500]], [[2], [500]]]
    free = {"at": [1, 2], "steps": steps}
    asked = {"at": [0, 1], "steps": [[[2], [500]]]}
    chain = [free | {"tokens": [0, 1]}, asked | {"tokens": [0, 1]}]
    sampler = [free | {"tokens": [2, 2]}, asked | {"tokens": [0, 2]}]
    run = {"name": "PUMA", "folder": "out", "sure": 0.9, "iterations": [5], "ways": ["", ""]}
    data = {"runs": [run | {"panels": [[chain, sampler]]}], "examples": [[0, 1], [0, 1]]}
    data |= {"truth": [[0, 1], [0, 1]], "words": dict(enumerate("abc")), "box": None}
    file = tmp_path / "text.html"
    file.write_text(page_of(data, ROOT / "studies/view.html", file))
    chromium.open(file, 1400)
    chromium.wait("document.querySelectorAll('.cell').length === 4")
    heads = "[...document.querySelectorAll('.board + p')].map(p => p.textContent.split(': ')[1])"
    marked = """[...document.querySelectorAll('.board')].map(
        board => board.querySelectorAll('.wrong').length)"""
    set_to(chromium, "step", 2)
    assert chromium.evaluate(heads) == ["0 masked, 2 wrong", "0 masked"]
    assert chromium.evaluate(marked) == [2, 0]
    chromium.evaluate("example.value = 1, example.dispatchEvent(new Event('change'))")
    assert chromium.evaluate(heads) == ["0 masked, 1 wrong"] * 2
    assert chromium.evaluate(marked) == [1, 1] and not chromium.problems


@pytest.mark.slow
def test_it_opens_where_the_samplers_differ_most(chromium, tmp_path):
    """After 6 updates, in the second example: one run has put a wrong token, the other none."""
    right, wrong = ({"at": [0, 1], "tokens": [0, b], "steps": [[[b], [500]]]} for b in (1, 2))
    run = {"folder": "out", "sure": 0.9, "iterations": [5, 6, 7], "ways": ["", ""]}
    one, other = [[[right] * 2, [right, last]] for last in (right, wrong)]
    runs = [{"name": "PUMA", "panels": [other, one, one]} | run]
    runs += [{"name": "random masks", "panels": [other, other, one]} | run]
    data = {"runs": runs, "examples": [[0, 1], [0, 1]], "truth": [[0, 1], [0, 1]], "box": None}
    file = tmp_path / "open.html"
    data |= {"words": dict(enumerate("abc"))}
    file.write_text(page_of(data, ROOT / "studies/view.html", file))
    chromium.open(file, 1400)
    chromium.wait("document.querySelectorAll('.cell').length === 8")
    assert chromium.evaluate("[document.getElementById('time').value, example.value]") == ["1", "1"]
    assert "and random masks fill in unseen text" in chromium.evaluate("title.textContent")
    said = "Opened at 6 updates, where the samplers differ most. Wrong tokens in the 2 examples: "
    assert chromium.evaluate("opened.textContent") == said + "PUMA 0, random masks 1."
    assert not chromium.problems
