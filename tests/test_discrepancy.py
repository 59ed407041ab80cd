"""Training contexts and the sampler's: the discrepancy against slow loops, and two real runs."""

import json
import math

import pytest
import torch
from conftest import run_script, train

from studies import discrepancy


def test_the_discrepancy_against_a_loop_over_pairs():
    draw = torch.Generator().manual_seed(0)
    a, b = ((torch.rand(n, 6, generator=draw) < share) * 1.0 for n, share in ((5, 0.3), (7, 0.6)))

    def mean(pairs):
        values = [math.exp(-sum(x != y for x, y in zip(u, v, strict=True)) / 3) for u, v in pairs]
        return sum(values) / len(values)

    left, right = a.tolist(), b.tolist()
    within = [[(u, v) for u in s for v in s if u is not v] for s in (left, right)]
    expected = sum(map(mean, within)) - 2 * mean([(u, v) for u in left for v in right])
    assert discrepancy.mmd(a, b, 3) == pytest.approx(expected, abs=2e-6) and expected > 0.1
    assert discrepancy.mmd(a, b[:1], 3) is None


def test_an_example_counts_once_in_a_tenth():
    hidden = torch.ones(6, 10, dtype=torch.bool)
    hidden[0, :3] = hidden[1, 4:7] = hidden[2, :3] = hidden[3, 0] = hidden[4, 0] = False
    number = torch.tensor([7, 7, 8, 7, 8, 9])
    groups = discrepancy.one_a_tenth(hidden, torch.full((6,), 10), number)
    assert [len(part) for part in groups] == [0] * 7 + [2, 0, 3]
    assert hidden[2].float().tolist() in groups[7].tolist()


def test_a_run_of_either_method(tmp_path):
    """Chains from the left meet what a sampler from the left meets; random masks differ from it,
    and chains that end at once leave most of it unmet.
    """
    found = {}
    for arm, flags in {
        "mdm": ["--method=mdm"],
        "one": ["--tau=0", "--second_visit=False"],
        "puma": ["--tau=None", "--k_schedule=[(0,1)]"],
    }.items():
        flags += ["--policy=left_to_right", "--eval_reveal=1"]
        train(out := tmp_path / arm, "--max_iters=30", *flags)
        printed = run_script("studies/discrepancy.py", f"--out_dir={out}", "--examples=40")
        assert "| tenth | met | trained | mmd |" in printed
        found[arm] = json.loads((out / "discrepancy.json").read_text())
    assert found["one"]["unmet"] > 0.5 > found["mdm"]["unmet"] == found["puma"]["unmet"] == 0
    assert abs(found["puma"]["mmd"]) < 0.02 < 0.1 < found["mdm"]["mmd"]
