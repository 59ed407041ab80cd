"""Hugging Face folders of others to start from: config.json, the index, the shards."""

import json
import shutil

import torch

from tests.attacks.lab import TEXT, Case, weights

INDEX = "model.safetensors.index.json"
NEW = ("train.py", *TEXT, "--init_from=hf:{out}/hf", "--out_dir={out}/new", "--max_iters=2")


def outcome(folder, ended):
    return weights(folder / "new")


def folders(lab, rng):
    words = (*NEW, f"--data_dir={lab.corpus}")
    source = lab.folder / "with_hf"
    shutil.copytree(lab.hugging_face, source / "hf")
    whole = lab.whole(words, source, outcome)
    for name, change, mentions in changes(source / "hf"):

        def arrange(folder, change=change):
            shutil.copytree(source / "hf", folder / "hf")
            change(folder / "hf")

        yield Case(name, words, arrange, outcome, whole, names=f"{mentions}|case/hf")
    for name in ("nowhere", "", "/", "a/b/c", "../x", "a\\b", "tests", "README.md"):
        flags = (*words, f"--init_from=hf:{name}")
        yield Case(f"hf:{name}", flags, must="refuse")


def changes(good):
    """(name, change(folder), what a message should mention)."""
    for key, values in CONFIG.items():
        for value in values:
            yield f"{key} {value!r}", config_put(key, value), "config.json"
    for name, data in TEXTS.items():
        yield f"config.json {name}", file_put("config.json", data), "config.json"
        yield f"index {name}", file_put(INDEX, data), "index"
    for name, change in INDEXES.items():
        yield f"index: {name}", index_put(change), "index"
    shard = sorted(path.name for path in good.glob("*.safetensors"))[0]
    data = (good / shard).read_bytes()
    size = int.from_bytes(data[:8], "little")
    for name, content in {
        "empty": b"", "half": data[: len(data) // 2], "one byte less": data[:-1],
        "its header alone": data[: 8 + size],
        "header's length 2^60": b"\0" * 7 + b"\x10" + data[8:],
        "header's length 0": b"\0" * 8 + data[8:], "header no JSON": data[:8] + b"x" + data[9:],
        "zip": b"PK\3\4", "bytes behind": data + b"more",
    }.items():  # fmt: skip
        yield f"shard {name}", file_put(shard, content), shard
    yield "shard missing", lambda folder: (folder / shard).unlink(), shard
    for name, change in TENSORS.items():
        yield f"tensor {name}", tensors_put(shard, change), shard


CONFIG = {
    "num_hidden_layers": (10**6, -1, 0, "2", None, 1, 3),
    "num_attention_heads": (0, -2, 5, [2]),
    "num_key_value_heads": (0, 3),
    "hidden_size": (0, -24, 10**9, None),
    "vocab_size": (0, 10**12, 1600, "x"),
    "rms_norm_eps": ("x", -1.0, None),
    "rope_theta": ("x",),
    "rope_parameters": ([1], "x"),
    "model_type": (None, "llama", ["qwen2"]),
    "layer_types": ([[1]], 3),
    "max_position_embeddings": (10, "x"),
    "mask_token_id": (10**6, -1, "x"),
    "architectures": (3,),
}
TEXTS = {"empty": b"", "no JSON": b"{", "no UTF-8": b"\xff\xfe", "a list": b"[]", "null": b"null"}
INDEXES = {
    "no weight_map": lambda index: index.pop("weight_map"),
    "weight_map a list": lambda index: index.update(weight_map=["a"]),
    "a name that is a number": lambda index: one(index, 3),
    "../": lambda index: one(index, "../model.safetensors"),
    "an absolute path": lambda index: one(index, "/etc/passwd"),
    "a shard that is not there": lambda index: one(index, "other.safetensors"),
    "a folder": lambda index: one(index, "."),
    "weight_map empty": lambda index: index.update(weight_map={}),
}


def one(index, value):
    index["weight_map"][next(iter(index["weight_map"]))] = value


def config_put(key, value):
    def put(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))

    return put


def file_put(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def index_put(change):
    def put(folder):
        index = json.loads((folder / INDEX).read_text())
        change(index)
        (folder / INDEX).write_text(json.dumps(index))

    return put


def tensors_put(shard, change):
    def put(folder):
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / shard)
        name = next(iter(tensors))
        tensors[name] = change(tensors[name])
        save_file(tensors, folder / shard)

    return put


TENSORS = {
    "of NaN": lambda t: torch.full_like(t, torch.nan),
    "with one NaN": lambda t: t.flatten().index_fill(0, torch.tensor([5]), torch.nan).view_as(t),
    "with an infinity": lambda t: (
        t.flatten().index_fill(0, torch.tensor([5]), torch.inf).view_as(t)
    ),
    "of int64": lambda t: t.long(),
    "of bool": lambda t: t.bool(),
    "misshapen": lambda t: t[:-1].clone(),
    "flat": lambda t: t.flatten().clone(),
}
GROUPS = {"hf": folders}
