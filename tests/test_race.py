"""race.py: curves as text against a worked example; two tiny runs, and a repeated command."""

import re

import pytest
from conftest import TINY, metrics, run_script

from studies import race


def test_curves_are_drawn_and_named_where_they_end(monkeypatch):
    """PUMA is at 1/2 and 1 after 4 and 8 updates; at 2, 4, 6, 8 the rows are those of the levels
    1/2, 1/2, 3/4 (up, as ties go to even) and 1; random masks reach the level 1 too, 0.9 of it."""
    monkeypatch.setattr(race, "WIDTH", 4)
    monkeypatch.setattr(race, "HEIGHT", 3)
    points = {"mdm": [(4, 0.0), (8, 0.9)], "puma": [(4, 0.5), (8, 1.0)]}
    assert race.as_text(points).splitlines() == [
        "100 % |  ## random masks 90.0%",
        "      |##o  PUMA 100.0%",
        "  0 % |oo",
        "      +----",
        "    8 updates",
    ]


def evaluations(out):
    return [line["accuracy"]["top_k"] for line in metrics(out) if line["type"] == "eval"]


@pytest.mark.slow
def test_a_race_is_run_once_and_shown_again(tmp_path):
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
    with pytest.raises(SystemExit):
        run_script(*command, "--lrr=1")
    assert not re.search("Traceback", again)
