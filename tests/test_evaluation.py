import json

import pytest
import torch
from conftest import run_script, train

import checkpoint
import evaluation
from evaluation import Sampler, grid

GRID = ["--grid", "--policies=['top_k','margin']", "--reveals=[1,3]", "--taus=[None]"]


@pytest.fixture
def run(trained, tmp_path):
    """A folder with the checkpoint of a small 4x4 run; see conftest.py."""
    (tmp_path / "checkpoint.pt").symlink_to(trained / "checkpoint.pt")
    return tmp_path


def evaluate(run, *flags):
    return run_script("eval.py", f"--out_dir={run}", "--device=cpu", *flags)


def rows(run):
    return json.loads((run / "grid.json").read_text())


def test_a_grid_is_every_combination():
    found = grid(["top_k", "random"], [1, 2], [None, 0.9], [0.1], [0.0, 0.5])
    assert len(found) == len(set(found)) == 2 * 2 * 3 * 2
    assert Sampler("random", 2, 0.9, None, 0.5) in found
    assert str(found[0]) == "top_k, 1 per step"
    assert str(found[-1]) == "random, entropy below 0.1, else 2 per step, T = 0.5"
    assert str(found[2]) == "top_k, surer than 0.9, else 1 per step"


def test_rows_agree_with_the_sampler(run):
    printed = evaluate(run, *GRID)
    assert printed == (run / "grid.md").read_text() and len(rows(run)) == 4
    for row in rows(run):
        alone = run_script(
            "sample.py", f"--out_dir={run}", "--device=cpu",
            f"--policy={row['policy']}", f"--reveal={row['reveal']}",
        )  # fmt: skip
        assert f"solved {round(row['accuracy'] * 40)} of 40 " in alone
        assert f"{row['tokens_per_step']:.2f} tokens per step" in alone
        assert f"{row['forward_passes']} forward passes" in alone
        low, high = row["interval"]
        assert row["examples"] == 40 and 0 <= low <= row["accuracy"] <= high <= 1


def test_an_interrupted_grid_keeps_its_rows(run, monkeypatch):
    solve, calls = evaluation.solve, []

    def counted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return solve(*args)

    monkeypatch.setattr(evaluation, "solve", counted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(run, *GRID)
    before = rows(run)
    assert len(before) == 2
    evaluate(run, *GRID)
    assert len(calls) == 5 and rows(run)[:2] == before and len(rows(run)) == 4
    evaluate(run, *GRID, "--tau_entropies=[0.2]", "--policies=['top_k']")
    assert len(calls) == 7 and [row["tau_entropy"] for row in rows(run)] == [None] * 4 + [0.2] * 2


def test_other_weights_are_measured_anew(run):
    evaluate(run, *GRID, "--reveals=[2]")
    before, state = rows(run), checkpoint.load(run / "checkpoint.pt")
    (run / "checkpoint.pt").unlink()
    state["ema"]["lm_head.weight"] = state["ema"]["lm_head.weight"].flip(0)
    checkpoint.save(state, run / "checkpoint.pt")
    shown = evaluate(run, *GRID, "--reveals=[2]", "--examples=20")
    assert rows(run)[:2] == before and [row["examples"] for row in rows(run)] == [40, 40, 20, 20]
    assert len(shown.splitlines()) == 4  # those of the old weights are not in the table


def test_nelbo(run):
    printed = evaluate(run, "--nelbo", "--masks=3", "--examples=30")
    found = json.loads((run / "nelbo.json").read_text())
    assert f"{found['per_token']:.5g} +- " in printed and found["examples"] == 30
    assert found["per_token"] == found["per_token_without_padding"]  # a grid has none
    assert 0 < found["per_token_error"] < 0.1 * found["per_token"]
    assert 0.8 < found["per_token"] < 1.7  # log 4 = 1.39 where nothing is learned
    assert not [*run.glob("*.tmp")]


def test_the_checksum_tells_weights_apart():
    one, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    other.load_state_dict(one.state_dict())
    assert checkpoint.checksum(one) == checkpoint.checksum(other)
    other.bias.data[1] += 1e-6
    assert checkpoint.checksum(one) != checkpoint.checksum(other)


@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "nothing to do"),
        (["--nelbo", "--masks=0"], "masks 0: expected at least 1"),
        (["--grid", "--examples=0"], "examples 0"),
        (["--grid", "--policies=['best']"], "unknown policy 'best'"),
        (["--grid", "--policies=[3]"], "unknown policy 3"),
        (["--grid", "--reveals=[0]"], "reveal 0"),
        (["--grid", "--reveals=[1.5]"], "reveal 1.5"),
        (["--grid", "--temperatures=[None]"], "temperature None"),
        (["--grid", "--taus=['x']"], "tau='x': expected a probability"),
        (["--grid", "--taus=[]", "--tau_entropies=[-1]"], "tau_entropy=-1: expected nats"),
        (["--grid", "--taus=[]"], "an empty grid"),
        (["--grid", "--out_dir=nowhere"], "no checkpoint"),
    ],
)
def test_mistakes_are_named(flags, message, trained):
    with pytest.raises(SystemExit, match=message):
        evaluate(trained, *flags)


def test_a_damaged_table_is_named(run):
    (run / "grid.json").write_text("[")
    with pytest.raises(SystemExit, match=r"grid\.json is damaged, move it away"):
        evaluate(run, *GRID)


def test_a_causal_model_has_one_sampler_for_each_temperature(tmp_path):
    train(tmp_path, "--method=ar", "--max_iters=1")
    evaluate(tmp_path, *GRID, "--temperatures=[0,1]")
    found = [(row["policy"], row["temperature"], row["tokens_per_step"]) for row in rows(tmp_path)]
    assert found == [("left_to_right", 0, 1), ("left_to_right", 1, 1)]
