"""The examples: each learns to copy, solves held-out rows, and goes on exactly where it stopped."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, same

from examples import own_trainer
from model import Logits

SHAPE = dict(
    vocab_size=13, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
)


def solved(capsys):
    """The share of held-out rows solved, in %, that an example printed after some losses."""
    lines = capsys.readouterr().out.splitlines()
    assert sum("loss" in line for line in lines) >= 2, lines
    return float(lines[-1].removesuffix("% of held-out rows solved"))


def test_a_loop_of_your_own(capsys):
    own_trainer.main(steps=100)
    assert solved(capsys) > 90
    torch.manual_seed(0)
    untrained = Logits(own_trainer.Net(), own_trainer.MASK)
    assert own_trainer.share_solved(untrained) == 0


@pytest.mark.slow
def test_the_lesson_runs_from_top_to_bottom_and_prints_what_it_says(monkeypatch, capsys):
    monkeypatch.chdir(ROOT / "examples")
    monkeypatch.setattr(sys, "path", [*sys.path])  # which it extends
    names = {}
    for cell in json.loads(Path("lesson.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert all(masks < puma for masks, puma in names["pairs"].values())
    assert names["pairs"][1][0] < names["twice"] < names["pairs"][1][1]
    assert names["collapsed"]["published"] == 1 and 0.3 < names["collapsed"]["second_visit"] < 0.7
    assert all(masks > chains for masks, chains in names["early"])
    right, peeking = capsys.readouterr().out.split("10 of 10 predictions are the posterior")
    assert right.count("states, True") == 3 and "stage 3: PUM_" in right
    assert peeking.count("states, False") == 2 and "8 of 13" in peeking


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**SHAPE))  # with dropout


def modern_bert():
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    special = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
    return ModernBertForMaskedLM(ModernBertConfig(**SHAPE, **special))


@pytest.mark.slow
@pytest.mark.parametrize("model", [bert, modern_bert])
def test_the_trainer_of_transformers(model, tmp_path, capsys):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from examples import hf_trainer

    def run(folder, seed):
        torch.manual_seed(seed)
        trainer = hf_trainer.main(str(tmp_path / folder), steps=120, model=model())
        return trainer.model.state_dict(), trainer.chains.state_dict()

    whole = run("whole", seed=0)
    assert solved(capsys) > 90
    shutil.copytree(tmp_path / "whole/checkpoint-100", tmp_path / "half/checkpoint-100")
    assert same(run("half", seed=1), whole)
