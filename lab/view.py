"""One HTML file that shows, step by step, how runs fill in held-out examples.

    python lab/view.py --out_dir="['out/study/puma_plus_1','out/study/mdm_1']" --out=view.html

For each run, side by side, on the same examples:

    chain      as in training (Algorithm 1), by the run's policy, K and tau: true tokens
    sampler    as in sample.py: the model's own tokens

with the likeliest token of every position at every step, and its confidence. A run may be weights
kept on the way, as out/study/puma_plus_1/at/400. lab/view.html is the page without its
data; the result needs no server and no network.
"""

import base64
import json
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import checkpoint
import loss
import policies
import puma
import sample
from configurator import configure, pick
from lab.tables import label

out_dir = ["results/weights/sudoku_mini"]  # runs of train.py on the same data
out = "view.html"
examples = 3  # the first held-out ones
# -- the sampler
policy = "top_k"  # top_k, margin, entropy, random
reveal = 2  # tokens per step
tau = 1.0  # reveal all with confidence above this, else `reveal`; 1.0 = off


def main():
    _, first = checkpoint.load_model(out_dir[0], "cpu")
    problem = checkpoint.module(first["task"]).load(first["data"], examples)
    x0, prompt = map(torch.as_tensor, problem.test[:examples])
    runs = [about(folder, x0.long(), ~prompt) for folder in out_dir]
    box = getattr(problem, "box", None)
    data = {"runs": runs, "truth": x0.tolist(), "box": box, "words": words(problem)}
    packed = base64.b64encode(zlib.compress(json.dumps(data).encode(), 9)).decode()
    template = Path(__file__).with_suffix(".html").read_text()
    Path(out).write_text(template.replace("DATA", packed))
    print(f"wrote {out}, {Path(out).stat().st_size / 1e6:.2f} MB")


def about(folder, x0, hidden):
    """What the page says of a run, and its panels: [chain, sampler][example]."""
    model, run = checkpoint.load_model(folder, "cpu")
    if checkpoint.of_variant(run["variant"], "generate", None):
        raise SystemExit(f"{run['variant']} has a sampler of its own, which this does not follow")
    updates = checkpoint.load(folder)["iteration"]
    K = puma.value_at(run["k_schedule"], updates)
    by = run["policy"]
    filled = []
    order = policies.POLICIES[pick("policy", policy, policies.POLICIES)]
    how = order, reveal, tau, 0.0, lambda x: filled.append(x.clone())
    sample.generate(model, x0, hidden, *how)
    ways = chain(model, x0, hidden, policies.POLICIES[by], K, run["tau"]), filled
    return {
        "name": label(run["variant"] or run["method"]), "folder": str(folder), "updates": updates,
        "sure": run["tau"] if run["tau"] < 1 else 0.9,
        "ways": [
            f"{by}, K = {K}" + above("and", run["tau"]),
            f"{policy}, {reveal} a step" + above("or", tau),
        ],
        "panels": [panels(model, torch.stack(states)) for states in ways],
    }  # fmt: skip


def above(word, tau):
    return f", {word} all above {tau:g}" if tau < 1 else ""


@torch.no_grad()
def chain(model, x0, hidden, policy, K, tau):
    """The states x (N, L) of teacher-forced chains, from the first to the clean one.

    puma.step at r = 0, the least share of each stage; the last stage reveals all that is left.
    """
    effective = hidden.sum(1)
    stage = torch.zeros_like(effective)
    stages = puma.stage_count(x0.shape[1], K)
    states = [x0.masked_fill(hidden, model.mask_token)]
    while hidden.any():
        log_probs = model.logits(model(states[-1])).log_softmax(-1)
        _, *seen = loss.read(log_probs, x0, policy)
        now = hidden, stage, effective, *seen
        hidden, stage, ended = puma.step(*now, torch.zeros(len(x0)), stages, tau)
        hidden = hidden & ~ended[:, None]
        states.append(x0.masked_fill(hidden, model.mask_token))
    return states


@torch.no_grad()
def panels(model, states):
    """Of states (S, N, L), for each example: the step that reveals each token, 0 = given; tokens;
    for each step its likeliest tokens and their confidence in thousandths, 0 where revealed.
    """
    masked = states == model.mask_token
    guesses = []
    for x, hidden in zip(states[:-1], masked[:-1], strict=True):
        confidence, token = model.logits(model(x)).softmax(-1).max(-1)
        thousandths = (1000 * confidence).ceil().int()  # up: what is above tau stays so
        guesses.append(torch.stack((token, thousandths), 1) * hidden[:, None])  # (N, 2, L)
    at = masked.sum(0)
    return [
        {"at": at[i].tolist(), "tokens": states[-1][i].tolist(),
         "steps": [guess[i].tolist() for guess in guesses[: at[i].max()]]}
        for i in range(len(at))
    ]  # fmt: skip


def words(problem):
    """The text of each token, {id: text}; the end of a text is shown as a sign."""
    if hasattr(problem, "box"):
        return {token: str(token + 1) for token in range(problem.mask_token)}
    if not hasattr(problem, "tokenizer"):  # the numbers of its tokens, which may break a line
        return {token: f"{token}\N{THIN SPACE}" for token in range(problem.vocab_size)}
    pieces = {token: problem.tokenizer.decode([token]) for token in range(problem.end)}
    return pieces | {problem.end: "\N{END OF PROOF}"}


if __name__ == "__main__":
    configure(globals())
    main()
