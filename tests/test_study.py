"""trajectories.py: in which order cells are revealed."""

import itertools
import json

import numpy as np
import pytest
import torch
from conftest import run_script, train
from toys import MASK, L, Table, make_model, make_problems

import policies
from runs.watch import probabilities
from studies import trajectories
from studies.weights import kept


def test_chain_reveals_in_the_order_of_the_policy():
    hidden = torch.ones(2, 8, dtype=torch.bool)
    hidden[1, :6] = False
    x0 = torch.zeros(2, 8, dtype=torch.long)
    table = Table(torch.arange(8.0)[:, None] * 0.5 * torch.eye(5)[0])  # the surer the later
    found = trajectories.chain(table, x0, hidden, policies.top_k, 2, None)
    assert found.tolist() == [[4, 4, 3, 3, 2, 2, 1, 1], [0, 0, 0, 0, 0, 0, 2, 1]]  # 4 stages
    sure = torch.tensor(2.5).exp() / (torch.tensor(2.5).exp() + 3)  # of place 5
    found = trajectories.chain(table, x0, hidden, policies.top_k, 2, sure.item() - 1e-4)
    # Three at once; one to reach stage 2's share; two; and what is left at the last stage.
    assert found[0].tolist() == [4, 4, 3, 3, 2, 1, 1, 1]
    assert found[1].tolist() == [0, 0, 0, 0, 0, 0, 1, 1]


def test_chain_hands_states_on():
    """At each step the surest are revealed, by the probabilities of --watch, which carry states."""
    model, (x, hidden) = make_model(carry=True), make_problems()
    model.model.carry_norm.weight.data.fill_(1)
    x0 = torch.where(hidden, torch.arange(L) % MASK, x)
    at = trajectories.chain(model, x0, hidden, policies.top_k, 2, None)
    for row, steps in zip(x0, at, strict=True):
        for step, p in enumerate(itertools.chain(*probabilities(model, row, steps)), 1):
            sure = p.amax(-1)
            now, later = sure[steps == step], sure[steps > step]
            assert not len(later) or now.min() >= later.max()


def test_distance_is_that_of_the_paper():
    steps = torch.tensor([[[1, 2, 3, 0]], [[3, 2, 1, 0]], [[2, 2, 1, 0]]])  # (T, 1 puzzle, 4 cells)
    assert trajectories.distances(steps).tolist() == [3 / 4, 1 / 4, 0]


def test_both_commands_on_a_run(tmp_path):
    train(tmp_path, "--keep_every=5", "--max_iters=10", "--tau=0.3")
    run_script("studies/trajectories.py", f"--out_dir={tmp_path}", "--puzzles=20")
    found = json.loads((tmp_path / "trajectories.json").read_text())
    assert found["iterations"] == [0, 5, 10] and found["d_abs"]["chain"][-1] == 0
    steps, chains = (np.array(found["steps"][name]) for name in ("sampler", "chain"))
    assert steps.shape == chains.shape == (3, 20, 16)
    blank = steps[0] > 0
    assert ((chains > 0) == blank).all() and not blank.all()
    assert (np.sort(steps[0][0][blank[0]]) == np.arange(blank[0].sum()) // 2 + 1).all()  # 2 a step


def test_runs_without_such_contexts_are_named(trained, tmp_path, refused):
    said = refused(run_script, "studies/trajectories.py", f"--out_dir={trained}")
    assert "no weights to compare: train it with --keep_every" in said
    with pytest.raises(ValueError, match="was trained on sudoku: expected text"):
        kept(trained, "text")
    train(tmp_path, "--method=ar", "--max_iters=1")
    with pytest.raises(ValueError, match="it has no such chain"):
        kept(tmp_path)
