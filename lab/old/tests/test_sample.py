import itertools
import math
import re

import pytest
import torch
from conftest import run_script
from toys import MASK, L, Table, Waits, make_model, make_problems

import tasks
from sample import Sampler, draw, generate, nucleus

ANSWER = torch.tensor([2, 0, 3, 1, 1, 0])


@pytest.fixture
def table():
    """A model that holds the answer for the likeliest."""
    return Table(2.0 * torch.nn.functional.one_hot(ANSWER, 5))


SLOW = {  # by their definitions, of one position's probabilities
    "top_k": lambda probs, i: max(probs),
    "margin": lambda probs, i: max(probs) - sorted(probs)[-2],
    "entropy": lambda probs, i: sum(p * math.log(p) for p in probs if p),
    "left_to_right": lambda probs, i: -i,
    "semi_ar_5": lambda probs, i: max(probs) - 2 * (i // 5),
}


def has_a_one(x):
    """A rule to break: whether rows (B, L) have a 1."""
    return (x == 1).any(1)


def sample_alone(model, x, hidden, sampler, broken):
    """Oracle: one problem (L,) by itself, in Python numbers: the tokens, the step of each."""
    x, left, at, step, carry = x.masked_fill(hidden, MASK).tolist(), set(), [0] * L, 0, None
    left.update(i for i in range(L) if hidden[i])
    while left:
        step += 1
        h = model(torch.tensor([x]), carry=carry)
        probs, carry = model.logits(h)[0].softmax(-1).tolist(), h if model.carries else None
        sure = [i for i in left if sampler.tau is not None and max(probs[i]) > sampler.tau]
        if sampler.tau_entropy is not None:
            sure = [i for i in left if -SLOW["entropy"](probs[i], i) < sampler.tau_entropy]
        best = sorted(left, key=lambda i: -SLOW[sampler.policy](probs[i], i))[: sampler.reveal]
        for i in sure or best:
            x[i], at[i] = probs[i].index(max(probs[i])), step
        left -= {*(sure or best)}
        if broken and 1 in x:
            left = set()
    return x, at


@pytest.mark.parametrize(
    "sampler",
    [Sampler(policy, 2) for policy in SLOW]
    + [Sampler("margin", 3, 0.5), Sampler("left_to_right", 1, 0.4)]
    + [Sampler("left_to_right", 1, tau_entropy=1.5), Sampler("top_k", 2, tau_entropy=1.4)],
    ids=str,
)
@pytest.mark.parametrize("carry, broken", [(False, None), (True, None), (True, has_a_one)])
@torch.no_grad()
def test_a_problem_has_the_result_that_it_has_alone(sampler, carry, broken):
    """However many rows share the batch; the passes are those of a list of jobs on machines."""
    model, (x, hidden) = make_model(carry=carry), make_problems(19)
    problems = zip(x, hidden, strict=True)
    alone = [sample_alone(model, *problem, sampler, broken) for problem in problems]
    assert (broken is not None) == any(MASK in row for row, _ in alone)
    steps = [max(at) for _, at in alone if max(at)]
    assert len(set(steps)) > 2
    before = x.clone(), hidden.clone()
    for size in (1, 3, 8, 19, 100):
        tokens, at, passes = generate(model, x, hidden, sampler, batch_size=size, broken=broken)
        assert list(zip(tokens.tolist(), at.tolist(), strict=True)) == alone
        busy = [0] * size
        for count in steps:
            busy[busy.index(min(busy))] += count
        assert passes == max(busy)
    assert x.equal(before[0]) and hidden.equal(before[1])


@pytest.mark.parametrize("places", [64, 512])
def test_a_model_sees_few_shapes(places):
    """All places while rows wait, then fewer in a few steps, never a third more than are needed."""
    torch.manual_seed(0)
    table, work = Table(torch.rand(40, 5)), torch.randint(1, 41, (400,))
    hidden = torch.arange(40) < work[:, None]
    _, at, passes = generate(table, hidden.long(), hidden, Sampler(reveal=1), batch_size=places)
    assert at.amax(1).equal(work) and len(table.batches) == passes
    ends = [0] * min(places, 400)  # of the jobs at each place
    for count in work.tolist():
        last = min(ends)
        ends[ends.index(last)] += count
    assert table.batches[: last + 1] == [len(ends)] * (last + 1)  # the last to wait begins
    needed = [sum(end > step for end in ends) for step in range(passes)]
    for size, working in zip(table.batches, needed, strict=True):
        assert working <= size < working * 4 / 3
    shapes = len(set(table.batches))
    assert shapes <= 1 + math.log(len(ends), 4 / 3) and shapes < len(set(needed))


@pytest.mark.parametrize("sampler", [Sampler(), Sampler("random", 1, 0.5), Sampler(temperature=1)])
@pytest.mark.parametrize(
    "block, size, options", [(0, 3, {}), (4, 7, {}), (0, 7, {"causal": True, "shifted": True})]
)
def test_the_host_waits_for_the_device_once_per_step(block, size, options, sampler, monkeypatch):
    model, (x, hidden), seen = make_model(**options), make_problems(), []
    with Waits(monkeypatch) as waits:
        model.model.register_forward_pre_hook(lambda *_: seen.append(waits.count))
        _, _, passes = generate(model, x, hidden, sampler, block, size)
    assert len(seen) == passes > 5
    assert seen[0] <= 3 and max(b - a for a, b in itertools.pairwise(seen)) <= 2
    assert waits.count <= seen[0] + 2 * passes


@pytest.mark.parametrize("block", [0, 4])
def test_what_is_sampled_depends_on_the_seed_alone(block):
    model, (x, hidden) = make_model(), make_problems()

    def sampled(seed):
        torch.manual_seed(seed)
        found = generate(model, x, hidden, Sampler("random", 1, temperature=2.0), block, 3)
        return torch.cat(found[:2])

    assert sampled(1).equal(sampled(1)) and sampled(1).ne(sampled(2)).any()


def test_a_sampler_out_of_range_is_refused(table):
    hidden = torch.ones(1, 6, dtype=torch.bool)
    for sampler, message in (
        (Sampler(reveal=0), "expected reveal >= 1"),
        (Sampler(tau=0.9, tau_entropy=0.1), "give one of them"),
    ):
        with pytest.raises(ValueError, match=message):
            generate(table, hidden.long(), hidden, sampler)


@pytest.mark.parametrize("top_p, kept", [(0.05, [2]), (0.5, [2]), (0.51, [0, 2]), (0.8, [0, 2])])
def test_nucleus_keeps_the_fewest_that_reach_its_share(top_p, kept):
    log_probs = torch.tensor([[0.3, 0.15, 0.5, 0.05, 0.0]]).log()
    assert nucleus(log_probs, top_p).isfinite().nonzero()[:, 1].tolist() == kept
    assert nucleus(log_probs.flip(-1), top_p).flip(-1).isfinite().nonzero()[:, 1].tolist() == kept


@pytest.mark.parametrize(
    "temperature, top_p", [(0.5, 1.0), (2.0, 1.0), (0.2, 0.9), (1.0, 0.9), (2.0, 0.6)]
)
def test_sampled_tokens_follow_the_tempered_distribution_of_the_nucleus(temperature, top_p):
    """Against the definition, token by token, in exact order: temperature first, then top-p."""
    torch.manual_seed(0)
    probs = torch.rand(30).pow(4)
    probs[7] = 0.0  # such as the mask token
    weights = [p ** (1 / temperature) for p in (probs / probs.sum()).tolist()]
    expected, together = [0.0] * 30, 0.0
    for i in sorted(range(30), key=lambda i: -weights[i]):
        if together < top_p:
            expected[i] = weights[i]
            together += weights[i] / sum(weights)
    expected = torch.tensor(expected) / sum(expected)
    assert (expected > 0).sum() == 29 if top_p == 1 else 1 < (expected > 0).sum() < 29
    token = draw((probs / probs.sum()).log().expand(100_000, 30), temperature, top_p)
    shares = token.bincount(minlength=30) / 100_000
    assert (shares - expected).abs().max() < 0.008 and (shares[expected == 0] == 0).all()


@pytest.mark.parametrize("top_p", [1.0, 1e-6])
def test_confidence_is_the_untempered_probability_of_the_sampled_token(table, top_p):
    """Of the model, also where the nucleus is one token."""
    seen = {}

    def spy(log_probs, confidence, position):
        seen["probs"], seen["confidence"] = log_probs.exp(), confidence
        return confidence

    torch.manual_seed(0)
    hidden = torch.ones(1, 6, dtype=torch.bool)
    sampler = Sampler(spy, 6, temperature=3.0, top_p=top_p)
    tokens, *_ = generate(table, hidden.long(), hidden, sampler)
    assert tokens[0].equal(ANSWER) == (top_p < 1)
    assert seen["confidence"].equal(seen["probs"].gather(-1, tokens[0, :, None])[:, 0])
    assert seen["confidence"].max() < 1


def test_control_characters_are_shown_escaped():
    kept = "a\tb\nc \u00e9 \u4e2d \U0001f600 \u2591 \\ '\""
    assert tasks.printable(kept) == kept
    escaped = r"\x1b[2J\x1b]0;title\x07\r\x08\x00\x7f\x9b31m\u202e\ud800"
    controls = "\x1b[2J\x1b]0;title\a\r\b\0\x7f\x9b31m\u202e\ud800"
    assert tasks.printable(controls) == escaped
    for number in [*range(32), *range(127, 160)]:
        assert (tasks.printable(chr(number)) == chr(number)) == (chr(number) in "\n\t")


def test_rare_tokens_are_drawn_as_often_as_they_should(monkeypatch):
    """Also those whose probability is below the steps of the random numbers.

    So it is with 0.1 % spread over 150,000 tokens and steps of 2^-24, where a single draw of the
    tail takes a hundred million numbers. Steps of 2^-8 and 40 tokens are the same problem, smaller.
    """
    rand, rows, V, m = torch.rand, 50_000, 41, 0.04
    monkeypatch.setattr("sample.GRID", 2.0**-8)
    monkeypatch.setattr(torch, "rand", lambda *shape, **how: (rand(*shape) * 2**8).floor() / 2**8)
    torch.manual_seed(0)
    log_probs = torch.tensor([1 - m] + [m / (V - 1)] * (V - 1)).log().expand(rows, V)
    drawn = sum((draw(log_probs, 1.0) > 0).sum().item() for _ in range(4))
    assert abs(drawn - 4 * rows * m) < 4 * math.sqrt(4 * rows * m * (1 - m))


def sample(run, *flags):
    return run_script("sample.py", f"--out_dir={run}", "--device=cpu", *flags)


def test_command_line(trained):
    """`trained` is the folder of a small 4x4 run; see conftest.py."""
    printed = sample(trained, "--prompt=1...3..........3", "--watch", "--delay=0")
    assert re.findall(r"step (\d+ of \d+)", printed) == [f"{step} of 7" for step in range(8)]
    assert printed.index("step 0\n") < printed.index("step 0 of") and "1 . | . ." in printed
    grid, verdict = printed.splitlines()[-2].split()
    assert grid[0] + grid[4] + grid[15] == "133" and "0" not in grid
    assert verdict == "solved" or verdict == "wrong"
    printed = sample(trained, "--policy=semi_ar_4", "--tau=0.9", "--temperature=0.5")
    assert "forward passes (semi_ar_4, confidence above 0.9, else 2 per" in printed


def test_a_mistake_is_named(trained, refused):
    said = refused(sample, trained, "--prompt=11..............")
    assert "ValueError: puzzle: the same clue twice" in said
    said = refused(sample, trained, f"--prompt={'.' * 81}")
    assert said.endswith("81 characters, must be 16; or --out_dir=weights/sudoku_nine")
