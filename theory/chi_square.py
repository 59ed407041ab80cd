"""The chi-square test of counts against an exact law."""

import torch

LEVEL = 1e-4  # below this p-value the shipped code contradicts the exact law


def chi_square(observed, law, n):
    """(degrees of freedom, p-value) of counts that n draws of `law` should give.

    The probability that `law` lacks is one more outcome: the chain has ended. An observed outcome
    of probability 0 refutes the law. Outcomes expected less than 5 times are merged.
    """
    ended = n - sum(observed.values())
    if any(key not in law for key in observed) or (ended and sum(law.values()) == 1):
        return 0, 0.0
    cells = [(float(p) * n, observed.get(key, 0)) for key, p in law.items()]
    cells = merge_rare([*cells, (float(1 - sum(law.values())) * n, ended)])
    statistic = sum((count - expected) ** 2 / expected for expected, count in cells)
    return len(cells) - 1, survival(statistic, len(cells) - 1)


def merge_rare(cells, least=5):
    """Merges the rarest of the (expected, observed) cells until each expects `least`."""
    cells = sorted(cells)
    while len(cells) > 1 and cells[0][0] < least:
        first, second, *rest = cells
        cells = sorted([(first[0] + second[0], first[1] + second[1]), *rest])
    return cells


def survival(statistic, dof):
    """P(chi-square with dof degrees of freedom > statistic)."""
    if dof == 0:
        return 1.0
    half = torch.tensor([dof, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1]))
