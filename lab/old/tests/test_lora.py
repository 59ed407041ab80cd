"""A pretrained model of Dream's form, made here, fine-tuned with adapters; against peft's."""

import math
import shutil
from importlib.util import find_spec

import pytest
import torch
from conftest import metrics, run_script, same, train
from toys import rewrite_config

from engine import checkpoint
from losses import ChunkedObjective
from model import Transformer
from pretrained import hf, lora
from runs.saved import open_run

pytestmark = pytest.mark.skipif(
    not (find_spec("peft") and find_spec("transformers")), reason="needs peft and transformers"
)  # imported below, where they are needed: that takes seconds
LORA = [
    "--dataset=text", "--train_examples=300", "--test_examples=4", "--k_schedule=[(0,16)]",
    "--batch_size=1", "--buffer=8", "--lora_rank=8", "--lora_alpha=16", "--ema=0", "--lr=1e-2",
    "--min_lr=1e-2", "--gradient_checkpointing=True", "--max_iters=3", "--eval_policies=['top_k']",
    "--eval_reveal=60", "--eval_interval=100",
]  # fmt: skip


@pytest.fixture(scope="module")
def dream(tmp_path_factory):
    """1.4M random weights in Dream's form, for the ids of the word problems: 1,500 ends a text."""
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=1536, hidden_size=192, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=256,
        rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )  # fmt: skip
    theirs = transformers.Qwen2ForCausalLM(config)
    theirs.lm_head.weight.data *= 5  # at its initial scale a frozen head can say little
    folder = tmp_path_factory.mktemp("dream")
    theirs.save_pretrained(folder, max_shard_size="4MB")
    rewrite_config(folder, model_type="Dream", mask_token_id=1510, pad_token_id=1500)
    return folder


@pytest.fixture(scope="module")
def tuned(dream, tmp_path_factory):
    out = tmp_path_factory.mktemp("tuned")
    train(out, *LORA, f"--init_from=hf:{dream}", "--max_iters=25")
    return out


def test_the_loss_falls_and_the_checkpoint_holds_adapters_only(tuned):
    before = next(line["loss"] for line in metrics(tuned) if line["type"] == "train")
    (after,) = (line["val_loss"] for line in metrics(tuned) if line["type"] == "eval")
    assert after < before - 1 and after < math.log(1536) - 1  # chains move on: no loss to compare
    saved = checkpoint.load(tuned / "checkpoint.pt")
    adapters = saved["model"]["weights"]
    assert len(adapters) == 2 * 7 * 2 == len(saved["optimizer"]["state"])
    assert all(".lora_" in name for name in adapters) and "ema" not in saved
    assert saved["model_args"]["mask_token"] == 1510


def test_adapters_load_into_transformers_with_peft_and_give_the_same_logits(tuned, dream, tmp_path):
    import peft

    run_script("pretrained/export.py", f"--out_dir={tuned}", f"--folder={tmp_path / 'adapter'}")
    run_script(
        "pretrained/export.py", f"--out_dir={tuned}", f"--folder={tmp_path / 'merged'}", "--merge"
    )
    cards = [(tmp_path / name / "README.md").read_text() for name in ("adapter", "merged")]
    assert f"LoRA adapters of {dream.name}," in cards[0] and "trust_remote_code=True" in cards[1]
    assert f'"init_from": "hf:{dream.name}"' in cards[0] and not any(str(dream) in c for c in cards)
    ours, config, *_ = open_run(tuned / "checkpoint.pt")
    assert config["init_from"] == f"hf:{dream}"
    x = torch.randint(1510, (2, 100))
    with torch.no_grad():
        expected = ours.logits(ours(x))[:, 1:, :1510]
    args = hf.read_shape(dream) | {"length": 176}
    own = peft.PeftModel.from_pretrained(
        hf.load(dream, args), tmp_path / "adapter"
    ).base_model.model
    assert own(x).equal(ours(x))
    for folder, adapter in ((dream, tmp_path / "adapter"), (tmp_path / "merged", None)):
        theirs = as_qwen2(folder, tmp_path / f"{folder.name}-qwen2")
        if adapter:
            with torch.no_grad():  # what follows is not true of the base alone
                assert not theirs(x).logits[:, :-1, :1510].allclose(expected, atol=1)
            theirs = peft.PeftModel.from_pretrained(theirs, adapter)
        with torch.no_grad():
            found = theirs(x, attention_mask=torch.zeros(2, 1, 100, 100)).logits
        # Sums are in another order: on some processors the logits differ by more than 1e-3
        torch.testing.assert_close(found[:, :-1, :1510], expected, atol=1e-2, rtol=1e-3)


