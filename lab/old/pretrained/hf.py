"""Hugging Face folders of Qwen2, Qwen2.5 and Dream: read into our Transformer, and written.

A folder has config.json and one or several .safetensors files, with an index if there are
several. Our modules have the same names, so no table of names is needed. Qwen2 (arXiv
2407.10671) is causal, Dream (arXiv 2508.15487) bidirectional with the mask token 151666; in both
position i - 1 scores token i. Reading holds the model and one tensor more.
"""

import contextlib
import importlib
import inspect
import json
import shutil
from pathlib import Path

import torch

from engine import files
from model import Transformer, rotary_table

SHARD = 5 << 30  # bytes of a file at most
INDEX = "model.safetensors.index.json"
SHAPE = {"vocab_size": "vocab_size", "dim": "hidden_size", "layers": "num_hidden_layers",
         "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
         "mlp": "intermediate_size", "eps": "rms_norm_eps"}  # fmt: skip


def resolve(name):
    """The folder `name`, or the hub's NAME or NAME@REVISION, downloaded if it is not cached.

    Raises FileNotFoundError, or OSError that says how to supply the folder by hand.
    """
    if Path(name).is_dir():
        return Path(name)
    name, _, revision = name.partition("@")
    if name.count("/") != 1 or name[0] in "./~":
        raise FileNotFoundError(f"{name}: no such folder")
    hub = optional("huggingface_hub")
    wanted = ["*.json", "*.safetensors", "*.txt", "*.py"]
    try:
        args = {"revision": revision or None, "allow_patterns": wanted}
        return Path(hub.snapshot_download(name, **args))
    except Exception as error:  # of the network, the hub, or a name that it does not have
        raise OSError(
            f"cannot download {name} ({type(error).__name__}: {error}). By hand: `hf download "
            f"{name} --local-dir FOLDER` on a machine with network, then hf:FOLDER"
        ) from None


def optional(module):
    """Import an optional package. Raises ValueError that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ValueError(f"this needs the package {package}: pip install {package}") from None


def read_shape(folder):
    """The arguments of Transformer in config.json, all but length; mask_token may be None.

    Raises FileNotFoundError, or ValueError that names what is not supported.
    """
    config = read_config(folder)
    if missing := [key for key in SHAPE.values() if config.get(key) is None]:
        raise ValueError(f"{folder}/config.json lacks {', '.join(missing)}")
    dream = config["model_type"] == "Dream"
    return {ours: config[theirs] for ours, theirs in SHAPE.items()} | {
        "theta": float(rope_of(config).get("rope_theta", config.get("rope_theta", 1e4))),
        "tied": config.get("tie_word_embeddings", False),
        "causal": config.get("is_causal", not dream),
        "shifted": config.get("is_shifted", True),
        "mask_token": config.get("mask_token_id"),
    }


def for_diffusion(folder, length, vocab_size, end, mask):
    """The arguments of a bidirectional Transformer for data of that length, vocabulary and ids.

    The mask token is the checkpoint's. One that has none, like Qwen2, learns to use the data's.
    Raises ValueError if the data does not fit.
    """
    config, shape = read_config(folder), read_shape(folder)
    own, padding = shape["mask_token"], config.get("pad_token_id")
    for wrong, what in (
        (vocab_size > shape["vocab_size"], f"vocabulary {vocab_size} of {shape['vocab_size']}"),
        (own is not None and own < vocab_size and own != mask, f"mask token {mask}, not {own}"),
        (padding not in (None, end), f"end of text {end}, not the padding {padding}"),
        (length > config.get("max_position_embeddings", length), f"length {length}"),
    ):
        if wrong:
            raise ValueError(f"the data does not fit the model in {folder}: {what}")
    mask = mask if own is None else own
    return shape | {"length": length, "causal": False, "mask_token": mask}


def read_config(folder):
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no config.json: expected a Hugging Face folder")
    config = files.read_json(path)
    kind = config.get("model_type")
    windows = set(config.get("layer_types") or [])
    head = config.get("head_dim")
    heads = config.get("num_attention_heads")
    rope = rope_of(config)
    for wrong, what in (
        (kind not in ("qwen2", "Dream"), f"model_type {kind!r}, expected qwen2 or Dream"),
        (config.get("hidden_act", "silu") != "silu", f"hidden_act {config.get('hidden_act')!r}"),
        (config.get("use_sliding_window"), "use_sliding_window"),
        (windows - {"full_attention"}, f"layer_types {sorted(windows)}"),
        (head and heads and head * heads != config.get("hidden_size"), f"head_dim {head}"),
        (config.get("use_mrope"), "use_mrope"),
        (config.get("quantization_config"), "quantization_config"),
        (rope.get("rope_type", rope.get("type", "default")) != "default", f"rope scaling {rope}"),
    ):
        if wrong:
            raise ValueError(f"{path}: not supported: {what}")
    return config


def rope_of(config):
    """The settings of the rotary frequencies, in the form of transformers 5 or 4."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def load(folder, model_args, device="cpu", dtype=torch.float32):
    """The Transformer of `model_args` with the weights of the folder.

    Raises FileNotFoundError, or ValueError that names the file or the tensors at fault.
    """
    model = on_meta(model_args, dtype)
    allocate(model, model_args, device)
    targets = weights(model, model_args)
    for path in shard_paths(Path(folder)):
        for name, tensor in tensors_in(path):
            if name == "lm_head.weight" and model_args["tied"]:
                continue
            if name not in targets or tensor.shape != targets[name].shape:
                raise ValueError(f"{path}: {name} {tuple(tensor.shape)} does not fit config.json")
            targets.pop(name).copy_(tensor)
    if targets:
        raise ValueError(f"{folder}: missing tensors: {', '.join(sorted(targets))}")
    return model


