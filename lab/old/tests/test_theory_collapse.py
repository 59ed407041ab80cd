from argparse import Namespace
from fractions import Fraction
from math import exp, log1p

import collapse
import pytest
import verify_collapse as script
from shipped import published

TINY = Namespace(seed=0, worlds=2, L=3, steps=300, rows=2048, calls=8)


def test_every_claim_holds_on_tiny_sizes():
    rows = [*script.laws(TINY), *script.second_visit(TINY)]
    rows += [script.run_row(name, TINY) for name in ("as published, tau=0.9", "second visit")]
    assert all(verdict for *_, verdict in rows), rows


def test_visits_of_three_tokens_by_hand():
    """K = 1, eps = 3/10. Start: confidence 17/20. One token of the answer: 31/40 / (17/20) > 9/10.

    So the second visit is the last if what is visible agrees with the answer; if not, the chain
    goes on as without tau. Stage 0 aims at 1 or 2 tokens, with equal chances; stage 1 at 2, but one
    more at least: from 1 token there is a third visit, the last, from 2 the chain is complete. One
    token disagrees with probability 3/20.
    """
    (uniform,) = script.noise_laws(seed=0, n=1, L=3)
    buffers = script.buffers(uniform, Fraction(3, 10))
    expected = 2 + Fraction(1, 2) * Fraction(3, 20)
    assert all(buffer.visits() == expected for buffer in buffers if buffer.K == 1)
    assert all(buffer.visits() == 1 for buffer in script.buffers(uniform, Fraction(19, 100)))


def test_the_world_of_two_stages_collapses_by_tau_alone():
    assert collapse.world(0.9).visits() == 1
    assert collapse.world(None).visits() == 2


def descent(steps, tau, beta=4):
    """Gradient descent of the two weights by hand: margins and loss before each step."""
    w, share = [0.0, 0.0], 0.5
    for _ in range(steps):
        start, later = w[0] + w[1], w[0] - beta * w[1]
        loss = share * log1p(exp(-start)) + (1 - share) * log1p(exp(-later))
        yield start, later, loss, share
        at_start, at_later = share / (1 + exp(start)), (1 - share) / (1 + exp(later))
        w = [w[0] + at_start + at_later, w[1] + at_start - beta * at_later]
        if 1 / (1 + exp(-start)) > tau:
            share = 1


@pytest.mark.parametrize("tau", [0.9, None])
def test_training_is_gradient_descent_by_hand(tau):
    curve = collapse.train(published, tau, 100, seed=3)
    for point, by_hand in zip(curve, descent(100, tau or 1), strict=True):
        assert point[:4] == pytest.approx(by_hand, abs=1e-12)
    assert curve[1][:2] == (-0.25, 3.5)  # w = 1/4 phi_start + 1/4 phi_later = (1/2, -3/4)
