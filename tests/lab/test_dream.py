"""config/dream_coder.py on a small base in Dream's form and a folder of tokens."""

import json
import shutil

import pytest
import torch
from conftest import same

pytest.importorskip("accelerate")
pytest.importorskip("peft")
import peft
import transformers
from safetensors.torch import load_file
from test_hf import command

from data import rows
from lab import hf

CODER = rows.tokenizer("bytes", "dream")
SMALL = ["config/dream_coder.py", "--lora=4", "--batch_size=8", "--max_iters=4", "--warmup=1"]


@pytest.fixture(scope="module")
def dream(tmp_path_factory):
    """Random weights in several files, config.json in the form of Dream's; a folder of tokens."""
    torch.manual_seed(0)
    size = dict(vocab_size=CODER.vocab_size + 3, hidden_size=32, intermediate_size=48)
    size |= dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    net = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**size, initializer_range=0.3))
    folder = tmp_path_factory.mktemp("dream")
    net.save_pretrained(folder / "base", max_shard_size="40KB")
    edit(folder / "base", model_type="Dream", architectures=["DreamModel"],
         mask_token_id=CODER.mask, auto_map={"AutoModel": "modeling_dream.DreamModel"})  # fmt: skip
    tokens = rows.Folder(folder / "tokens", CODER, 90, "sums")
    pairs = rows.of([(f"{i} + {i}?", f"{2 * i}") for i in range(50)])
    tokens.add(pairs, 0.5, form=rows.chat, workers=1)
    tokens.finish()
    return folder


def edit(base, **values):
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | values))


def flags(dream, *more):
    return [*SMALL, f"--model={dream}/base", f"--data={dream}/tokens", *more]


@pytest.fixture(scope="module")
def trained(dream):
    command(dream / "run", *flags(dream, "--save_interval=2"))
    return dream / "run"


def test_what_the_library_is_told(trained):
    args = torch.load(trained / "training_args.bin", weights_only=False)
    found = args.max_grad_norm, args.weight_decay, args.learning_rate
    assert found == (1.0, 0.01, 1e-5)
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 8
    kept = json.loads((trained / "puma.json").read_text())
    assert kept == {"mask_token": CODER.mask, "shift": True, "length": 90,
                    "vocab_size": CODER.vocab_size + 3}  # fmt: skip


def test_only_adapters_are_trained_and_all_checkpoints_kept(trained):
    assert {path.name for path in trained.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    saved = load_file(trained / "adapter_model.safetensors")
    assert len(saved) == 2 * 7 * 2 and all("lora_" in name for name in saved)
    assert all(p.any() for name, p in saved.items() if "lora_B" in name)  # they begin as zeros


def test_a_stopped_run_ends_as_the_whole_one(trained, dream, tmp_path):
    part = shutil.copytree(trained, tmp_path / "part")
    (part / "adapter_model.safetensors").unlink()
    shutil.rmtree(part / "checkpoint-4")
    command(part, *flags(dream, "--save_interval=2"))
    times = [(each / "checkpoint-2" / "puma.json").stat().st_mtime for each in (trained, part)]
    assert times[0] == times[1]  # it has gone on from there
    assert same(*(load_file(each / "adapter_model.safetensors") for each in (trained, part)))
    chains = (torch.load(each / "checkpoint-4" / "chains_0_of_1.pt") for each in (trained, part))
    assert same(*chains)


def test_logits_are_those_of_transformers_and_peft(trained, dream, tmp_path):
    """Of Qwen2 with a mask that hides nothing, its adapters loaded by peft; one row further on."""
    base = shutil.copytree(dream / "base", tmp_path / "base")
    edit(base, model_type="qwen2", auto_map=None)
    theirs = transformers.Qwen2ForCausalLM.from_pretrained(base, attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(theirs, trained)
    net, shift = hf.load(str(trained))
    scored = hf.Scored(net.eval(), CODER.mask, shift)
    x = torch.randint(256, (2, 90))
    with torch.no_grad():
        logits = theirs(x, attention_mask=torch.zeros(2, 1, 90, 90)).logits
        logits[..., CODER.mask] = -torch.inf
        expected = torch.cat((logits[:, :1], logits[:, :-1]), 1)
        torch.testing.assert_close(scored.logits(scored(x)), expected, atol=1e-4, rtol=1e-4)


def test_its_adapters_are_trained_on(trained, dream, monkeypatch):
    for name, value in {"model": str(trained), "data": str(dream / "tokens"), "lora": 8}.items():
        monkeypatch.setattr(hf, name, value)
    net, *_ = hf.start()
    moved = {name: p for name, p in net.named_parameters() if p.requires_grad}
    saved = load_file(trained / "adapter_model.safetensors")
    found = {name.replace(".default", ""): p for name, p in moved.items()}
    assert same(saved, dict(sorted(found.items())))


def test_rows_of_another_vocabulary_are_refused(dream, tmp_path, monkeypatch):
    base = shutil.copytree(dream / "base", tmp_path / "base")
    edit(base, mask_token_id=80)
    for name, value in {"model": str(base), "data": str(dream / "tokens"), "lora": 4}.items():
        monkeypatch.setattr(hf, name, value)
    with pytest.raises(ValueError, match="another vocabulary or mask token"):
        hf.start()