def on_meta(model_args, dtype=torch.float32):
    """A Transformer whose parameters have shapes but no memory."""
    with torch.device("meta"):
        return Transformer(**model_args).to(dtype)


def weights(model, model_args):
    """The tensors of a folder, {name: tensor}: tied weights are written once."""
    tensors = model.state_dict()
    if model_args["tied"]:
        del tensors["lm_head.weight"]
    return tensors


def allocate(model, model_args, device):
    """Allocate memory for the parameters of a model on meta; they are not filled."""
    model.to_empty(device=device)
    if model_args["tied"]:
        model.lm_head.weight = model.model.embed_tokens.weight
    width = model_args["dim"] // model_args["heads"]
    cos, sin = rotary_table(model_args["length"], width, model_args["theta"])
    model.model.cos, model.model.sin = cos.to(device), sin.to(device)  # in float32


def shard_paths(folder):
    """The .safetensors files of the folder; if it has an index, the files named there."""
    if not (folder / INDEX).is_file():
        return [folder / "model.safetensors"]
    try:
        names = files.read_json(folder / INDEX)["weight_map"].values()
        return [folder / name for name in sorted({Path(name).name for name in names})]
    except (TypeError, LookupError, AttributeError):
        raise ValueError(f"{folder / INDEX} is damaged") from None


def tensors_in(path):
    """Yields (name, tensor) of a file. Raises FileNotFoundError, or ValueError that names it."""
    safetensors = optional("safetensors")
    try:
        with safetensors.safe_open(files.regular(path), "pt") as shard:
            for name in shard.keys():  # noqa: SIM118
                yield name, shard.get_tensor(name)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def save(model, model_args, folder, like=None):
    """Write a model into the folder, in the dtype of its parameters.

    like: the folder it was made from, of which everything but the weights is kept (tokenizer,
    Dream's code, settings). Without it the model is written as a Qwen2. Raises ValueError for a
    link out of that folder: a stranger's may point to a private file.
    """
    unwanted = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
    config = described(model_args, like)
    config["mask_token_id"] = model_args["mask_token"]
    config["dtype"] = config["torch_dtype"] = str(model.lm_head.weight.dtype).removeprefix("torch.")
    write = optional("huggingface_hub").save_torch_state_dict
    Path(folder).mkdir(exist_ok=True)
    home = Path(like or folder).resolve()
    for path in Path(like).iterdir() if like else ():
        if path.is_file() and path.name != INDEX and not unwanted & set(path.suffixes):
            if path.resolve().parent not in (home, home.parents[1] / "blobs"):  # the hub's cache
                raise ValueError(f"{path} is a link out of the folder: copy what it shows")
            shutil.copy(path, folder)
    Path(folder, "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write(weights(model, complete(model_args)), folder, max_shard_size=SHARD)


@contextlib.contextmanager
def appearing(folder):
    """A new folder to write, as files.atomic_path.

    Raises FileExistsError, or OSError if what the body writes finds no room.
    """
    if Path(folder).exists():
        raise FileExistsError(f"{folder} already exists")
    with files.atomic_path(folder) as partial:
        try:
            yield partial
        except optional("safetensors").SafetensorError as error:
            raise OSError(f"cannot write {folder}: {error}") from None


def complete(model_args):
    """model_args completed with Transformer's defaults."""
    parameters = inspect.signature(Transformer).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return defaults | model_args | {"kv_heads": model_args.get("kv_heads") or model_args["heads"]}


def described(model_args, like=None):
    """config.json of a model that is written like the folder, but for mask token and dtype."""
    model_args = complete(model_args)
    if model_args["carry"] or model_args["loops"] > 1:
        return {"model_type": "puma"}  # Hugging Face's library has no form for it
    config = config_of(model_args) | (read_config(like) if like else {})
    return config | {
        key: model_args[key.removeprefix("is_")] for key in ("is_causal", "is_shifted")
    }


def config_of(model_args):
    """config.json of a Qwen2 of this shape."""
    shape = {theirs: model_args[ours] for ours, theirs in SHAPE.items()}
    theta = model_args["theta"]  # in the forms of transformers 5 and 4
    return shape | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "rope_theta": theta,
        "max_position_embeddings": model_args["length"],
        "tie_word_embeddings": model_args["tied"],
        "use_sliding_window": False,
    }
