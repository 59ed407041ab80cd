"""One HTML file that shows how runs unmask held-out examples, or an animated picture.

    python -m studies.view --out_dir=out/sudoku_mini_puma_1
    python -m studies.view --out_dir="['out/puma','out/mdm']" --out=view.html
    python -m studies.view --out_dir="['out/puma','out/mdm']" --svg=filling.svg

For each run, and each of the averaged weights that it kept (`--keep_every=N`), side by side:

    chain      teacher-forced (puma.step), by the run's policy, K, tau: the true token is revealed
    sampler    as in the run's evaluation (eval_policies, _reveal, _tau): the model's own token

view.html is the page without its data; the result needs no server and no network. Its size grows
with runs * weights * examples * steps * tokens: about 2 bytes for each position that is still
hidden. The picture shows the samplers of the last weights that all runs kept, on Sudoku: an SVG
with CSS animations (view.svg is its frame) and no scripts, which moves as an image in a README.
"""

import base64
import html
import itertools
import json
import os
import zlib
from pathlib import Path

import numpy as np
import torch

import losses
import policies
import puma
from configurator import configure, errors_as_messages
from engine import processes
from engine.files import progress_bar, write
from runs.saved import kept_weights, load_task, open_run
from runs.watch import SURE, probabilities
from sample import Sampler, generate
from studies.comparison import load_run
from studies.labels import METHODS

out_dir: str | list = "out/sudoku_mini_puma_1"  # a run, or a list of runs on the same data
examples = 3  # 1..100: how many of the first held-out examples
weights = 11  # 2..: most weights per run: evenly spaced, with the first and the last
out = ""  # the HTML file; "" = view.html in the folder of the (first) run
svg = ""  # write an animated picture to this file instead of the page
device = ""  # cpu, cuda, mps; "" = the best there is
README = Path(__file__).resolve().parents[3] / "README.md"
PAPER = "https://arxiv.org/abs/2602.10314"
CELL, GAP, SECONDS, REST = 26, 30, 0.6, 5  # pixels, pixels, per step, steps at the end


def main():
    folders = [*map(str, out_dir)] if isinstance(out_dir, list | tuple) else [out_dir]
    with errors_as_messages():
        where = processes.start(device).device
        loaded = [kept(folder) for folder in folders]
        task = loaded[0][2]
        if svg and not hasattr(task, "box"):
            raise ValueError("svg: the picture shows grids, expected a run on Sudoku")
        x0, prompt = held_out(folders, [task for _, _, task in loaded])
        x0, hidden = x0.long().to(where), ~prompt.to(where)
        runs = []
        for folder, (files, config, _) in zip(folders, loaded, strict=True):
            files = same_updates(files, loaded) if svg else some(files)
            bar = progress_bar(files, folder, unit="weights")
            runs.append(about(folder, config, [measure(file, x0, hidden, where) for file in bar]))
        data = {"runs": runs, "examples": [layout(task, row) for row in x0.cpu().numpy()]}
        data |= {"truth": x0.tolist(), "words": words(task, runs)}
        data |= {"box": getattr(task, "box", None)}
        file = Path(svg or out or Path(folders[0], "view.html"))
        text = picture(data) if svg else page(data, Path(__file__).with_suffix(".html"), file)
        write(file, text)
    alone = max(len(files) for files, *_ in loaded) == 1
    hint = "; a run with --keep_every=N also has weights on the way" * alone
    print(f"wrote {file}, {len(text.encode()) / 1e6:.2f} MB{hint}")


# -- what runs do ----------------------------------------------------------------------------------
def kept(folder):
    """The files of a run's weights, in order, or its checkpoint; its configuration; its task.

    Raises ValueError for a causal model or blocks.
    """
    files = kept_weights(folder)
    saved = open_run(files[-1])
    if saved.block or saved.model.causal:
        raise ValueError(f"{folder} is causal or in blocks: it has no such chain")
    return files, saved.config, load_task(saved.config)


def some(files):
    """`weights` of them, evenly spaced."""
    chosen = np.linspace(0, len(files) - 1, min(weights, len(files))).round().astype(int)
    return [files[i] for i in chosen]


def same_updates(files, loaded):
    """This run's file of the last iteration that all runs kept. Raises ValueError for none."""
    common = set.intersection(*({file.name for file in files} for files, _, _ in loaded))
    if not common:
        raise ValueError("svg: the runs have no weights of the same iteration: see --keep_every")
    return [file for file in files if file.name == max(common)]


