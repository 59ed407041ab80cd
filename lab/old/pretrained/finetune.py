"""The model of a run that starts from a Hugging Face folder: all of its weights, or adapters.

Training all weights takes 16 bytes each, the averages 4: `--shard=True` splits that over processes.
"""

from model import Transformer
from pretrained import hf, lora


def make_model(name, task, saved, model_args, adapters, device):
    """As start.make_model, for a folder or a name on the hub."""
    rank, alpha, dtype = adapters
    if model_args["causal"] or model_args["carry"] or not hasattr(task, "encoding"):
        own = f"; a run or its export is init_from {name}"
        raise ValueError(f"init_from hf:{name}: needs a text dataset, no carry, no method ar{own}")
    if saved:
        model_args = saved["model_args"]
    else:
        form = task.length, task.vocab_size, task.encoding.end, task.mask
        model_args = hf.for_diffusion(hf.resolve(name), *form)
    if rank:
        model, part = lora.load(name, model_args, rank, alpha, device, dtype)
        return model, part, model_args
    if saved:
        model = Transformer(**model_args).to(device)
    else:
        model = hf.load(hf.resolve(name), model_args, device)
    return model, model, model_args
