"""Judge a run by several samplers: eval.json in its folder, and in those of the weights it kept.

    python lab/judge.py --out_dir=out/study/mdm_1 --samplers="[(1,1.0),(8,1.0)]" --device=cuda

Of each sampler eval.json has means over the held-out rows: `solved`; `right`, the share of the
answer's tokens, its end included, that are right; `tokens` revealed; `content`, those of them up to
the first end that the sampler wrote (all, where rows have no end); `steps`, the forward passes.
Tokens per forward pass are tokens / steps, or content / steps.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

import checkpoint
import policies
import sample
from configurator import configure
from data import files
from lab.evaluate import fill, open_run

out_dir = "out/study/mdm_1"  # a run of train.py; its averaged weights are used
samplers = [(1, 1.0), (2, 1.0), (4, 1.0), (1, 0.9)]  # (tokens a step, or all above tau[, policy])
device = "cpu"
weights = True  # False: delete its checkpoint then
ROWS = 256  # at once


def main():
    torch.manual_seed(1)  # of a random policy
    for where in [Path(out_dir), *Path(out_dir).glob("at/*")]:
        kept = records(where)
        for sampler in samplers:
            if str(sampler) not in kept:
                kept[str(sampler)] = judged(where, *sampler)
                files.write_json(where / "eval.json", kept)
                print(f"{where}, {sampler}: {kept[str(sampler)]}", flush=True)
        if not weights:
            (where / "ckpt.pt").unlink(missing_ok=True)


def records(where):
    """{sampler: record}, what eval.json has; it stands for a run without weights."""
    path = Path(where, "eval.json")
    return json.loads(path.read_text()) if path.exists() else {}


def judged(where, tokens, tau, *policy):
    model, run, problem, count = open_run(where, None, device)
    if problem.judge is None:
        raise SystemExit(f"task {run['task']} has no judge, so nothing can be solved")
    generate = checkpoint.of_variant(run["variant"], "generate", sample.generate)
    how = policies.POLICIES[policy[0] if policy else run["policy"]], tokens, tau
    rows = []
    for first in range(0, count, ROWS):
        x0, prompt = problem.test[first : min(first + ROWS, count)]
        x, steps = fill(model, generate, x0, prompt, *how)
        own = score(x, x0, prompt, getattr(problem, "end", None))
        rows.append(
            {"solved": problem.judge(x, x0, prompt), **own, "steps": np.asarray(steps.cpu())}
        )
    return means(rows)


def score(x, x0, prompt, end):
    """{name: (n,)} of tokens x (n, L) that a sampler put where the prompt is not."""
    answer = ~prompt & ~after_end(x0, prompt, end)
    return {
        "right": ((x == x0) & answer).sum(1) / answer.sum(1),
        "tokens": (~prompt).sum(1),
        "content": (~prompt & ~after_end(x, prompt, end)).sum(1),
    }


def after_end(x, prompt, end):
    """Whether an end comes before a token of the answer; (n, L)."""
    ends = (x == end) & ~prompt if end is not None else np.zeros_like(prompt)
    return ends.cumsum(1) - ends > 0


def means(batches):
    """{name: mean over all rows} of [{name: (n,)}]."""
    return {k: np.concatenate([batch[k] for batch in batches]).mean().item() for k in batches[0]}


if __name__ == "__main__":
    configure(globals())
    main()