def as_qwen2(folder, copy):
    """transformers has no Dream: its Qwen2, with an attention mask that hides nothing, is it."""
    import transformers

    copy.mkdir(exist_ok=True)
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    rewrite_config(copy, model_type="qwen2")
    return transformers.Qwen2ForCausalLM.from_pretrained(copy, attn_implementation="eager").eval()


def test_a_resumed_run_ends_in_the_same_weights(dream, tmp_path):
    train(tmp_path / "whole", *LORA, f"--init_from=hf:{dream}")
    train(tmp_path / "parts", *LORA, f"--init_from=hf:{dream}", "--max_iters=1")
    train(tmp_path / "parts", *LORA, "--init_from=resume")
    whole, parts = (checkpoint.load(tmp_path / run / "checkpoint.pt") for run in ("whole", "parts"))
    assert same(whole, parts)


def test_resuming_notices_another_base(dream, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(dream, base)
    train(tmp_path / "run", *LORA, f"--init_from=hf:{base}", "--max_iters=0")
    with torch.no_grad():
        model = hf.load(base, args := hf.for_diffusion(base, 176, 1502, 1500, 1501))
        model.lm_head.weight[0] += 1
    shutil.rmtree(base)
    hf.save(model, args, base)
    with pytest.raises(SystemExit, match="not those that the adapters were trained on"):
        train(tmp_path / "run", *LORA, "--init_from=resume")


@pytest.mark.slow
def test_two_processes_train_float32_adapters_of_a_bfloat16_base(dream, tmp_path):
    flags = "--max_iters=2", "--batch_size=2", "--dtype=bfloat16"
    train(tmp_path, *LORA, f"--init_from=hf:{dream}", *flags, processes=2)
    saved = checkpoint.load(tmp_path / "checkpoint.pt")
    assert len(saved["ranks"]) == 2
    assert all(w.any() for name, w in saved["model"]["weights"].items() if ".lora_B" in name)
    model = open_run(tmp_path / "checkpoint.pt").model
    kinds = {p.requires_grad: p.dtype for p in model.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}


@pytest.mark.slow
def test_without_adapters_all_weights_are_trained_and_kept(dream, tmp_path):
    start = f"--init_from=hf:{dream}"
    train(tmp_path, *LORA, start, "--lora_rank=0", "--ema=0.999", "--max_iters=1")
    saved = checkpoint.load(tmp_path / "checkpoint.pt")
    assert len(saved["model"]) == len(saved["ema"]) == 2 * 12 + 3
    train(tmp_path, *LORA, "--init_from=resume", "--lora_rank=0", "--ema=0.999", "--max_iters=2")
    run_script("pretrained/export.py", f"--out_dir={tmp_path}", f"--folder={tmp_path / 'folder'}")
    ours = open_run(tmp_path / "checkpoint.pt").model
    args = hf.read_shape(tmp_path / "folder") | {"length": 176}
    again = hf.load(tmp_path / "folder", args)
    assert same(ours.state_dict(), again.state_dict()) and not args["causal"]


def test_adapters_alone_have_gradients():
    model = Transformer(90, 89, 12, dim=32, layers=2, heads=4, mlp=48)
    lora.Adapters(model, 4, 8)
    own = [p for p in model.parameters() if p.requires_grad]
    for p in own:
        torch.nn.init.normal_(p)  # half of them start as zeros
    x0 = torch.randint(89, (3, 12))
    hidden = (torch.arange(12) > 5).expand(3, 12)
    ChunkedObjective(model)(x0.masked_fill(hidden, 89), x0, hidden)[0].backward()
    assert len(own) == 2 * 7 * 2 and all(p.grad.any() for p in own)
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
