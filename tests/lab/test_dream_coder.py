"""A small base in Dream's form, fine-tuned with adapters; against transformers and peft."""

import json
import runpy
import shutil
import signal
import sys

import pytest
import torch
from conftest import ROOT, command, run, same, state

import checkpoint
import sample
from policies import top_k

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
dream_coder = pytest.importorskip("lab.dream_coder")
MASK = 4  # of 4x4 puzzles; the base has 100 ids


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Random weights in several files, and config.json in the form of Dream's."""
    torch.manual_seed(0)
    form = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    form |= dict(vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    form |= dict(num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3)
    net = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**form))
    net.save_pretrained(folder := tmp_path_factory.mktemp("dream"), max_shard_size="40KB")
    old = {"rope_parameters": None, "rope_theta": 5000.0}
    return edit(folder, model_type="Dream", mask_token_id=MASK, **old)


def edit(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    return folder


def model_of(base):
    torch.manual_seed(1)  # as train.py
    return dream_coder.make_model(5, MASK, base=str(base), rank=4, alpha=8)


def flags(base, variant="lab.dream_coder"):
    options = {"base": str(base), "rank": 4, "alpha": 8}
    return [f"--variant={variant}", f"--options={options}", "--muon=False", "--ema=0",
            "--lr=1e-2", "--min_lr=1e-2", "--grad_accum=2", "--save_interval=100"]  # fmt: skip


def train(patch, puzzles, out, base, *more):
    """train.py in this process; its globals."""
    patch.setattr(signal, "signal", lambda *_: None)
    patch.chdir(ROOT)
    patch.setattr(sys, "argv", command(puzzles, out, *flags(base), *more)[1:])
    return runpy.run_path("train.py", run_name="__main__")


def test_logits_are_those_of_transformers_and_peft(base, tmp_path):
    """Of Qwen2 with a mask that hides nothing, its adapters loaded by peft; one row further on."""
    model = model_of(base)
    for p in model.adapters:
        torch.nn.init.normal_(p)
    model.base[0].save_pretrained(tmp_path)
    qwen2 = edit(shutil.copytree(base, tmp_path / "qwen2"), model_type="qwen2")
    theirs = transformers.Qwen2ForCausalLM.from_pretrained(qwen2, attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path)
    x = torch.randint(4, (3, 12))
    with torch.no_grad():
        logits = theirs(x, attention_mask=torch.zeros(3, 1, 12, 12)).logits
        logits[..., MASK] = -torch.inf
        expected = torch.cat((logits[:, :1], logits[:, :-1]), 1)
        torch.testing.assert_close(model.logits(model(x)), expected, atol=1e-4, rtol=1e-4)


def test_only_adapters_are_trained_averaged_and_saved(base, puzzles, tmp_path, monkeypatch):
    """The base exists once; a resumed run ends as the whole one; the sampler fills in its rows."""
    done = train(monkeypatch, puzzles, tmp_path / "a", base, "--max_iters=12")
    models = model_of(base), done["model"], done["averaged"]
    for before, after, average in zip(*(model.net.parameters() for model in models), strict=True):
        assert before.equal(after) != before.requires_grad and after.equal(average)
        assert (after is average) != before.requires_grad
    whole = state(tmp_path / "a")
    assert {*whole["averaged"]} == {f"adapters.{i}" for i in range(2 * 7 * 2)} | {"_extra_state"}
    assert len(whole["optimizer"]["state"]) == 2 * 7 * 2
    train(monkeypatch, puzzles, tmp_path / "b", base, "--max_iters=5")
    train(monkeypatch, puzzles, tmp_path / "b", base, "--max_iters=12", "--resume")
    assert same(whole, state(tmp_path / "b"))
    saved, _ = checkpoint.load_model(tmp_path / "b", "cpu")
    x0, prompt = (torch.as_tensor(part) for part in done["problem"].test[:4])
    x, _ = sample.generate(saved, x0.long(), ~prompt, top_k)
    assert x[prompt].equal(x0[prompt].long()) and (x != MASK).all()
    assert saved(x).equal(done["model"](x))


def test_another_base_is_refused(base, puzzles, tmp_path, monkeypatch):
    base = shutil.copytree(base, tmp_path / "base")
    train(monkeypatch, puzzles, tmp_path / "a", base, "--max_iters=1")
    net, _ = dream_coder.hf.load(base)
    net.lm_head.weight.data[0] += 1
    net.save_pretrained(base)
    with pytest.raises(SystemExit, match="not those that the adapters were trained on"):
        train(monkeypatch, puzzles, tmp_path / "a", base, "--resume")
    edit(base, mask_token_id=80)
    with pytest.raises(SystemExit, match="another vocabulary or mask token"):
        model_of(base)
    edit(base, num_hidden_layers=3, layer_types=None)
    with pytest.raises(SystemExit, match=r"lacks model\.layers\.2"):
        model_of(base)


@pytest.mark.slow
def test_two_processes_train_as_one(base, puzzles, tmp_path):
    own = [*flags(base, "tests.lab.fixed_dream"), "--tau=1.0", "--max_iters=6"]
    for world in 1, 2:
        code, output = run(puzzles, tmp_path / f"{world}", *own, world=world)
        assert code == 0, output
    for name, p in state(tmp_path / "1")["model"].items():
        torch.testing.assert_close(p, state(tmp_path / "2")["model"][name], atol=2e-4, rtol=1e-3)
