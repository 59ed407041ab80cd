"""contexts.py and trajectories.py: what contexts are and in which order cells are revealed."""

import json

import numpy as np
import pytest
import torch
from conftest import run_script, train
from toys import Table

import policies
import sudoku
from data.sudoku.generate import make_puzzles, singles
from studies import contexts, trajectories
from studies.weights import kept


def slow_singles(solution, visible, box):
    """Cells (L,) that are naked or hidden singles, from the candidates of each cell."""
    n, units = sudoku.side(box), sudoku.unit_cells(box).tolist()
    candidates = []
    for cell in range(n * n):
        peers = {other for unit in units if cell in unit for other in unit}
        seen = {int(solution[other]) for other in peers if visible[other]}
        candidates.append(set() if visible[cell] else set(range(1, n + 1)) - seen)
    found = {cell for cell, digits in enumerate(candidates) if len(digits) == 1}
    for unit in units:
        for cell in unit:
            if int(solution[cell]) in candidates[cell]:
                elsewhere = [o for o in unit if o != cell and int(solution[cell]) in candidates[o]]
                found |= {cell} if not elsewhere else set()
    return [cell in found for cell in range(n * n)]


@pytest.mark.parametrize("box, count", [((2, 2), 70), ((2, 3), 70), ((3, 3), 20)])
def test_singles_equal_a_slow_loop(box, count):
    _, solutions = make_puzzles(count, box, seed=1)
    rng = np.random.default_rng(0)
    visible = rng.random(solutions.shape) < rng.random((count, 1))
    found = singles(solutions, visible, box)
    expected = [slow_singles(s, v, box) for s, v in zip(solutions, visible, strict=True)]
    assert found.tolist() == expected and found.any() and (~found & ~visible).any()


def test_summary_of_contexts_worked_by_hand():
    """A 4x4 grid: one cell hidden in the first row, the whole of the second."""
    solution = torch.tensor([1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]) - 1
    hidden = torch.zeros(2, 16, dtype=torch.bool)
    hidden[0, 0] = True  # a single; the model gives it 1/2
    hidden[1] = True  # nothing visible, no single; 1/4 each
    nll = torch.full((2, 16), 4.0).log()
    nll[0, 0] = torch.tensor(2.0).log()
    found = contexts.summary(solution.expand(2, 16), hidden, nll, (2, 2))
    assert found["hidden"] == 8.5 and found["one_away"] == found["learnable"] == 0.5
    assert found["loss_near"] == pytest.approx(np.log(2) / 2)
    assert found["loss_far"] == pytest.approx(np.log(4) / 2)
    assert found["by_hidden"] == [[1, 1, 1.0], [16, 1, 0.0]]
    nll[0, 0] = -torch.tensor(0.95).log()
    known = contexts.summary(solution.expand(2, 16), hidden, nll, (2, 2))
    assert known["one_away"] == 0.5 and known["learnable"] == 0


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
    printed = run_script(
        "studies/contexts.py", f"--out_dir={tmp_path}", "--contexts=20", "--batch_size=16"
    )
    rows = json.loads((tmp_path / "contexts.json").read_text())["rows"]
    assert [(row["iteration"], row["contexts"]) for row in rows] == [
        (i, name) for i in (0, 5, 10) for name in ("chains", "random")
    ]
    assert printed.count("\n") == 8


def test_runs_without_such_contexts_are_named(trained, tmp_path, refused):
    said = refused(run_script, "studies/trajectories.py", f"--out_dir={trained}")
    assert "no weights to compare: train it with --keep_every" in said
    assert "no checkpoint" in refused(run_script, "studies/contexts.py", f"--out_dir={tmp_path}")
    with pytest.raises(ValueError, match="was trained on sudoku: expected addition"):
        kept(trained, "addition")
    train(tmp_path, "--method=ar", "--max_iters=1")
    with pytest.raises(ValueError, match="it has no such chain"):
        kept(tmp_path)
