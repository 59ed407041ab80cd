"""Against transformers: its logits on the folders that it writes, and on those that we write."""

import json

import pytest
import torch

import hf

transformers = pytest.importorskip("transformers")
SHAPE = dict(
    vocab_size=70, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
    num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=40, rms_norm_eps=1e-5,
)  # fmt: skip


def randomised(**options):
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    config = transformers.Qwen2Config(
        **SHAPE, rope_parameters=rope, attn_implementation="eager", **options
    )
    theirs = transformers.Qwen2ForCausalLM(config).eval()
    for p in theirs.parameters():  # biases and norms too: at their initial values they test nothing
        p.data.add_(0.1 * torch.randn_like(p))
    return theirs


def rewrite(folder, **values):
    """Change config.json; None removes a key."""
    config = json.loads((folder / "config.json").read_text()) | values
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


def as_dream(folder):
    """As Dream's folders are: another name, the older form of the rotary base."""
    rewrite(folder, model_type="Dream", architectures=["DreamModel"], mask_token_id=66,
            rope_parameters=None, rope_theta=5000.0, rope_scaling=None)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    randomised().save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def logits_of(theirs, x, bidirectional):
    mask = torch.zeros(len(x), 1, x.shape[1], x.shape[1]) if bidirectional else None
    with torch.no_grad():
        return theirs(x, attention_mask=mask).logits


def same_logits(ours, theirs, bidirectional):
    """Ours are theirs one position down, and minus infinity at the mask token."""
    x = torch.randint(66, (3, 40))
    with torch.no_grad():
        found = ours.logits(ours(x))[:, 1:]
    expected = logits_of(theirs, x, bidirectional)[:, :-1]
    expected[..., ours.mask_token] = -torch.inf
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard", ["1GB", "50KB"])
@pytest.mark.parametrize("dream", [False, True])
def test_both_directions(dream, shard, tied, tmp_path, monkeypatch):
    theirs = randomised(tie_word_embeddings=tied)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size=shard)
    assert (tmp_path / "theirs/model.safetensors.index.json").exists() == (shard == "50KB")
    if dream:
        as_dream(tmp_path / "theirs")
    args = hf.read_shape(tmp_path / "theirs") | {"length": 40}
    assert args["causal"] != dream and args["mask_token"] == (66 if dream else None)
    ours = hf.load(tmp_path / "theirs", args | {"mask_token": 66})
    same_logits(ours, theirs, dream)

    with torch.no_grad():
        for p in ours.parameters():
            p.add_(0.01)
    if shard == "50KB":
        monkeypatch.setattr(hf, "SHARD", 50_000)
    hf.save(ours, args | {"mask_token": 66}, tmp_path / "ours")
    assert (tmp_path / "ours/model.safetensors.index.json").exists() == (shard == "50KB")
    again = transformers.Qwen2ForCausalLM.from_pretrained(
        tmp_path / "ours", attn_implementation="eager"
    )
    same_logits(ours, again.eval(), dream)
    assert hf.read_shape(tmp_path / "ours") | {"length": 40} == args | {"mask_token": 66}
