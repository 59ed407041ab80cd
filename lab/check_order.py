"""Does a chain's order depend on what it hides? A check for any implementation; copy this file.

    from check_order import check_order
    check_order(lambda x0, hidden: my_scores(x0, hidden), x0, hidden, vocab_size)

If what is revealed next depends on hidden tokens, masks say something about them, and the minimiser
of the loss is no longer the posterior (Proposition 2 of arXiv 2602.10314). The usual mistake is to
rank positions by the probability of the *true* token.
"""

import torch


def check_order(choose, x0, hidden, vocab_size, trials=10):
    """Raises AssertionError if choose(x0, hidden), (B, L), changes with tokens that are hidden.

    choose is a step of the chain, given the true tokens (B, L) and where they are hidden, (B, L)
    bool: what it reveals next, or the scores that say so. It is called with the same random state.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)  # on all devices
        expected = choose(x0, hidden)
        for trial in range(trials):
            torch.manual_seed(1 + trial)
            other = torch.where(hidden, torch.randint_like(x0, vocab_size), x0)
            torch.manual_seed(0)
            moved = (choose(other, hidden) != expected) & hidden
            assert not moved.any(), (
                f"the order depends on hidden tokens, in row {moved.nonzero()[0, 0]}"
            )
