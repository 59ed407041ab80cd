"""Muon: orthogonalised momentum for the weight matrices of the layers; AdamW for all the rest.

    W <- (1 - lr * decay) W - lr * 0.2 sqrt(max(n, m)) U V^T,   U S V^T = Nesterov momentum (n, m)

(K. Jordan et al., "Muon", 2024; the scale is from arXiv 2502.16982, so learning rate and weight
decay can be AdamW's). torch.optim.Muon does one matrix at a time, in bfloat16, which processors
without it emulate: four times the cost of a training step in config/gsm_mini.py.
"""

import torch

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # of the quintic; steep at 0, so 5 steps are enough
STEPS = 5


class Muon(torch.optim.AdamW):
    """AdamW, or Muon for the matrices of `layers` if orthogonal; no weight decay on vectors.

    precision: of the matrix products in `orthogonalise`. The rate is one tensor of all groups:
    float64 on a CPU gives the same results as a plain number.
    """

    def __init__(self, model, layers, orthogonal=False, precision=torch.float32, **adamw):
        matrices = [p for p in layers.parameters() if p.dim() > 1]
        inside = {id(p) for p in matrices}
        ends = [p for p in model.parameters() if p.dim() > 1 and id(p) not in inside]
        vectors = [p for p in model.parameters() if p.dim() <= 1]
        device = vectors[0].device
        adamw |= {"fused": device.type != "mps", "capturable": device.type == "cuda"}
        rate = torch.zeros((), device=device, dtype=torch.float64 if device.type == "cpu" else None)
        momentum = 0.95 if orthogonal else 0.0
        groups = [
            {"params": [p for p in parameters if p.requires_grad], **settings}
            for parameters, settings in (
                (matrices, {"momentum": momentum}), (ends, {"momentum": 0.0}),
                (vectors, {"momentum": 0.0, "weight_decay": 0.0}),
            )
        ]  # fmt: skip
        super().__init__(groups, lr=rate, **adamw)
        self.precision = precision

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            if group["momentum"]:
                for shape in dict.fromkeys(p.shape for p in group["params"]):
                    same = [p for p in group["params"] if p.shape == shape]
                    self.orthogonal_step(same, group)
        super().step()

    def orthogonal_step(self, matrices, group):
        """One update of matrices (n, m) of one shape, all at once; AdamW then sees no gradient."""
        for p in matrices:
            if p not in self.state:  # on loading, AdamW expects a `step`
                self.state[p] = {"momentum_buffer": torch.zeros_like(p), "step": torch.zeros(())}
        momentum = [self.state[p]["momentum_buffer"] for p in matrices]
        gradient = [p.grad for p in matrices]
        torch._foreach_lerp_(momentum, gradient, 1 - group["momentum"])
        torch._foreach_lerp_(gradient, momentum, group["momentum"])  # Nesterov
        scale = 0.2 * max(matrices[0].shape) ** 0.5  # the size of AdamW's usual updates
        update = orthogonalise(torch.stack(gradient), self.precision).mul_(group["lr"] * scale)
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_sub_(matrices, list(update))
        for p in matrices:
            p.grad = None


def orthogonalise(g, precision=torch.float32):
    """Approximately U V^T, for the singular value decomposition U S V^T of g (k, n, m) float32.

    By a Newton-Schulz iteration. Singular values, as shares of the root of their sum of squares,
    end in 0.68 to 1.21 if they are at least 0.002; smaller ones grow by a factor of at most 485.
    """
    a, b, c = COEFFICIENTS
    tall = g.shape[-2] > g.shape[-1]
    x = g.mT if tall else g
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)).to(precision)
    for _ in range(STEPS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return (x.mT if tall else x).to(g.dtype)


@torch.no_grad()
def update_average(averaged, model, decay):
    """Move the averaged weights towards the model's."""
    torch._foreach_lerp_([*averaged.parameters()], [*model.parameters()], 1 - decay)