def held_out(folders, loaded):
    """x0 and prompt (n, L) of the first held-out examples. Raises ValueError if runs differ."""
    rows = np.arange(min(examples, *(len(task.validation) for task in loaded)))
    found = [task.validation[rows] for task in loaded]
    for folder, other in zip(folders, found, strict=True):
        if not all(map(np.array_equal, other, found[0])):
            raise ValueError(f"{folder} has different held-out examples from {folders[0]}")
    return map(torch.as_tensor, found[0])


def measure(file, x0, hidden, where):
    """For one file of weights: its iteration; for chain and sampler, a panel per example."""
    saved = open_run(file, where)
    config = saved.config
    torch.manual_seed(0)  # for the random policy
    K = puma.value_at(config["k_schedule"], saved.iteration)
    at = chain(saved.model, x0, hidden, policies.get(config["policy"]), K, config["tau"])
    tokens, revealed_at, _ = generate(saved.model, x0, hidden, sampler_of(config))
    ways = zip(x0, at, strict=True), zip(tokens, revealed_at, strict=True)
    return saved.iteration, [[panel(saved.model, *row) for row in rows] for rows in ways]


@torch.no_grad()
def chain(model, x0, hidden, policy, K, tau):
    """The step at which a teacher-forced chain reveals each cell, from 1, 0 = given; (N, L).

    puma.step at r = 0, the least share of each stage; cells hidden when a chain ends come last.
    """
    tau, effective = policies.check_tau(tau), hidden.sum(1)
    stages = puma.stages_of(x0.shape[1], K)
    revealed_at = torch.zeros_like(x0)
    stage = torch.zeros_like(effective)
    r, carry = torch.zeros(len(x0), device=x0.device), None
    for number in range(1, stages + 1):
        revealed_at[hidden] = number  # what stays hidden gets the next number in the next step
        x = x0.masked_fill(hidden, model.mask_token)
        h = losses.hidden_states(model, x, x0, 0, carry)
        _, score, confidence = losses.score_all(model, x, x0, policy, h)
        carry = h if getattr(model, "carries", 0) else None
        hidden, stage, ended = puma.step(
            hidden, stage, effective, score, confidence, r, stages, tau
        )
        hidden &= ~ended[:, None]
    return revealed_at


def sampler_of(config):
    return Sampler(config["eval_policies"][0], config["eval_reveal"], config["eval_tau"])


def panel(model, tokens, at):
    """tokens and the step of each (L,); for each step, where positions are hidden before it, the
    model's likeliest token and its confidence in thousandths, rounded up so that tau stays exact.
    """
    steps = []
    for part in probabilities(model, tokens, at):
        for confidence, token in zip(*part.max(-1), strict=True):
            left = at > len(steps)
            sure = (1000 * confidence[left]).ceil().int()
            steps.append([token[left].tolist(), sure.tolist()])
    return {"at": at.tolist(), "tokens": tokens.tolist(), "steps": steps}


def about(folder, config, shown):
    """What the page says about a run, and its panels: [weights][chain, sampler][example]."""
    K, tau = config["k_schedule"][-1][1], config["tau"]
    above = "" if tau is None else f", and all above {tau:g}"
    iterations, panels = zip(*shown, strict=True)
    return {
        "name": METHODS.get(config["method"], config["method"]), "folder": folder,
        "sure": SURE if tau is None else tau, "iterations": iterations, "panels": panels,
        "ways": [f"{config['policy']}, K = {K}{above}", str(sampler_of(config))],
    }  # fmt: skip


def layout(task, row):
    """The positions of a row (L,) in the order shown, with the text between them."""
    pieces = [] if hasattr(task, "box") else task.test.pieces(row)
    order = [text if at is None else at for at, text in pieces]
    return order + sorted({*range(len(row))} - {*order})  # a grid; what follows a text's end


def words(task, runs):
    """The text of each token that occurs, {id: text}; an end of text is shown as a sign."""
    panels = [p for run in runs for ways in run["panels"] for way in ways for p in way]
    said = [ids for p in panels for ids in (p["tokens"], *(guess for guess, _ in p["steps"]))]
    length = task.length if hasattr(task, "box") else 1  # a grid is shown as a whole
    rows = {token: np.full(length, token) for token in {*itertools.chain(*said)}}
    return {token: dict(task.test.pieces(row)).get(0, "\u220e") for token, row in rows.items()}


