"""How far a run's training contexts are from those that its sampler meets.

    python -m studies.discrepancy --out_dir=out/sudoku_mini_puma_1

From checkpoint.pt alone, whose chains go on without training; the measure is that of arXiv
2609.37974. Prints, and writes to out_dir/discrepancy.json,

    mmd     for each tenth of the share hidden: the squared maximum mean discrepancy between the
            hidden positions in training contexts and in those that the run's sampler meets on
            held-out problems; kernel exp(-Hamming distance / (0.2 N)), N the mean number of tokens
            to predict. An example counts once in a tenth. Unbiased; null where there are fewer than
            two contexts of either
    unmet   the share of the sampler's contexts in tenths where training has none
"""

from pathlib import Path

import numpy as np
import torch

import losses
import policies
import puma
import tasks
from configurator import configure, errors_as_messages
from engine import checkpoint, processes
from engine.files import write_json
from engine.log import origin
from engine.queue import ExampleQueue
from model import Transformer
from pretrained.runs import open_run
from sample import generate
from studies.weights import kept, sampler
from tasks.scores import table

out_dir = "out/sudoku_mini_puma_1"
examples = 512  # 2..: held-out ones
contexts = 8192  # 1..: of training
device = ""  # cpu, cuda, mps; "" = the best there is


def main():
    with errors_as_messages():
        where = processes.start(device).device
        _, config, _ = kept(out_dir)
        task = tasks.get(config["dataset"]).load(config)
        if config["method"] not in ("puma", "mdm") or config.get("carry"):
            raise ValueError(f"{out_dir}: expected a run of method puma or mdm, without a carry")
        state = checkpoint.load_whole(path := Path(out_dir, "checkpoint.pt"))
        averaged = open_run(path, where).model
        model = Transformer(**state["model_args"]).to(where).eval()
        model.load_state_dict(state["model"])
        stream = make_stream(state["ranks"], config, task, where)
    torch.manual_seed(0)
    met, trained = sampled(averaged, task, config, where), trained_on(model, stream, state, config)
    rows = compare(one_a_tenth(*met), one_a_tenth(*trained), met[1].float().mean())
    result = totals(rows) | {"tenths": rows, "config": config} | origin()
    write_json(Path(out_dir, "discrepancy.json"), result)
    print(table([*rows[0]], [[f"{value}" for value in row.values()] for row in rows]))
    print(*(f"{key}: {result[key]}" for key in [*result][:2]), sep="\n")


def make_stream(ranks, config, task, where):
    """The stream of training contexts of the first process, as it was."""
    own, generator = ranks[0], torch.Generator(where).manual_seed(0)
    chains = own["stream"].get("number", torch.zeros(0, 64))  # (buffer, B); none if random masks
    queue = ExampleQueue(task.train, chains.shape[1], where, config["seed"], 0, len(ranks))
    if not len(chains):
        return puma.RandomMasking(queue, task.mask, generator)
    settings = {key: config[key] for key in ("k_schedule", "tau", "second_visit")}
    settings |= {"buffer": len(chains)}
    stream = puma.ProgressiveUnmasking(queue, task.mask, generator, **settings)
    queue.load_state_dict(own["queue"])
    stream.load_state_dict(own["stream"])
    return stream


# -- contexts: hidden (n, L), tokens to predict (n,), number of the example (n,) -------------------
@torch.no_grad()
def trained_on(model, stream, state, config):
    seen, policy, rows = [], policies.get(config["policy"]), stream.queue.rows
    while len(seen) * rows < contexts:
        new = torch.arange(rows) + len(seen) * rows  # random masks: all examples differ
        number = stream.number[stream.turn].clone() if hasattr(stream, "number") else new
        x, x0, hidden, _ = stream.batch(state["iteration"])
        seen.append((hidden, stream.effective, number))
        _, score, confidence = losses.score_all(model, x, x0, policy)
        stream.advance(score, confidence)
    return (torch.cat(part).cpu() for part in zip(*seen, strict=True))


def sampled(model, task, config, where):
    rows = np.arange(min(examples, len(task.test)))
    x, hidden = tasks.problems_on(where, task.test, rows)
    _, revealed_at, _ = generate(model, x, hidden, sampler(config))
    states = torch.cat([revealed_at > step for step in range(int(revealed_at.max()))]).cpu()
    times, some = len(states) // len(rows), states.any(1)
    effective, number = hidden.sum(1).cpu().repeat(times), torch.arange(len(rows)).repeat(times)
    return states[some], effective[some], number[some]


def one_a_tenth(hidden, effective, number):
    """The contexts (n, L) float of each tenth of the share hidden; one at random of an example."""
    tenth = (10 * hidden.sum(1) // effective).clamp(max=9)
    order = torch.randperm(len(hidden))
    _, first = np.unique((10 * number + tenth)[order], return_index=True)
    chosen = order[first]
    return [hidden[chosen[tenth[chosen] == n]].float() for n in range(10)]


def compare(met, trained, N):
    """Per tenth: contexts that the sampler meets, contexts trained on, mmd."""
    return [
        {"tenth": n, "met": len(a), "trained": len(b), "mmd": mmd(a, b, 0.2 * N)}
        for n, (a, b) in enumerate(zip(met, trained, strict=True))
    ]


def mmd(a, b, width):
    """The unbiased squared MMD of a (n, L) and b (m, L), kernel exp(-Hamming distance / width)."""
    if min(len(a), len(b)) < 2:
        return None

    def kernel(u, v):
        return torch.exp(-torch.cdist(u, v, p=1) / width)

    within = sum((kernel(u, u).sum() - len(u)) / (len(u) * (len(u) - 1)) for u in (a, b))
    return round((within - 2 * kernel(a, b).mean()).item(), 6)


def totals(rows):
    """`mmd`, its mean over the sampler's contexts in tenths that have one, and `unmet`."""
    met = [row["met"] for row in rows]
    known = [0 if row["mmd"] is None else n for row, n in zip(rows, met, strict=True)]
    total = sum((row["mmd"] or 0) * n for row, n in zip(rows, met, strict=True))
    unmet = sum(row["met"] for row in rows if row["trained"] < 2) / sum(met)
    return {"mmd": total / sum(known) if any(known) else None, "unmet": unmet}


if __name__ == "__main__":
    configure(globals())
    main()
