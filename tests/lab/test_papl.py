"""lab/papl.py against a loop over rows and positions."""

import pytest
import torch

import lab.papl
import policies


@pytest.mark.parametrize("V", [9, 200])
def test_papl_is_its_formula(V):
    torch.manual_seed(0)
    shape = dict(length=7, dim=16, layers=1, heads=2, mlp=32, theta=100.0)
    model = lab.papl.make_model(alpha=0.7, vocab_size=V, mask_token=V - 1, **shape)
    x0 = torch.randint(0, V - 1, (4, 7))
    hidden = torch.rand(4, 7) < 0.6
    hidden[:, 2] = True
    x = x0.masked_fill(hidden, V - 1)
    f = model.logits(model(x)).softmax(-1)
    total = 0.0
    for i in range(4):
        places = hidden[i].nonzero()[:, 0].tolist()
        known = {j: f[i, j, x0[i, j]].detach() for j in places}
        for j in places:
            w = known[j] / sum(known.values())
            total = total - (1 + 0.7 * w) * f[i, j, x0[i, j]].log() / (4 * len(places))
    loss, score, _ = lab.papl.objective(model, policies.top_k, x, x0, hidden)
    torch.testing.assert_close(loss, total)
    expected = torch.autograd.grad(total, [*model.parameters()])
    torch.testing.assert_close(torch.autograd.grad(loss, [*model.parameters()]), expected)
    torch.testing.assert_close(score[hidden], f.amax(-1)[hidden])


def test_reverse_reveals_the_least_confident():
    import lab.reverse
    import puma

    class Data:
        def __len__(self):
            return 40

        def __getitem__(self, i):
            return torch.zeros(len(i), 6).long().numpy(), torch.zeros(len(i), 6).bool().numpy()

    class Model:
        mask_token = 9

    settings = {"k_schedule": [(0, 1)], "tau": 0.9, "grad_accum": 1}
    queue = puma.Queue(Data(), 4, "cpu", 1)
    _, chains, begin = lab.reverse.make_streams(Model(), queue, **settings)
    before = chains.batch(0).hidden
    score = torch.arange(6.0).expand(4, 6)
    chains.advance(score, torch.ones(4, 6))  # sure of all: no fast-forward all the same
    assert begin == 0
    for row, after in zip(before, chains.hidden[0], strict=True):
        shown = (row & ~after).nonzero()[:, 0].tolist()
        if after.sum() < row.sum():  # else the chain has ended
            assert shown == row.nonzero()[: len(shown), 0].tolist()