# -- the page --------------------------------------------------------------------------------------
def page(data, template, file):
    """A page without its data, with it, for the file; it links to README if that is in a clone."""
    inside = README.parent in file.resolve().parents
    link = os.path.relpath(README, file.parent) if inside else PAPER
    packed = base64.b64encode(zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9))
    text = template.read_text(encoding="utf-8").replace("PROJECT", link)
    return text.replace("DATA", packed.decode())


# -- the picture -----------------------------------------------------------------------------------
def picture(data):
    """An animated SVG of the samplers: a row for each run, every digit appears at its step."""
    n = data["box"][0] * data["box"][1]
    columns = len(data["examples"])
    last = max(max(p["at"]) for run in data["runs"] for p in run["panels"][-1][1])
    parts, y = [], 44
    for run in data["runs"]:
        iteration = run["iterations"][-1]
        title = f"{run['name']}, {iteration:,} updates{solved(run['folder'], iteration)}"
        parts.append(f'<text class="l h" x="{GAP}" y="{y - 14}">{html.escape(title)}</text>')
        for i, (found, truth) in enumerate(zip(run["panels"][-1][1], data["truth"], strict=True)):
            place = f"translate({GAP + i * (n * CELL + GAP)} {y})"
            parts += [f'<g transform="{place}">', *puzzle(found, truth, run["sure"], data), "</g>"]
        y += n * CELL + 76
    values = {"WIDTH": max(GAP + columns * (n * CELL + GAP), 480), "HEIGHT": y - 12}
    values |= {"LEGEND": y - 26, "SURE": f"{run['sure']:g}"}
    values |= {"FRAMES": "".join(keyframes(last)), "CONTENT": "".join(parts)}
    text = Path(__file__).with_suffix(".svg").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(name, str(value))
    return text


def solved(folder, iteration):
    """What the run's own evaluation at the iteration says, in words; "" if there is none."""
    if not Path(folder, "metrics.jsonl").exists():
        return ""
    run = load_run(folder)
    share, puzzles = run.curves[run.metric].get(iteration), run.config["test_examples"]
    return "" if share is None else f", solves {share:.1%} of {puzzles} held-out puzzles"


def keyframes(last):
    """Of each step: what appears and stays (a); what is shown only during the step (n)."""
    frames = last + 1 + REST
    for step in range(1, last + 1):
        begin, end = (100 * at / frames for at in (step, step + 1))
        yield f"@keyframes a{step}{{0%{{opacity:0}}{begin:.2f}%,100%{{opacity:1}}}}"
        yield f"@keyframes n{step}{{0%,{end:.2f}%{{opacity:0}}{begin:.2f}%{{opacity:1}}}}"
        for kind in "an":
            how = f"{kind}{step} {frames * SECONDS:.1f}s step-end infinite"
            yield f".{kind}{step}{{animation:{how}}}"


def puzzle(panel, truth, sure, data):
    """The elements of one grid, at its own origin."""
    (rows, columns), wrong = data["box"], 0
    n = rows * columns
    for cell, (at, token) in enumerate(zip(panel["at"], panel["tokens"], strict=True)):
        x, y = cell % n * CELL, cell // n * CELL
        digit = f'x="{x + CELL / 2}" y="{y + 18}">{data["words"][token]}</text>'
        box = f'x="{x + 2}" y="{y + 2}" width="{CELL - 4}" height="{CELL - 4}"'
        if not at:
            yield f'<rect class="g" {box}/><text class="b" {digit}'
            continue
        place = sum(step >= at for step in panel["at"][:cell])  # among the cells hidden then
        kind = "s" * (panel["steps"][at - 1][1][place] > 1000 * sure)
        if token != truth[cell]:
            kind, wrong = "w", wrong + 1
        mark = {"s": "\N{BULLET}", "w": "\N{MULTIPLICATION SIGN}"}.get(kind, "")
        yield f'<rect class="m" {box}/><rect class="n n{at}" {box}/>'
        yield f'<g class="a{at}"><text class="{kind}" {digit}'
        yield f'<text class="k {kind}" x="{x + CELL - 6}" y="{y + 10}">{mark}</text></g>'
    lines = [f"M0 {i * CELL}h{n * CELL}" for i in range(0, n + 1, rows)]
    lines += [f"M{i * CELL} 0v{n * CELL}" for i in range(0, n + 1, columns)]
    yield f'<path class="x" d="{"".join(lines)}"/>'
    result = f"{wrong} wrong" if wrong else "solved"
    last = max(panel["at"])
    yield f'<text class="l a{last}" x="0" y="{n * CELL + 20}">{result} in {last} steps</text>'


if __name__ == "__main__":
    configure(globals())
    main()
