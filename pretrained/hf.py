"""Hugging Face folders of Qwen2, Qwen2.5 and Dream: read into our Transformer, and written.

A folder has config.json and one or several .safetensors files, with an index if there are
several. Our modules have the same names, so no table of names is needed. Qwen2 (arXiv
2407.10671) is causal, Dream (arXiv 2508.15487) bidirectional with the mask token 151666; in both
position i - 1 scores token i. Reading never holds more than the model and one shard. Features that
these models lack (scaled rotary frequencies, sliding windows, quantised weights) are errors, and so
are parts that do not fit together: a folder may be untrusted, or damaged.
"""

import contextlib
import importlib
import inspect
import json
import re
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
LIMITS = """
    2 <= vocab_size <= 10**8
    1 <= hidden_size <= 10**6
    1 <= num_hidden_layers <= 1000
    1 <= num_attention_heads <= hidden_size
    hidden_size % (2 * num_attention_heads) == 0
    1 <= num_key_value_heads <= num_attention_heads
    num_attention_heads % num_key_value_heads == 0
    1 <= intermediate_size <= 10**7
    0 < rms_norm_eps < 1
    0 <= mask_token_id < vocab_size
    1 <= rope_theta <= 10**12
"""
FLOATS = "F64", "F32", "F16", "BF16"  # of safetensors


