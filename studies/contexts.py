"""What training contexts are (Sudoku): how many hidden cells are one deduction away.

    python -m studies.contexts --out_dir=out/sudoku_mini_puma_1    best with --keep_every

A cell is one deduction away if a naked or a hidden single of the visible cells gives it. For each
kept weight file, or else the run's checkpoint, contexts of held-out puzzles are drawn from two
streams: `chains`: the run's chains, driven by these weights (PUMA's chains if the run had
none), and `random`: random masks. All shares are means over a row's hidden cells, then over
rows, which is how the loss weighs them. Writes out_dir/contexts.json: one object per weights and
stream with

    hidden       mean number of hidden cells
    one_away     share of the hidden cells that are one deduction away
    learnable    share that are, while the model gives the true digit less than `sure`
    loss_near, loss_far      what the cells one deduction away, and the others, add to the loss
    by_hidden    [[hidden cells, contexts with so many, their mean one_away], ...]
"""

import math
from pathlib import Path

import torch

import policies
from configurator import configure, errors_as_messages
from data.sudoku.generate import singles
from engine import processes
from engine.files import progress_bar, write_json
from engine.log import origin
from engine.queue import ExampleQueue
from losses import row_shares, score_all
from pretrained.runs import open_run
from puma import ProgressiveUnmasking, RandomMasking, value_at
from studies.ablations import STREAMS
from studies.weights import kept, markdown

out_dir = "out/sudoku_mini_puma_1"  # a run, best with --keep_every
contexts = 2048  # 1..: per weight file and stream, rounded up to whole batches
batch_size = 256  # 1..:
sure = 0.9  # 0..1: a cell counts as known if its true digit is more probable than this
seed = 1  # 0..:
device = ""  # cpu, cuda, mps; "" = the best there is


def main():
    with errors_as_messages():
        where = processes.start(device).device
        files, config, task = kept(out_dir, "sudoku")
    rows = []
    for file in progress_bar(files, "weights"):
        model, _, iteration, _ = open_run(file, where)
        for name in ("chains", "random"):
            seen = examine(model, stream(name, task, config, iteration, where), config["policy"])
            about = {"iteration": iteration, "contexts": name}
            rows.append(about | summary(*seen, task.box))
    settings = {"config": config, "contexts": contexts, "sure": sure, "seed": seed}
    write_json(Path(out_dir, "contexts.json"), {"origin": settings | origin(), "rows": rows})
    print(markdown(rows, 3, leave_out=("by_hidden",)))


def stream(name, task, config, iteration, where):
    """Of held-out puzzles; chains have the K of that iteration."""
    queue = ExampleQueue(task.validation, batch_size, where, seed)
    args = queue, task.mask, torch.Generator(where).manual_seed(seed)
    if name == "random":
        return RandomMasking(*args)
    K = value_at(config["k_schedule"], iteration)
    return STREAMS.get(config["method"], ProgressiveUnmasking)(*args, K, config["tau"], buffer=1)


@torch.no_grad()
def examine(model, stream, policy):
    """x0, hidden, and the loss at the hidden cells of contexts of the stream, (N, L) each."""
    policy, seen = policies.get(policy), []
    torch.manual_seed(seed)  # for a random policy
    settle = getattr(stream, "stages", 0)  # by then every first chain has been replaced
    for turn in range(settle + math.ceil(contexts / batch_size)):
        x, x0, hidden, _ = stream.batch(0)
        nll, score, confidence = score_all(model, x, x0, policy)
        stream.advance(score, confidence)
        if turn >= settle:
            seen.append((x0, hidden, nll))
    return [torch.cat(part).cpu() for part in zip(*seen, strict=True)]


def summary(x0, hidden, nll, box):
    """The numbers of the module's docstring; the arguments are (N, L) each."""
    away = torch.from_numpy(singles(x0.numpy() + 1, ~hidden.numpy(), box))
    share = row_shares(hidden, torch.float64)  # sums to 1
    unknown = nll > -torch.tensor(sure).log()
    near = (share * away).sum(1) * len(x0)  # (N,)
    count = hidden.sum(1)
    of_size = {h: count == h for h in count.unique().tolist()}
    return {
        "hidden": count.double().mean().item(),
        "one_away": near.mean().item(),
        "learnable": (share * (away & unknown)).sum().item(),
        "loss_near": (share * nll)[away].sum().item(),
        "loss_far": (share * nll)[hidden & ~away].sum().item(),
        "by_hidden": [[h, int(r.sum()), near[r].mean().item()] for h, r in of_size.items()],
    }


if __name__ == "__main__":
    configure(globals())
    main()
