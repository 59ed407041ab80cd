"""What a run knows, and forgets, about the states that its sampler visits during training.

    python -m studies.states --out_dir=out/addition_puma_1       a run made with --keep_every=N

For each kept weight file, held-out examples are revealed from fully masked to complete as the run's
sampler does it (eval_reveal tokens per step, or all above eval_tau), in the order of the run's
policy, but with the true tokens: these are the states of a sampler without mistakes (`own`). Each
is paired with a state of the same example that has as many positions hidden at random (`random`).
States are grouped by the share of positions outside the prompt that is hidden: 10 to 20 % is
`tenth` 1. Writes out_dir/states.json, an object per weights, kind of state and tenth with

    met          number of states: for `own`, how often the sampler meets such a state
    trained      how many its first process was trained on since the previous weights, by the lines
                 of metrics.jsonl (log_interval should divide keep_every)
    right        share of the hidden positions whose likeliest token is the true one, mean of states
    next         the same for the positions that are revealed next
    sure         share of the hidden positions with confidence above the run's tau (0.9 without)
    sure_right   the share of these that are right; null if there are none
    confidence   their mean confidence: calibrated if equal to sure_right

and, as `start_loss`, the loss per token when all is hidden, [[iteration, nats], ...].
"""

from pathlib import Path

import numpy as np
import torch

import policies
from configurator import configure, errors_as_messages
from engine import processes
from engine.files import progress_bar, write_json
from engine.log import origin, read_metrics
from losses import row_mean, score_all
from pretrained.runs import open_run
from puma import choose_random
from sample import choose
from studies.weights import kept, markdown

out_dir = "out/addition_puma_1"  # a run made with --keep_every
examples = 256  # 1..: held-out ones, the same for all runs on the same data
batch_size = 256  # 1..:
seed = 1  # 0..:
device = ""  # cpu, cuda, mps; "" = the best there is
KINDS = "own", "random"


def main():
    with errors_as_messages():
        where = processes.start(device).device
        files, config, task = kept(out_dir)
        lines = [r for r in read_metrics(Path(out_dir, "metrics.jsonl")) if "tenths" in r]
    rows, start_loss, before = [], [], 0
    for file in progress_bar(files, "weights"):
        model, _, iteration, _ = open_run(file, where)
        since = [line["tenths"] for line in lines if before < line["iter"] <= iteration]
        trained = np.sum(since, 0).tolist() if since else [None] * 10
        for row in summary(examine(model, task.validation, config, where)):
            rows.append({"iteration": iteration} | row | {"trained": trained[row["tenth"]]})
        start_loss.append([iteration, loss_at_start(model, task.validation, where)])
        before = iteration
    settings = {"config": config, "examples": examples, "seed": seed}
    result = {"origin": settings | origin(), "rows": rows, "start_loss": start_loss}
    write_json(Path(out_dir, "states.json"), result)
    last = [row for row in rows if row["iteration"] == before]
    print(markdown(last, 4, leave_out=("iteration",)))


@torch.no_grad()
def examine(model, data, config, where):
    """Of each state, (8, states): kind, tenth, right, next; sums over its hidden positions: their
    number, how many are sure, are sure and right, and the confidence of the sure ones.
    """
    generator, seen = torch.Generator(where).manual_seed(seed), []
    torch.manual_seed(seed)  # for a random policy
    for x0, prompt in batches(data, where):
        own = ~prompt
        while own.any():
            numbers, after = look(model, x0, own, config)
            seen.append(labelled(0, own, prompt, numbers))
            random = choose_random(~prompt, own.sum(1), generator)
            seen.append(labelled(1, random, prompt, look(model, x0, random, config)[0]))
            own = after
    return torch.cat(seen, 1).double().cpu()


def batches(data, where):
    n = min(examples, len(data))
    for start in range(0, n, batch_size):
        x0, prompt = data[np.arange(start, min(start + batch_size, n))]
        yield torch.as_tensor(x0).long().to(where), torch.as_tensor(prompt).to(where)


@torch.no_grad()
def loss_at_start(model, data, where):
    """The mean over examples of the loss per token, in nats, with only the prompt visible."""
    losses, rows = 0.0, 0
    for x0, prompt in batches(data, where):
        x = x0.masked_fill(~prompt, model.mask_token)
        nll, _, _ = score_all(model, x, x0, policies.top_k)
        losses, rows = losses + len(x0) * row_mean(nll, ~prompt).item(), rows + len(x0)
    return losses / rows


def look(model, x0, hidden, config):
    """Six numbers of the model for each of the states (B, L), (6, B), and the states after."""
    policy, tau = policies.get(config["policy"]), 0.9 if config["tau"] is None else config["tau"]
    x = x0.masked_fill(hidden, model.mask_token)
    nll, score, confidence = score_all(model, x, x0, policy)
    right = hidden & (nll.neg().exp() == confidence)  # the true token has the largest probability
    chosen = choose(score, confidence, hidden, config["eval_reveal"], config["eval_tau"])
    sure = hidden & (confidence > tau)
    numbers = [mean_of(right, hidden), mean_of(right, chosen), hidden.sum(1), sure.sum(1)]
    numbers += [(sure & right).sum(1), (confidence * sure).sum(1)]
    return torch.stack([number.double() for number in numbers]), hidden & ~chosen


def mean_of(right, where):
    return (right & where).sum(1) / where.sum(1).clamp(min=1)


def labelled(kind, hidden, prompt, numbers):
    """Kind and tenth on top of the numbers, for the rows that have something hidden."""
    share = hidden.sum(1) / (~prompt).sum(1).clamp(min=1)
    tenth = (share * 10).long().clamp(max=9)  # as engine.log counts
    labels = torch.stack([torch.full_like(tenth, kind), tenth]).double()
    return torch.cat([labels, numbers])[:, hidden.any(1)]


def summary(states):
    """The rows of the module's docstring, without `trained`, from what `examine` returns."""
    rows = []
    for kind, name in enumerate(KINDS):
        for tenth in range(10):
            part = states[:, (states[0] == kind) & (states[1] == tenth)]
            if part.shape[1]:
                right, following = part[2:4].mean(1).tolist()
                hidden, sure, sure_right, confidence = part[4:].sum(1).tolist()
                rows.append({
                    "states": name, "tenth": tenth, "met": part.shape[1],
                    "right": right, "next": following, "sure": sure / hidden,
                    "sure_right": sure_right / sure if sure else None,
                    "confidence": confidence / sure if sure else None,
                })  # fmt: skip
    return rows


if __name__ == "__main__":
    configure(globals())
    main()
