"""The model of a run that starts from others' weights: another run's, or a Hugging Face folder's.

Training all weights takes 16 bytes each, the averages 4: `--shard=True` splits that over processes.
"""

import torch

from engine import checkpoint
from model import Transformer
from pretrained import hf, lora


def make_model(origin, task, saved, model_args, adapters, device):
    """The model, what a checkpoint saves in its place, and the arguments that it is made from.

    origin: FILE.pt, or hf: and a folder or a name on the hub. saved: a checkpoint to resume, whose
    weights are loaded later, or None. model_args: as the run's settings have them. adapters: rank
    (0 = all weights are trained) and alpha of LoRA, dtype of the frozen weights. Raises ValueError
    for another origin, or one that does not fit the data or the model.
    """
    name, rank = origin.removeprefix("hf:"), adapters[0]
    if name == origin and (rank or not origin.endswith(".pt")):
        expected = "hf:FOLDER" if rank else "scratch, resume, continue, FILE.pt or hf:FOLDER"
        raise ValueError(f"init_from {origin!r}: expected {expected}")
    if saved:
        model_args = saved["model_args"]
    elif name == origin:
        weights, model_args = from_run(origin, model_args)
    else:
        if model_args["causal"] or not hasattr(task, "encoding"):
            raise ValueError(f"init_from {origin}: needs a text dataset, and any method but ar")
        form = task.length, task.vocab_size, task.encoding.end, task.mask
        model_args = hf.for_diffusion(hf.resolve(name), *form)
    if rank:
        model, part = lora.load(name, model_args, *adapters[:2], device, adapters[2])
        return model, part, model_args
    if name != origin and not saved:
        model = hf.load(hf.resolve(name), model_args, device)
    else:
        model = Transformer(**model_args).to(device)
    if name == origin and not saved:
        model.load_state_dict(weights)
    return model, model, model_args


def from_run(path, model_args):
    """Another run's averaged weights to start from, and the model_args for them.

    If that run was autoregressive, attention becomes bidirectional and logits stay `shifted`. Its
    mask embedding was never trained, so it is set to the mean of all others: "some unknown token".

    Raises ValueError if the architectures differ.
    """
    state = checkpoint.load(path)
    if state["config"].get("lora_rank"):
        raise ValueError(
            f"{path} has only adapters: start from the output of pretrained.export --merge"
        )
    theirs = state["model_args"]
    differ = [key for key in model_args if model_args[key] != theirs[key]]
    differ = [key for key in differ if key not in ("causal", "shifted")]
    if differ:
        which = ", ".join(f"{key} {theirs[key]} -> {model_args[key]}" for key in differ)
        raise ValueError(f"{path} has another architecture: {which}")
    weights = state.get("ema", state.get("model"))
    if theirs["causal"]:
        embedding, mask = weights["model.embed_tokens.weight"], theirs["mask_token"]
        others = torch.arange(len(embedding)) != mask
        embedding[mask] = embedding[others].mean(0)
    return weights, model_args | {"shifted": theirs["shifted"]}
