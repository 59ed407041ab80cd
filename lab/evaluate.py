"""What share of its held-out problems a run solves, by each of several samplers.

    python lab/evaluate.py --out_dir=out/sudoku_tiny --samplers="[(1,1.0),(4,1.0),(1,0.9,'margin')]"
    python lab/evaluate.py --out_dir=out/sudoku_tiny --samplers="[(1,1.0,'',0.5)]" --samples=10

A sampler is (tokens a step, tau, policy, temperature) of the paper's table 1; without the last two
it has the policy of the run, and takes the likeliest token. Its line has the tokens revealed per
forward pass, the same without padding, the forward passes of a problem, and the share solved, or
pass@k (arXiv 2107.03374, eq. 1), with its 95 % interval (Wilson) over problems: several samples of
one problem do not narrow it. All is computed in float32.

Without --examples, eval.json in the folder of the run has a record of each sampler: means over
problems of `solved`; `right`, the share of the answer's tokens, its end included, that are right;
`tokens` revealed; `content`, those of them up to the first end that the sampler wrote (all, where
rows have no end); `steps`, the forward passes. It stands for a run whose weights are gone.
"""

import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from tqdm import tqdm

import checkpoint
import policies
import sample
from configurator import configure, pick
from data import files
from lab.tables import aup, points, words
from text import after_end

out_dir = "results/weights/sudoku_mini"  # a run of train.py; its averaged weights are used
samplers = [(1, 1.0), (2, 1.0), (4, 1.0), (1, 0.9)]  # tokens a step, or all above tau < 1
samples = 1  # 1.. of each problem; more need a temperature
examples = None  # 1.. held-out problems; None = those that the run was tested on
batch_size = 256  # 1..
device = "cuda" if torch.cuda.is_available() else "cpu"
weights = True  # False: delete the checkpoint then


def main():
    if samples > 1 and not all(sampler[3:] for sampler in samplers):
        raise SystemExit(f"{samples=}: all are alike without a temperature, as (1, 1.0, '', 0.5)")
    if examples and not weights:
        raise SystemExit(f"{examples=} leaves no record, so the checkpoint is not deleted")
    run = open_run(out_dir, examples, device)
    kept = records(out_dir)
    head = f"{'sampler':32}{'tokens a pass':>15}{'no padding':>12}{'passes':>8}  solved, % [95 %]"
    print(f"{out_dir}: {run[-1]} held-out problems\n{head}", flush=True)
    for sampler in samplers:
        torch.manual_seed(1)
        tries = judged(*run, *sampler)
        print(line(sampler, tries), flush=True)
        kept[str(sampler)] = {name: each.mean().item() for name, each in tries.items()}
        if examples is None:
            files.write_json(Path(out_dir, "eval.json"), kept)
    if len(samplers) > 2:
        found = points(kept, samplers)
        best = max(share for _, share in found)
        print(f"AUP {aup(found, best):.0f} over these samplers, y_max = {best:.1f}, its own best")
    if not weights:
        Path(out_dir, "ckpt.pt").unlink()


def open_run(out_dir, examples, device):
    """Model, settings and task of a run, and how many of its held-out examples to use."""
    model, run = checkpoint.load_model(out_dir, device)
    held_out = run["test_examples"]
    problem = checkpoint.module(run["task"]).load(run["data"], held_out)
    return model, run, problem, min(examples or held_out, len(problem.test))


def records(where):
    """{sampler as text: record}, what eval.json has."""
    path = Path(where, "eval.json")
    return json.loads(path.read_text()) if path.exists() else {}


# -- of one sampler --------------------------------------------------------------------------------
def judged(model, run, problem, count, tokens, tau, policy="", temperature=0.0):
    """{name: (samples, count)} of its answers to the first `count` problems."""
    if problem.judge is None:
        raise SystemExit(f"task {run['task']} has no judge, so nothing can be solved")
    order = pick("policy", policy or run["policy"], policies.POLICIES)
    how = policies.POLICIES[order], tokens, tau, temperature
    generate = checkpoint.of_variant(run["variant"], "generate", sample.generate)
    batches = []
    for first in tqdm([*range(0, count, batch_size)] * samples, leave=False, disable=None):
        x0, prompt = problem.test[first : min(first + batch_size, count)]
        x, steps = fill(model, generate, x0, prompt, *how)
        own = score(x, x0, prompt, getattr(problem, "end", None))
        solved = problem.judge(x, x0, prompt)
        batches.append({"solved": solved, **own, "steps": steps.cpu().numpy()})
    return {name: each.reshape(samples, count) for name, each in joined(batches).items()}


def fill(model, generate, x0, prompt, *how):
    """Tokens (n, L) that a sampler puts around the prompts (n, L), and the steps of each row."""
    device = model.lm_head.weight.device
    x = torch.as_tensor(x0).long().to(device)
    x, steps = generate(model, x, ~torch.as_tensor(prompt).to(device), *how)
    return x.cpu().numpy(), steps


def score(x, x0, prompt, end):
    """{name: (n,)} of tokens x (n, L) that a sampler put where the prompt is not."""
    answer = ~prompt & ~after_end(x0, prompt, end)
    return {
        "right": ((x == x0) & answer).sum(1) / answer.sum(1),
        "tokens": (~prompt).sum(1),
        "content": (~prompt & ~after_end(x, prompt, end)).sum(1),
    }


def joined(batches):
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


# -- its line --------------------------------------------------------------------------------------
def line(sampler, tries):
    solved = tries["solved"].sum(0).tolist()
    shares = []
    for k in sorted({1, samples}):
        share = sum(pass_at_k(samples, each, k) for each in solved) / len(solved)
        low, high = wilson(share, len(solved))
        name = f"pass@{k} " if samples > 1 else ""
        shares.append(f"{name}{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    tokens, content, steps = (tries[name].mean() for name in ("tokens", "content", "steps"))
    cost = f"{tokens / steps:15.2f}{content / steps:12.2f}{steps:8.1f}"
    return f"{words(*sampler):32}{cost}  {', '.join(shares)}"


def pass_at_k(n, solved, k):
    """The share of the subsets of k out of n tries that hold one of the `solved` ones."""
    return 1 - math.comb(n - solved, k) / math.comb(n, k)


def wilson(share, n):
    """95 % interval of a share of n problems, Wilson's score; for pass@k it is too wide."""
    z = 1.959964
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + (z / n / 2) ** 2)
    return max(0.0, centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


if __name__ == "__main__":
    configure(globals())
    main()
