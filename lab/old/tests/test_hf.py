"""Against transformers: its logits on the folders that it writes, and on those that we write."""

import sys

import pytest
import torch
from toys import perturbed, rewrite_config

from model import Transformer
from pretrained import hf
from runs import start

SHAPE = dict(
    vocab_size=70, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
    num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=40, rms_norm_eps=1e-5,
)  # fmt: skip


def randomised(**options):
    transformers = pytest.importorskip("transformers")  # here, for it takes a second
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    config = transformers.Qwen2Config(
        **SHAPE, rope_parameters=rope, attn_implementation="eager", **options
    )
    theirs = transformers.Qwen2ForCausalLM(config).eval()
    return perturbed(theirs)


def as_dream(folder):
    """As Dream's folders are: another name, the older form of the rotary base."""
    rewrite_config(folder, model_type="Dream", architectures=["DreamModel"], mask_token_id=66,
            rope_parameters=None, rope_theta=5000.0, rope_scaling=None)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    randomised().save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def same_logits(ours, theirs, bidirectional):
    """Ours are theirs one position down, and minus infinity at the mask token."""
    x = torch.randint(66, (3, 40))
    mask = torch.zeros(3, 1, 40, 40) if bidirectional else None
    with torch.no_grad():
        found = ours.logits(ours(x))[:, 1:]
        expected = theirs(x, attention_mask=mask).logits[:, :-1]
    expected[..., ours.mask_token] = -torch.inf
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "dream, shard, tied", [(False, "1GB", True), (False, "50KB", False), (True, "50KB", True)]
)
def test_both_directions(dream, shard, tied, tmp_path, monkeypatch):
    from_pretrained = pytest.importorskip("transformers").Qwen2ForCausalLM.from_pretrained
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
    again = from_pretrained(tmp_path / "ours", attn_implementation="eager")
    same_logits(ours, again.eval(), dream)
    assert hf.read_shape(tmp_path / "ours") | {"length": 40} == args | {"mask_token": 66}


def test_what_is_no_weight_is_kept(folder, tmp_path):
    (folder / "modeling_dream.py").write_text("code")
    as_dream(folder)
    args = hf.read_shape(folder) | {"length": 40}
    hf.save(hf.load(folder, args, dtype=torch.bfloat16), args, tmp_path / "ours", folder)
    assert (tmp_path / "ours/modeling_dream.py").read_text() == "code"
    theirs, ours = (hf.read_config(each) for each in (folder, tmp_path / "ours"))
    assert ours["dtype"] == "bfloat16" and ours["rope_theta"] == 5000.0
    assert {key: ours[key] for key in theirs if key != "dtype"} == {
        key: theirs[key] for key in theirs if key != "dtype"
    }
    (folder / "private").symlink_to(tmp_path / "ours/config.json")
    with pytest.raises(ValueError, match="private is a link out of the folder"):
        hf.save(Transformer(**args), args, tmp_path / "new", folder)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"model_type": "llama"}, "model_type 'llama'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}}, "linear"),
        ({"num_hidden_layers": None}, "lacks num_hidden_layers"),
        ({"num_hidden_layers": 4}, "missing tensors: model.layers.3.input_layernorm.weight"),
        ({"intermediate_size": 95}, r"proj.weight .*96.* does not fit config.json"),
    ],
)
def test_what_does_not_fit_is_named(values, message, folder):
    rewrite_config(folder, **values)
    with pytest.raises(ValueError, match=message):
        reads(folder)


def reads(folder):
    return hf.load(folder, hf.read_shape(folder) | {"length": 40, "mask_token": 66})


def test_broken_folders_are_named(folder, tmp_path):
    whole = (folder / "model.safetensors").read_bytes()
    for damaged in (b"", whole[:100], whole[:-4]):
        (folder / "model.safetensors").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
            reads(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        reads(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        reads(folder)
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        reads(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"\./nowhere: no such folder"):
        hf.resolve("./nowhere")


def test_hub_names_are_downloaded_and_without_network_there_is_advice(folder, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    asked, cached = [], folder.parent / ("c0" * 20)

    def download(name, revision, **_):
        asked.append((name, revision))
        return cached

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert hf.resolve("Qwen/Qwen2-0.5B") == cached and asked == [("Qwen/Qwen2-0.5B", None)]
    kept = start.pinned("hf:Qwen/Qwen2-0.5B@main")
    assert kept == f"hf:Qwen/Qwen2-0.5B@{cached.name}" == start.pinned(kept)
    assert asked[1:] == [("Qwen/Qwen2-0.5B", "main")] and start.pinned("scratch") == "scratch"

    def offline(name, **_):
        raise ConnectionError("no route")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    with pytest.raises(OSError, match=r"no route.*--local-dir FOLDER"):
        hf.resolve("Qwen/Qwen2-0.5B")


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match="pip install peft"):
        hf.optional("peft")


@pytest.mark.parametrize(
    "data, message",
    [
        (dict(vocab_size=68, mask=67), "mask token 67, not 66"),
        (dict(end=64), "end of text 64, not the padding 65"),
    ],
)
def test_data_that_does_not_fit_is_named(data, message, folder):
    as_dream(folder)
    rewrite_config(folder, pad_token_id=65)
    fits = dict(length=40, vocab_size=66, end=65, mask=64)
    assert hf.for_diffusion(folder, **fits)["mask_token"] == 66
    with pytest.raises(ValueError, match=message):
        hf.for_diffusion(folder, **fits | data)


def test_qwen2_becomes_bidirectional_and_takes_the_mask_token_of_the_data(folder):
    args = hf.for_diffusion(folder, length=12, vocab_size=62, end=60, mask=61)
    assert args["mask_token"] == 61 and args["shifted"] and not args["causal"]
