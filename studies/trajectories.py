"""In which order a run reveals the cells of Sudoku puzzles, along its training.

    python -m studies.trajectories --out_dir=out/sudoku_mini_puma_1   a run made with --keep_every=N

For a fixed set of held-out puzzles and the averaged weights that the run kept: the step u_i at
which each cell is revealed, 0 for a clue, in

    chain      the training chain: the true token is revealed, K tokens a step at full length and
               all that is surer than tau (training draws the number of tokens at random)
    sampler    inference, with the run's eval_reveal and eval_tau: the model's own token

and the distance to the last weights, d_abs = E[1/L sum_i |u_i - u_i(last)|] (eq. traj-dist in the
paper's appendix, "Sudoku training trajectories"). Writes out_dir/trajectories.json.
"""

from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import backend
import checkpoint
import policies
import record as metrics
import sudoku
from configurator import configure
from evaluation import on_device
from record import table, write_json
from sample import generate, predict

out_dir = "out/sudoku_mini_puma_1"  # a run made with --keep_every
puzzles = 100  # held-out puzzles, the same for all runs on the same data
device = ""  # cpu, cuda, mps; "" = the best there is


def main():
    with backend.mistakes_named():
        if puzzles < 1:
            raise ValueError(f"{puzzles=}: expected at least 1")
        _, _, where = backend.start(device)
        files = checkpoint.weights(out_dir)
        model, config, _ = checkpoint.load_model(files[0])
        if config["dataset"] != "sudoku":
            raise ValueError(f"{out_dir} was trained on {config['dataset']}: expected sudoku")
        if model.block:
            raise ValueError(f"{out_dir} is autoregressive or in blocks: it has no such chain")
        if len(files) < 2:
            raise ValueError(f"{out_dir} has no weights to compare: train it with --keep_every")
        test = sudoku.load(config).test
        rows = np.arange(min(puzzles, len(test)))
    (x0, prompt), policy = on_device(test[rows], where), policies.get(config["policy"])
    K, tau = config["k_schedule"][-1][1], config["tau"]
    steps, iterations, solved = {"chain": [], "sampler": []}, [], []
    for file in tqdm(files, "weights"):
        model, _, iteration = checkpoint.load_model(file, where)
        torch.manual_seed(0)
        steps["chain"].append(chain(model, x0, ~prompt, policy, K, tau))
        tokens, revealed_at, _ = generate(
            model, x0, ~prompt, policy, config["eval_reveal"], config["eval_tau"]
        )
        steps["sampler"].append(revealed_at)
        solved.append(test.solved(tokens.cpu().numpy(), rows).mean())
        iterations.append(iteration)
    steps = {name: torch.stack(each).cpu() for name, each in steps.items()}  # (T, N, L)
    distance = {name: distances(each).tolist() for name, each in steps.items()}
    write_json(
        Path(out_dir, "trajectories.json"),
        {"config": config, "commit": metrics.commit(), "iterations": iterations}
        | {"solved": solved, "d_abs": distance}
        | {"steps": {name: each.tolist() for name, each in steps.items()}},
    )
    rows = zip(iterations, solved, *distance.values(), strict=True)
    cells = [[str(iteration), *(f"{value:.3f}" for value in row)] for iteration, *row in rows]
    print(table(["iteration", "solved", "d_abs, chain", "d_abs, sampler"], cells))


@torch.no_grad()
def chain(model, x0, hidden, policy, K, tau):
    """The step at which a teacher-forced chain reveals each cell, from 1, 0 = given; (N, L)."""
    revealed_at, step = torch.zeros_like(x0), 0
    stages = max(2, round(x0.shape[1] / K))
    count = (hidden.sum(1) / stages).round().long().clamp(min=1)
    while hidden.any():
        step += 1
        where = hidden.nonzero(as_tuple=True)
        h = model(x0.masked_fill(hidden, model.mask_token))[where]
        _, confidence, score = (
            found.new_zeros(x0.shape).index_put_(where, found)
            for found in predict(model, h, where[1], policy)
        )
        chosen = policies.reveal(score, hidden, count)
        if tau is not None:
            chosen |= policies.fast_forward(confidence, hidden, tau)
        revealed_at[chosen] = step
        hidden = hidden & ~chosen
    return revealed_at


def distances(steps):
    """d_abs of each of the T orders (T, N, L) to the last, (T,)."""
    return (steps - steps[-1]).abs().double().mean((1, 2))


if __name__ == "__main__":
    configure(globals())
    main()
