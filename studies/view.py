"""One HTML file that shows how runs unmask held-out examples.

    python -m studies.view --out_dir=out/sudoku_mini_puma_1
    python -m studies.view --out_dir="['out/puma','out/mdm']" --out=view.html

For each run, and each of the averaged weights that it kept (`--keep_every=N`), side by side:

    chain      teacher-forced (puma.step), by the run's policy, K, tau: the true token is revealed
    sampler    as in the run's evaluation (eval_policies, _reveal, _tau): the model's own token

view.html is the page without its data; the result needs no server and no network. Its size grows
with runs * weights * examples * steps * tokens: about 2 bytes for each position that is still
hidden.
"""

import base64
import itertools
import json
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
from studies.labels import METHODS

out_dir: str | list = "out/sudoku_mini_puma_1"  # a run, or a list of runs on the same data
examples = 3  # 1..100: how many of the first held-out examples
weights = 11  # 2..: most weights per run: evenly spaced, with the first and the last
out = ""  # the HTML file; "" = view.html in the folder of the (first) run
device = ""  # cpu, cuda, mps; "" = the best there is


def main():
    folders = [*map(str, out_dir)] if isinstance(out_dir, list | tuple) else [out_dir]
    with errors_as_messages():
        where = processes.start(device).device
        loaded = [kept(folder) for folder in folders]
        task = loaded[0][2]
        x0, prompt = held_out(folders, [task for _, _, task in loaded])
        x0, hidden = x0.long().to(where), ~prompt.to(where)
        runs = []
        for folder, (files, config, _) in zip(folders, loaded, strict=True):
            bar = progress_bar(some(files), folder, unit="weights")
            runs.append(about(folder, config, [measure(file, x0, hidden, where) for file in bar]))
        data = {"runs": runs, "examples": [layout(task, row) for row in x0.cpu().numpy()]}
        data |= {"truth": x0.tolist(), "words": words(task, runs)}
        data |= {"box": getattr(task, "box", None)}
        text = page(data)
        file = Path(out or Path(folders[0], "view.html"))
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
def page(data):
    template = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    packed = zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 9)
    return template.replace("DATA", base64.b64encode(packed).decode())


if __name__ == "__main__":
    configure(globals())
    main()