def resolve(name):
    """The folder `name`, or the hub's of that name, which is downloaded if it is not cached.

    Raises FileNotFoundError, or OSError that says how to supply the folder by hand.
    """
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") != 1 or name[0] in "./~":
        raise FileNotFoundError(f"{name}: no such folder")
    hub = optional("huggingface_hub")
    wanted = ["*.json", "*.safetensors", "*.txt", "*.py"]
    try:
        return Path(hub.snapshot_download(name, allow_patterns=wanted))
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
    missing = [key for key in SHAPE.values() if config.get(key) is None]
    if missing:
        raise ValueError(f"{folder}/config.json lacks {', '.join(missing)}")
    mask = config.get("mask_token_id")
    try:
        theta = read_theta(config)
        check_limits(LIMITS, config | {"rope_theta": theta, "mask_token_id": mask})
    except ValueError as error:
        raise ValueError(f"{folder}/config.json: {error}") from None
    shape = {ours: config[theirs] for ours, theirs in SHAPE.items()}
    dream = config["model_type"] == "Dream"
    return shape | {
        "theta": float(theta),
        "tied": config.get("tie_word_embeddings", False),
        "causal": config.get("is_causal", not dream),
        "shifted": config.get("is_shifted", True),
        "mask_token": mask,
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
    config = files.read_json(path, {"model_type": record.text})
    for key, value in config.items():
        if wrong := record.fault(value, CONFIG.get(key, anything)):
            raise ValueError(f"{path}: {key}: {wrong}")
    kind, windows = config["model_type"], config.get("layer_types") or []
    head, heads = config.get("head_dim"), config.get("num_attention_heads")
    for wrong, what in (
        (kind not in ("qwen2", "Dream"), f"model_type {kind!r}, expected qwen2 or Dream"),
        (config.get("hidden_act", "silu") != "silu", f"hidden_act {config.get('hidden_act')!r}"),
        (config.get("use_sliding_window"), "use_sliding_window"),
        (set(windows) - {"full_attention"}, f"layer_types {sorted(set(windows))}"),
        (head and heads and head * heads != config.get("hidden_size"), f"head_dim {head}"),
        (config.get("use_mrope"), "use_mrope"),
        (config.get("quantization_config"), "quantization_config"),
    ):
        if wrong:
            raise ValueError(f"{path}: not supported: {what}")
    return config


def whole_or_null(value):
    """a whole number or null"""
    return value is None or record.whole(value)


def flag(value):
    """true, false or null"""
    return value is None or isinstance(value, bool)


def texts(value):
    """a list of texts, or null"""
    return value is None or (isinstance(value, list) and all(map(record.text, value)))


def mapping(value):
    """an object or null"""
    return value is None or isinstance(value, dict)


def anything(value):
    """a value that is not read"""
    return True


CONFIG = (  # the forms of the values of config.json that are read
    dict.fromkeys(SHAPE.values(), whole_or_null)
    | dict.fromkeys(("rms_norm_eps", "rope_theta"), record.number_or_null)
    | dict.fromkeys(
        ("max_position_embeddings", "mask_token_id", "pad_token_id", "head_dim"), whole_or_null
    )
    | dict.fromkeys(("tie_word_embeddings", "is_causal", "is_shifted"), flag)
    | {"layer_types": texts, "rope_parameters": mapping, "rope_scaling": mapping}
)


def read_theta(config):
    """The base of the rotary frequencies, from either form of the configuration.

    Raises ValueError if it is not a number, or if the frequencies are scaled.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ValueError(f"rope scaling {rope} is not supported, expected the default")
    theta = rope.get("rope_theta", config.get("rope_theta", 1e4))
    if not record.number(theta):
        raise ValueError(f"rope_theta {theta}: expected a number")
    return theta


def load(folder, model_args, device="cpu", dtype=torch.float32):
    """The Transformer of `model_args` with the weights of the folder.

    Nothing is allocated before shapes and types agree. Raises FileNotFoundError, or ValueError that
    names the file or the tensors at fault.
    """
    shards = shard_paths(Path(folder))
    model = on_meta(model_args, dtype)
    check_tensors(folder, wanted(model, model_args), shards, model_args["tied"])
    allocate(model, model_args, device)
    targets = wanted(model, model_args)  # the parameters themselves
    for path in shards:
        with open_shard(path) as shard:
            for name in shard.keys():  # noqa: SIM118
                if name in targets:
                    targets[name].copy_(shard.get_tensor(name))
                    if not is_finite(targets[name]):
                        raise ValueError(f"{path}: {name} has values that are not finite")
    return model


def is_finite(tensor):
    """Whether all values are finite, by their extremes: these need no memory, and nan is one."""
    return tensor.is_floating_point() and torch.stack(tensor.aminmax()).isfinite().all().item()


def on_meta(model_args, dtype=torch.float32):
    """A Transformer whose parameters have shapes but no memory."""
    with torch.device("meta"):
        return Transformer(**model_args).to(dtype)


def wanted(model, model_args):
    """The tensors that a folder must have; with tied weights the head is optional."""
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
    """The .safetensors files of the folder; an index, if there is one, names files beside it."""
    if not (folder / INDEX).is_file():
        names = ["model.safetensors"]
    else:
        index = files.read_json(folder / INDEX, {"weight_map": {str: record.text}})
        if not index["weight_map"]:
            raise ValueError(f"{folder / INDEX}: weight_map is empty")
        names = sorted(set(index["weight_map"].values()))
    if strange := [name for name in names if not re.fullmatch(r"[\w.-]+\.safetensors", name)]:
        raise ValueError(f"{folder / INDEX}: {strange[0]!a:.60}: not a .safetensors file beside it")
    if missing := [str(folder / name) for name in names if not (folder / name).is_file()]:
        raise FileNotFoundError(f"missing: {', '.join(missing)}")
    return [folder / name for name in names]


@contextlib.contextmanager
def open_shard(path):
    """An open file of tensors. Raises ValueError that names it, also for errors in the block."""
    safetensors = optional("safetensors")
    try:
        with safetensors.safe_open(path, "pt") as shard:
            yield shard
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def check_tensors(folder, targets, shards, tied):
    """Raise ValueError unless the shards have the tensors of `targets`, as floats in their shapes.

    tied: they may have the output head as well.
    """
    found, types = {}, {}
    for path in shards:
        with open_shard(path) as shard:
            for name in shard.keys():  # noqa: SIM118
                if name in found:
                    raise ValueError(f"{path}: {name} is in another file, too")
                part = shard.get_slice(name)
                found[name], types[name] = part.get_shape(), part.get_dtype()
    optional = {"lm_head.weight"} if tied else set()
    missing, extra = targets.keys() - found.keys(), found.keys() - targets.keys() - optional
    known = sorted(targets.keys() & found.keys())
    for what, names in (
        ("missing tensors", sorted(missing)),
        ("extra tensors", sorted(extra)),
        ("wrong shapes", [
            f"{name} {found[name]}, expected {[*targets[name].shape]}"
            for name in known if found[name] != [*targets[name].shape]
        ]),
        ("no floats", [f"{name} {types[name]}" for name in known if types[name] not in FLOATS]),
    ):  # fmt: skip
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise ValueError(f"{folder}: {what}: {', '.join(names[:5])}{more}")


def save(model, model_args, folder, like=None):
    """Write the folder for a model, in the dtype of its parameters; it appears once it is complete.

    like: the folder it was made from, of which everything but the weights is kept (tokenizer,
    Dream's code, settings). Without it the model is written as a Qwen2. Raises FileExistsError.
    """
    weights = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
    model_args = complete(model_args)
    config = described(model_args, like)
    config["mask_token_id"] = model_args["mask_token"]
    config["dtype"] = config["torch_dtype"] = str(model.lm_head.weight.dtype).removeprefix("torch.")
    tensors = model.state_dict()
    if model_args["tied"]:
        del tensors["lm_head.weight"]
    with appearing(folder) as partial:
        for path in Path(like).iterdir() if like else ():
            if path.is_file() and path.name != INDEX and not weights & set(path.suffixes):
                shutil.copy(path, partial)
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        write_shards(tensors, partial)


@contextlib.contextmanager
def appearing(folder):
    """An empty folder to write into, as files.atomic_path. Raises FileExistsError."""
    if Path(folder).exists():
        raise FileExistsError(f"{folder} already exists")
    with files.atomic_path(folder) as partial:
        partial.mkdir()
        yield partial


def complete(model_args):
    """model_args completed with Transformer's defaults."""
    parameters = inspect.signature(Transformer).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return defaults | model_args | {"kv_heads": model_args.get("kv_heads") or model_args["heads"]}


def described(model_args, like=None):
    """config.json of a model that is written like the folder, but for mask token and dtype."""
    model_args = complete(model_args)
    config = config_of(model_args) | (read_config(like) if like else {})
    return config | {
        key: model_args[key.removeprefix("is_")] for key in ("is_causal", "is_shifted")
    }


def config_of(model_args):
    """config.json of a Qwen2 of this shape."""
    shape = {theirs: model_args[ours] for ours, theirs in SHAPE.items()}
    theta = model_args["theta"]  # in the form of transformers 5 and in that of 4
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


def write_shards(tensors, folder):
    """Write files of at most SHARD bytes, unless one tensor is larger, and their index."""
    shards, room = [], 0
    for name, tensor in tensors.items():
        if tensor.nbytes > room:
            shards.append([])
            room = SHARD
        shards[-1].append(name)
        room -= tensor.nbytes
    files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    if len(shards) == 1:
        files = ["model.safetensors"]
    write = optional("safetensors.torch").save_file
    for file, names in zip(files, shards, strict=True):
        write({name: tensors[name] for name in names}, folder / file, {"format": "pt"})
    if len(shards) > 1:
        index = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        size = {"total_size": sum(tensor.nbytes for tensor in tensors.values())}
        text = json.dumps({"metadata": size, "weight_map": index}, indent=2)
        (folder / INDEX).write_text(text + "\n")
