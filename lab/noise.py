"""How far the noise of a gradient is that of the gradients before it (results/why.md).

    python lab/noise.py --out_dir=out/sudoku_tiny

The weights of a run stay as they are, and each stream of contexts gives `updates` gradients g_t.
Their noise is n_t = g_t - mean; printed are its correlations

    rho_k = sum_t <n_t, n_(t+k)> / sum_t <n_t, n_t>        (both sums as means over their terms)

at lags k = 1 to 16, and the rows that a batch is worth where gradients are summed, as momentum
does: rows / (1 + 2 sum_k rho_k), with k to 16 and to `lags`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from tqdm import tqdm

import checkpoint
import puma
from configurator import configure
from lab import why
from loss import objective
from policies import top_k

out_dir = "out/sudoku_tiny"  # a run of train.py on small rows; its averaged weights are used
updates = 768
lags = 64  # few beside `updates`: the sum of rho_k over all k is -1/2, as noise has no mean
rows = 32
seed = 1


def streams(queue, mask_token, run):
    """{what the contexts are: their stream}."""
    chains = {
        f"chains, {pool} batch{'es' * (pool > 1)}": why.Chains(
            1.0, False, queue, mask_token, run["k_schedule"], run["tau"], pool, False
        )
        for pool in (1, 4, 32)
    }
    masks = {"random masks": puma.RandomMasking(queue, mask_token)}
    return masks | {"the same nine times": why.Repeated(queue, mask_token, 9)} | chains


def gradients(model, stream):
    """(updates, parameters), the weights as they are; the chains step as in training."""
    found = []
    for update in tqdm(range(updates), leave=False):
        loss, *seen = objective(model, top_k, *stream.batch(update))
        grads = torch.autograd.grad(loss, [*model.parameters()])
        found.append(torch.cat([grad.flatten() for grad in grads]))
        stream.advance(*seen)
    return torch.stack(found)


def correlations(gradients):
    """rho_k for k = 0 .. lags, (lags + 1,)."""
    noise = gradients - gradients.mean(0)
    products = noise @ noise.T  # (updates, updates)
    means = [products.diagonal(k).mean() for k in range(min(lags, len(noise) - 1) + 1)]
    return torch.stack(means) / means[0]


def main():
    model, run = checkpoint.load_model(out_dir, "cpu")
    problem = checkpoint.module(run["task"]).load(run["data"], 1)
    for name in streams(puma.Queue(problem.train, rows, "cpu", seed), model.mask_token, run):
        torch.manual_seed(seed)
        queue = puma.Queue(problem.train, rows, "cpu", seed)
        stream = streams(queue, model.mask_token, run)[name]
        rho = correlations(gradients(model, stream))
        near, all_of_them = (rows / (1 + 2 * rho[1 : k + 1].sum()) for k in (16, lags))
        print(f"{name:20} {' '.join(f'{each:5.2f}' for each in rho[1:17])}", flush=True)
        print(
            f"{'':20} worth {near:.1f} rows by lags to 16, {all_of_them:.1f} by {lags}", flush=True
        )


if __name__ == "__main__":
    configure(globals())
    main()
