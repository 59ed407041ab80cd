"""The order in which a run reveals the cells of Sudoku puzzles, over its training.

    python -m studies.trajectories --out_dir=out/sudoku_mini_puma_1   a run made with --keep_every=N

For a fixed set of held-out puzzles and the averaged weights that the run kept: the step u_i at
which each cell is revealed, 0 for a clue, in

    chain      the training chain (puma.step): the true token is revealed, K tokens a step at full
               length and all with confidence above tau (training draws the number at random)
    sampler    inference, with the run's eval_reveal and eval_tau: the model's own token

and the distance to the last weights, d_abs = E[1/L sum_i |u_i - u_i(last)|] (eq. traj-dist in the
paper's appendix, "Sudoku training trajectories"). Writes out_dir/trajectories.json.
"""

from pathlib import Path

import numpy as np
import torch

import losses
import policies
import puma
import tasks
from configurator import configure, errors_as_messages
from engine import processes
from engine.files import progress_bar, write_json
from engine.log import origin
from runs.likelihood import sampler
from runs.results import table
from runs.saved import open_run
from sample import generate
from studies.weights import kept

out_dir = "out/sudoku_mini_puma_1"  # a run made with --keep_every
puzzles = 100  # 1..: held-out puzzles, the same for all runs on the same data
device = ""  # cpu, cuda, mps; "" = the best there is


def main():
    with errors_as_messages():
        where = processes.start(device).device
        files, config, task = kept(out_dir, "sudoku")
        if len(files) < 2:
            raise ValueError(f"{out_dir} has no weights to compare: train it with --keep_every")
    iterations, solved, steps = measure(files, task, config, where)
    distance = {name: distances(orders).tolist() for name, orders in steps.items()}
    write_json(
        Path(out_dir, "trajectories.json"),
        {"config": config, "iterations": iterations}
        | origin()
        | {"solved": solved, "d_abs": distance}
        | {"steps": {name: orders.tolist() for name, orders in steps.items()}},
    )
    rows = zip(iterations, solved, *distance.values(), strict=True)
    cells = [[str(iteration), *(f"{value:.3f}" for value in row)] for iteration, *row in rows]
    print(table(["iteration", "solved", "d_abs, chain", "d_abs, sampler"], cells))


def measure(files, task, config, where):
    """Of each weight file: its iteration, the share solved, {chain, sampler: steps (T, N, L)}."""
    rows = np.arange(min(puzzles, len(task.test)))
    x0 = torch.as_tensor(task.validation[rows][0]).long().to(where)
    x, hidden = tasks.problems_on(where, task.test, rows)
    policy, K, tau = policies.get(config["policy"]), config["k_schedule"][-1][1], config["tau"]
    iterations, solved, chains, samples = [], [], [], []
    for file in progress_bar(files, "weights"):
        saved = open_run(file, where)
        torch.manual_seed(0)
        chains.append(chain(saved.model, x0, hidden, policy, K, tau).cpu())
        tokens, revealed_at, _ = generate(saved.model, x, hidden, sampler(config))
        samples.append(revealed_at.cpu())
        kinds = [record["kind"] for record in task.test.judge(tokens.cpu().numpy(), rows)]
        solved.append(kinds.count("correct") / len(rows))
        iterations.append(saved.iteration)
    return iterations, solved, {"chain": torch.stack(chains), "sampler": torch.stack(samples)}


@torch.no_grad()
def chain(model, x0, hidden, policy, K, tau):
    """The step at which a teacher-forced chain reveals each cell, from 1, 0 = given; (N, L).

    puma.step at r = 0, the least share of each stage; cells hidden when a chain ends come last.
    """
    tau, effective = policies.check_tau(tau), hidden.sum(1)
    stages = puma.stages_of(x0.shape[1], K)
    revealed_at, stage = torch.zeros_like(x0), torch.zeros_like(effective)
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


def distances(steps):
    """d_abs of each of the T orders (T, N, L) to the last, (T,)."""
    return (steps - steps[-1]).abs().double().mean((1, 2))


if __name__ == "__main__":
    configure(globals())
    main()
