"""Curves over the weights that runs had on their way (paper, figures 4 to 6, 9 and 11).

    python lab/curves.py --run --seeds=2                   # train, keep weights, what is solved
    python lab/curves.py --policy=margin --reveal=3        # another sampler, of the same weights
    python lab/curves.py --what=nelbo                      # nats per token (lab/likelihood.py)
    python lab/curves.py --what=distance                   # of the order of revealing to the last

distance is eq. traj-dist: the mean over all cells, clues included, of |u_t - u_T|, where u is the
step of a chain of true tokens, with K of training and no tau, that reveals a cell. Every line is a
mean over seeds; --figure=FILE.png draws it. Kept weights lie in OUT/ARM_SEED/at/UPDATE; a run that
was interrupted goes on.
"""

import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import checkpoint
import policies
import puma
import sample
from configurator import configure, pick
from lab import evaluate, likelihood, study

flags = ["config/sudoku_tiny.py"]  # of train.py, for all arms
arms = {"puma_plus": "--method=puma_plus", "mdm": "--method=mdm"}
every = 100  # updates between kept weights
seeds = 1
out = "out/curves"
run = False  # train what is missing; else only measure
what = "solved"  # solved, nelbo, distance
policy = "top_k"  # of the sampler and of the order
reveal = 2  # tokens per step
tau = 1.0
examples = 100  # held out
figure = ""  # a file of matplotlib
title = ""  # of the figure: its finding; "" = the flags


def main():
    pick("what", what, MEASURES)
    pick("policy", policy, policies.POLICIES)
    if seeds < 1:
        raise SystemExit(f"{seeds=}: expected one at least")
    curves = {}
    for arm in arms:
        folders = [Path(out, f"{arm}_{seed}") for seed in range(1, seeds + 1)]
        for seed, folder in enumerate(folders, 1) if run else ():
            train([*flags, *shlex.split(arms[arm]), f"--seed={seed}"], folder)
        if not all(kept(folder) for folder in folders):
            raise SystemExit(f"{folders[-1]} has no kept weights; add --run")
        measured = [curve(folder) for folder in folders]
        updates = sorted(set.intersection(*map(set, measured)))
        curves[arm] = {u: sum(each[u] for each in measured) / seeds for u in updates}
        print(f"\n{arm}, {words()}, {seeds} seeds")
        for update, value in curves[arm].items():
            print(f"  {update:6} {value:8.3f}", flush=True)
    if figure:
        draw(curves)


def words():
    sampler = f"{policy}, {reveal} a step" if tau == 1 else f"{policy}, above {tau}, else {reveal}"
    return {"solved": f"held-out problems solved ({sampler})", "nelbo": "NELBO, nats per token",
            "distance": f"distance of the order ({policy}) to the last one"}[what]  # fmt: skip


# -- weights on the way ----------------------------------------------------------------------------
def train(command, folder):
    """Run train.py to its end; --keep leaves the averaged weights of each checkpoint in `at`."""
    print(f"{folder}: {' '.join(command)}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    devices = torch.cuda.device_count()  # several: a process each
    launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={devices}"] if devices > 1 else []
    command = [sys.executable, *launcher, "train.py", *command, f"--out_dir={folder}", "--resume"]
    subprocess.run([*command, "--keep", f"--save_interval={every}"], check=True)


def kept(folder):
    return sorted(int(path.parent.name) for path in folder.glob("at/*/ckpt.pt"))


# -- measures --------------------------------------------------------------------------------------
def curve(folder):
    """{update: value} of a run; all have the same draws and the same examples."""
    runs = {u: evaluate.open_run(folder / "at" / str(u), examples, "cpu") for u in kept(folder)}
    for _, config, problem, _ in runs.values():
        if what != "solved":
            likelihood.refuse_own_sampler(config["variant"])
        elif problem.judge is None:
            raise SystemExit(f"task {config['task']} has no judge: --what=nelbo, --what=distance")
    values = {u: MEASURES[what](*each) for u, each in runs.items()}
    if what == "distance":
        last = values[max(values)]
        values = {u: (each - last).abs().float().mean().item() for u, each in values.items()}
    return values


def solved(model, run, problem, count):
    torch.manual_seed(1)
    x0, prompt = problem.test[:count]
    generate = checkpoint.of_variant(run["variant"], "generate", sample.generate)
    how = policies.POLICIES[policy], reveal, tau
    tokens, _ = evaluate.fill(model, generate, x0, prompt, *how)
    return problem.judge(tokens, x0, prompt).mean().item()


def nelbo(model, run, problem, count):
    torch.manual_seed(1)
    x0, prompt = (torch.as_tensor(rows) for rows in problem.test[:count])
    nats = likelihood.nelbo(model, x0.long(), prompt, masks=16)
    return (nats.sum() / (~prompt).sum()).item()


@torch.no_grad()
def order(model, run, problem, count):
    """The step of a chain of true tokens that reveals each place, (n, L); 0 in the prompt."""
    x0, prompt = (torch.as_tensor(rows) for rows in problem.test[:count])
    K = puma.value_at(run["k_schedule"], run["max_iters"])
    hidden = ~prompt
    step = torch.zeros_like(x0, dtype=torch.long)
    while hidden.any():
        step += hidden
        _, score = likelihood.read(model, x0.long(), hidden, policies.POLICIES[policy])
        hidden = hidden & ~policies.reveal(score, hidden, torch.full_like(step[:, 0], K))
    return step


MEASURES = {"solved": solved, "nelbo": nelbo, "distance": order}


def draw(curves):
    lines = {}
    for arm, points in curves.items():
        values = torch.tensor([*points.values()])
        name = f"{study.label(arm)}, mean of {seeds} seeds"
        lines[name] = [*points], values, 0 * values  # no band
    study.draw_lines(lines, words(), None, title or " ".join(flags), figure)


if __name__ == "__main__":
    configure(globals())
    study.begin(main)
