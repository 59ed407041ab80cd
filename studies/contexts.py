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

from pathlib import Path

import torch

import policies
from configurator import configure, errors_as_messages
from data.sudoku.generate import singles
from engine import processes
from engine.files import progress_bar, write_json
from engine.log import origin
from engine.queue import ExampleQueue
from engine.results import table
from losses import row_shares, score_all
from pretrained import runs
from puma import ProgressiveUnmasking, RandomMasking
from studies import ablations
from tasks import sudoku

out_dir = "out/sudoku_mini_puma_1"  # a run, best with --keep_every
contexts = 2048  # per weight file and stream
batch_size = 256
sure = 0.9  # a cell counts as known if its true digit is more probable than this
seed = 1
device = ""  # cpu, cuda, mps; "" = the best there is

LIMITS = """
    1 <= batch_size <= contexts <= 10**8
    contexts % batch_size == 0
    0 < sure <= 1
    0 <= seed < 2**32
"""


def main():
    with errors_as_messages():
        _, _, where = processes.start(device)
        files, saved = runs.kept_weights(out_dir)
        config = saved.config
        if config["dataset"] != "sudoku":
            raise ValueError(
                f"{out_dir} was trained on {config['dataset']}: deductions need Sudoku"
            )
        if saved.block:
            raise ValueError(f"{out_dir} is autoregressive or in blocks: it has other contexts")
        task = sudoku.load(config)
    rows = []
    for file in progress_bar(files, "weights"):
        model, _, iteration, _ = runs.open_run(file, where)
        for name in ("chains", "random"):
            seen = examine(model, stream(name, task, config, where), config, iteration)
            found = summary(*seen, task.box)
            rows.append({"iteration": iteration, "contexts": name} | found)
    settings = {"config": config, "contexts": contexts, "sure": sure, "seed": seed}
    write_json(Path(out_dir, "contexts.json"), {"origin": settings | origin(), "rows": rows})
    print(markdown(rows))


def stream(name, task, config, where):
    queue = ExampleQueue(task.validation, batch_size, where, seed)
    generator = torch.Generator(where).manual_seed(seed)
    if name == "random":
        return RandomMasking(queue, task.mask, generator)
    kind = ablations.CHAINS.get(config["method"], ProgressiveUnmasking)
    return kind(queue, task.mask, generator, config["k_schedule"], config["tau"], 1)


@torch.no_grad()
def examine(model, stream, config, iteration):
    """x0, hidden, and the loss at the hidden cells of contexts of the stream, (N, L) each."""
    policy, seen = policies.get(config["policy"]), []
    torch.manual_seed(seed)  # for a random policy
    stream.prepare(iteration)  # for the number of stages there
    settle = getattr(stream, "stages", 0)  # by then every first chain has been replaced
    for turn in range(settle + contexts // batch_size):
        x, x0, hidden, _ = stream.batch(iteration)
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


def markdown(rows):
    keys = ["iteration", "contexts", "hidden", "one_away", "learnable", "loss_near", "loss_far"]
    values = [map(row.get, keys) for row in rows]
    cells = [[f"{v:.3f}" if isinstance(v, float) else str(v) for v in row] for row in values]
    return table(keys, cells)


if __name__ == "__main__":
    configure(globals())
    main()
