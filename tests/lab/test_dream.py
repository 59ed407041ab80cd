"""config/dream_coder.py on a small base in Dream's form and a folder of tokens."""

import json
import shutil

import pytest
import torch

pytest.importorskip("accelerate")
pytest.importorskip("peft")
import peft
import transformers
from datasets import Dataset
from safetensors.torch import load_file
from test_hf import command

from data import rows
from data.dream_coder.prepare import SPECIAL, chat
from lab import hf

MASK, WIDTH = 256 + 23, 256 + 421  # bytes, then Dream's special tokens


@pytest.fixture(scope="module")
def dream(tmp_path_factory):
    """Random weights in several files, config.json in the form of Dream's; a folder of tokens."""
    torch.manual_seed(0)
    size = dict(vocab_size=WIDTH + 3, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    size |= dict(num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3)
    folder = tmp_path_factory.mktemp("dream")
    net = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**size))
    net.save_pretrained(folder / "base", max_shard_size="40KB")
    code = {"AutoModel": "modeling_dream.DreamModel"}
    edit(folder / "base", model_type="Dream", mask_token_id=MASK, auto_map=code)
    pairs = Dataset.from_list([{"ask": f"{i} + {i}?", "say": f"{2 * i}"} for i in range(50)])
    how = {"form": chat, "special": SPECIAL}
    rows.write(folder / "tokens", lambda: pairs, "bytes", length=90, val=0.5, **how)
    return folder


def edit(base, **values):
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | values))


@pytest.fixture(scope="module")
def trained(dream):
    small = "--lora=4 --batch_size=8 --max_iters=4 --warmup=1 --save_interval=2"
    where = f"--model={dream}/base", f"--data={dream}/tokens"
    command(dream / "run", "config/dream_coder.py", *small.split(), *where)
    return dream / "run"


def test_the_library_is_told_to_train_adapters_alone_and_keeps_all(trained):
    args = torch.load(trained / "training_args.bin", weights_only=False)
    assert (args.max_grad_norm, args.weight_decay, args.learning_rate) == (1.0, 0.01, 1e-5)
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 8
    kept = {"mask_token": MASK, "shift": True, "length": 90, "vocab_size": WIDTH + 3}
    assert json.loads((trained / "puma.json").read_text()) == kept
    assert {path.name for path in trained.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    saved = load_file(trained / "adapter_model.safetensors")
    assert len(saved) == 2 * 7 * 2 and all("lora_" in name for name in saved)


def test_logits_are_those_of_transformers_and_peft(trained, dream, tmp_path):
    """Of Qwen2 with a mask that hides nothing, its adapters loaded by peft; one row further on."""
    base = shutil.copytree(dream / "base", tmp_path / "base")
    edit(base, model_type="qwen2", auto_map=None)
    theirs = transformers.Qwen2ForCausalLM.from_pretrained(base, attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(theirs, trained)
    net, shift = hf.load(str(trained))
    scored = hf.Scored(net.eval(), MASK, shift)
    x = torch.randint(256, (2, 90))
    with torch.no_grad():
        logits = theirs(x, attention_mask=torch.zeros(2, 1, 90, 90)).logits
        logits[..., MASK] = -torch.inf
        expected = torch.cat((logits[:, :1], logits[:, :-1]), 1)
        torch.testing.assert_close(scored.logits(scored(x)), expected, atol=1e-4, rtol=1e-4)
