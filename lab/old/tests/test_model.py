import pytest
import torch
from toys import perturbed

from model import Transformer
from sample import Sampler, generate

SHAPE = dict(vocab_size=50, mask_token=49, length=40, dim=64, layers=3, heads=8, mlp=96)


def randomised(**options):
    torch.manual_seed(0)
    return perturbed(Transformer(**SHAPE, **options))


def test_long_sequences_take_the_fused_kernel_and_agree(monkeypatch):
    monkeypatch.setitem(SHAPE, "length", 200)
    model = randomised()
    x = torch.randint(50, (2, 200))
    long = model(x)[:, :100]
    import model as module

    monkeypatch.setattr(module, "SHORT", 10**9)
    torch.testing.assert_close(long, model(x)[:, :100], atol=1e-4, rtol=1e-4)


def test_causal_rows_never_see_their_own_token():
    model = randomised(causal=True, shifted=True)
    x = torch.randint(48, (1, 12))
    for place in (0, 5):
        changed = x.clone()
        changed[0, place] = 48
        same = model(x) == model(changed)
        assert same[0, : place + 1].all() and not same[0, place + 1 :].all(1).any()
    with pytest.raises(ValueError, match="shifted"):
        Transformer(**SHAPE, causal=True)


def test_shifted_bidirectional_is_the_plain_model_one_row_down():
    plain, shifted = randomised(), randomised(shifted=True)
    x = torch.randint(50, (2, 9))
    h = plain(x)
    torch.testing.assert_close(shifted(x), torch.cat((h[:, :1], h[:, :-1]), 1))


def test_parameter_counts_of_the_paper():
    with torch.device("meta"):
        sudoku = Transformer(10, 9, 81, dim=256, layers=8, heads=8, mlp=768)
        text = Transformer(151645, 151644, 512, dim=512, layers=14, heads=8, mlp=1536, tied=True)
    assert sum(p.numel() for p in sudoku.parameters()) == 6_831_360
    assert sum(p.numel() for p in text.parameters()) == 125_388_800


def test_initialisation():
    torch.manual_seed(0)
    model = Transformer(**SHAPE)
    std = {name: p.std().item() for name, p in model.named_parameters() if p.dim() == 2}
    assert std["model.layers.0.mlp.up_proj.weight"] == pytest.approx(0.02, rel=0.05)
    assert std["model.layers.0.mlp.down_proj.weight"] == pytest.approx(0.02 / 6**0.5, rel=0.05)
    logits = model.logits(model(torch.full((1, 40), 49)))
    assert logits.softmax(-1).max() < 0.05  # an untrained model is sure of nothing


@pytest.mark.parametrize("block", [0, 4])
def test_two_loops_are_twice_the_layers_with_the_same_weights(block):
    looped = Transformer(9, 8, 12, 16, 1, 2, 32, loops=2)
    deep = Transformer(9, 8, 12, 16, 2, 2, 32)
    twice = {k.replace("layers.0", "layers.1"): v for k, v in looped.state_dict().items()}
    deep.load_state_dict(looped.state_dict() | twice)
    x, hidden = torch.full((3, 12), 8), torch.arange(12).expand(3, 12) > 1
    x[:, :2] = 1
    (found, *_), (expected, *_) = (generate(m, x, hidden, Sampler(), block) for m in (looped, deep))
    assert (found == expected).all()
    x0 = torch.randint(8, (3, 12))
    assert looped(x, x0, block).equal(deep(x, x0, block))


def test_with_a_carry_two_loops_are_two_steps_at_the_same_tokens():
    model = randomised(carry=True)
    x, carry = torch.randint(50, (3, 20)), torch.randn(3, 20, model.carries)
    first, from_carry = model(x, carry=model(x)), model(x, carry=model(x, carry=carry))
    model.model.loops = 2
    assert model(x).equal(first) and model(x, carry=carry).equal(from_carry)


def test_gradient_checkpointing_keeps_less_and_gives_the_same_gradients():
    x = torch.randint(50, (3, 20))
    gradients, kept = [], [0, 0]

    def counted(tensor):
        kept[recompute] += 1
        return tensor

    for recompute in (False, True):
        model = randomised()
        model.model.gradient_checkpointing = recompute
        with torch.autograd.graph.saved_tensors_hooks(counted, lambda t: t):
            model(x).square().sum().backward()
        gradients.append([p.grad for p in model.model.parameters()])
    torch.testing.assert_close(*gradients, atol=0, rtol=0)
    assert kept[1] < kept[0] / 2
