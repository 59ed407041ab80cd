"""race.py: curves as text against a worked example; two tiny runs, and a repeated command."""

import pytest
from conftest import TINY, metrics, run_script

import train
from studies import race
from studies.comparison import Run


def test_curves_are_drawn_and_named_where_they_end(monkeypatch):
    """PUMA is at 1/2, 3/4 (drawn as 1) and 1 after 4, 6 and 8 updates; at the end random masks, at
    0.9, are in the same row. Before an evaluation nothing is known."""
    monkeypatch.setattr(race, "WIDTH", 4)
    monkeypatch.setattr(race, "HEIGHT", 3)
    points = {"mdm": [(4, 0.0), (8, 0.9)], "puma": [(4, 0.5), (8, 1.0)]}
    assert race.as_text(points).splitlines() == [
        "100 % |  ## random masks 90.0%",
        "      | #o  PUMA 100.0%",
        "  0 % | o",
        "      +----",
        "    8 updates",
    ]


@pytest.mark.parametrize("end, place", [(0.75, "ahead"), (0.5, "not ahead")])
def test_the_last_lines_say_both_numbers(end, place, tmp_path, capsys):
    ends, runs = {"mdm": 0.5, "puma": end}, []
    for method, share in ends.items():
        config = {"method": method, "seed": 1, "test_examples": 40}
        runs.append(Run(str(tmp_path / method), config, "top_k", {"top_k": {10: 0.0, 20: share}}))
    race.show(runs)
    said = (
        f"random masks 50.0%, PUMA {end:.1%} of 40 held-out problems (one seed): PUMA is {place}."
    )
    assert said in capsys.readouterr().out.splitlines()
    assert (tmp_path / "puma.png").exists()


def evaluations(out):
    return [line["accuracy"]["top_k"] for line in metrics(out) if line["type"] == "eval"]


@pytest.fixture
def kept_settings():
    """Of train.py, as a race in this process sets them."""
    before = dict(vars(train))
    yield
    vars(train).update(before)


@pytest.mark.slow
def test_a_race_is_run_once_and_shown_again(tmp_path, kept_settings):
    command = ["studies/race.py", *TINY, "--name=tiny", f"--out_dir={tmp_path}"]
    first = run_script(*command)
    masks, puma = folders = [tmp_path / f"tiny_{method}_1" for method in ("mdm", "puma")]
    shares = [evaluations(out) for out in folders]
    for name, (half, end) in zip(("random masks", "PUMA"), shares, strict=True):
        assert f"{name}: update 10, {half:.1%} solved" in first
        assert f"{name}: update 20, {end:.1%} solved" in first
    said = f"random masks {shares[0][-1]:.1%}, PUMA {shares[1][-1]:.1%} of 40 held-out problems"
    assert said in first
    records = [(out / "metrics.jsonl").stat() for out in folders]
    again = run_script(*command)
    assert said in again and "update 20, " not in again
    assert [(out / "metrics.jsonl").stat() for out in folders] == records
    run_script(*command, "--lr=2e-3")
    assert (masks / "before.1").is_dir() and (puma / "before.1").is_dir()
