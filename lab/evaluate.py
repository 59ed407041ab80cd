"""What share of its held-out problems a run solves, with each of several samplers.

    python lab/evaluate.py --out_dir=out/sudoku_tiny --reveal="[1,2,4]" --tau="[1.0,0.9]"
    python lab/evaluate.py --out_dir=out/sudoku_tiny --temperature="[0.5,1.0]" --samples=10

A sampler is a combination of policy, reveal, tau and temperature (paper, table 1). Its line has
the tokens revealed per step, the steps (forward passes) of a problem, and the share solved with its
95 % interval (Wilson); with several samples of a problem, pass@k (arXiv 2107.03374, eq. 1).
out_dir/eval.jsonl, written anew by each call, has the settings, then a record of each try.
"""

import itertools
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
from configurator import configure, fit, pick

out_dir = "results/weights/sudoku_mini"  # a run of train.py; its averaged weights are used
policy = []  # of top_k, margin, entropy, random; [] = the run's
reveal = [2]  # tokens per step
tau = [1.0]  # reveal all with confidence above this, else `reveal`; 1.0 = off
temperature = [0.0]  # 0 = the likeliest token
samples = 1  # of each problem; more need a temperature
examples = None  # held-out problems; None = those that the run was tested on
batch_size = 64
seed = 1
device = "cuda" if torch.cuda.is_available() else "cpu"


def open_run(out_dir, examples, device):
    """Model, settings and task of a run, and how many of its held-out examples to use."""
    model, run = checkpoint.load_model(out_dir, device)
    held_out = run.get("test_examples", 256)
    problem = checkpoint.module(run["task"]).load(run["data"], held_out)
    return model, run, problem, min(examples or held_out, len(problem.test))


def main(config):
    model, run, problem, count = open_run(out_dir, examples, device)
    if problem.judge is None:
        raise SystemExit(f"{out_dir}: task {run['task']} has no judge, so nothing can be solved")
    samplers = grid(run)
    usual = "bfloat16" if "cuda" in run.get("device", device) else "float32"
    low = (run.get("dtype") or usual) == "bfloat16"  # as training has evaluated it
    casts = torch.autocast(device.split(":")[0], torch.bfloat16, enabled=low)
    generate = checkpoint.of_variant(run["variant"], "generate", sample.generate)
    head = f"{'sampler':32}{'tokens a step':>15}{'steps a problem':>17}  solved, % [95 %]"
    print(f"{out_dir}: {count} held-out problems\n{head}", flush=True)
    bar = tqdm(total=len(samplers) * samples * count, unit="problem", leave=False)
    with casts, bar, checkpoint.opened(out_dir, "eval.jsonl", "w") as file:
        file.write(json.dumps({"config": config, "torch": torch.__version__}) + "\n")
        for sampler in samplers:
            torch.manual_seed(seed)
            records = []
            for batch in attempts(model, problem, generate, sampler, count):
                file.writelines(json.dumps(record) + "\n" for record in batch)
                file.flush()
                bar.update(len(batch))
                records += batch
            tqdm.write(line(sampler, records))


def grid(run):
    """All samplers: {policy, reveal, tau, temperature} each."""
    if min(*reveal, samples, batch_size, examples or 1) < 1:
        raise SystemExit("reveal, samples, batch_size and examples are 1 or more")
    if samples > 1 and 0 in temperature:
        raise SystemExit(f"{samples=}: all are alike at temperature 0; add --temperature=[1.0]")
    names = policy or [run.get("policy", "top_k")]
    values = {
        "policy": [pick("policy", name, policies.POLICIES) for name in names],
        "reveal": [fit("reveal", value, 2) for value in reveal],
        "tau": [fit("tau", value, 1.0) for value in tau],
        "temperature": [fit("temperature", value, 0.0) for value in temperature],
    }
    used = checkpoint.of_variant(run["variant"], "SAMPLER", values)  # the others change nothing
    each = [value if name in used else value[:1] for name, value in values.items()]
    return [dict(zip(values, sampler, strict=True)) for sampler in itertools.product(*each)]


def attempts(model, problem, generate, sampler, count):
    """Records of the first `count` problems, `samples` times, a batch at a time."""
    name, *how = sampler.values()
    for attempt in range(samples):
        for first in range(0, count, batch_size):
            x0, prompt = problem.test[first : min(first + batch_size, count)]
            tokens, steps = fill(model, generate, x0, prompt, policies.POLICIES[name], *how)
            found = {
                "index": range(first, first + len(x0)),
                "tokens": (~prompt).sum(1).tolist(),
                "steps": steps.tolist(),
            }
            if hasattr(problem, "kinds"):  # judge would run each program once more
                found["kind"] = problem.kinds(tokens, x0, prompt)
                found["solved"] = [kind == "correct" for kind in found["kind"]]
            else:
                found["solved"] = problem.judge(tokens, x0, prompt).tolist()
            rows = zip(*found.values(), strict=True)
            yield [sampler | {"try": attempt} | dict(zip(found, row, strict=True)) for row in rows]


def fill(model, generate, x0, prompt, *how):
    """Tokens (n, L) that a sampler puts around the prompts (n, L), and the steps of each row."""
    device = model.lm_head.weight.device
    x = torch.as_tensor(x0).long().to(device)
    x, steps = generate(model, x, ~torch.as_tensor(prompt).to(device), *how)
    return x.cpu().numpy(), steps


def line(sampler, records):
    solved = np.reshape([record["solved"] for record in records], (samples, -1)).sum(0).tolist()
    tokens, steps = (sum(record[key] for record in records) for key in ("tokens", "steps"))
    shares = []
    for k in sorted({1, samples}):
        share = sum(pass_at_k(samples, each, k) for each in solved) / len(solved)
        low, high = wilson(share, len(solved))
        name = f"pass@{k} " if samples > 1 else ""
        shares.append(f"{name}{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    cost = f"{tokens / steps:15.2f}{steps / len(records):17.1f}"
    return f"{words(**sampler):32}{cost}  {', '.join(shares)}"


def words(policy, reveal, tau, temperature):
    count = f"all above {tau}, else {reveal}" if tau < 1 else f"{reveal} a step"
    return f"{policy}, {count}" + (f", T = {temperature}" if temperature else "")


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
    try:
        main(configure(globals()))
    except KeyboardInterrupt:
        raise SystemExit(f"stopped; {out_dir}/eval.jsonl has the records so far") from None
