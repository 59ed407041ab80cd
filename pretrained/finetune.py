"""The model of a run that starts from a Hugging Face folder: all of its weights, or adapters.

Training all weights takes 16 bytes each, the averages 4: `--shard=True` splits that over processes.
"""

from model import Transformer
from pretrained import hf, lora


def make_model(name, task, saved, rank, alpha, device, dtype):
    """The model, what a checkpoint saves in its place, and the arguments that it is made from.

    name: a folder, or a name on the hub. saved: a checkpoint to resume, whose weights are loaded
    later, or None. rank, alpha: of LoRA's adapters, 0 = all weights are trained. dtype: of frozen
    weights. Raises ValueError if the model does not fit the task's data.
    """
    if saved:
        model_args = saved["model_args"]
    else:
        form = task.length, task.vocab_size, task.encoding.end, task.mask
        model_args = hf.for_diffusion(hf.resolve(name), *form)
    if rank:
        model, adapters = lora.load(name, model_args, rank, alpha, device, dtype)
        return model, adapters, model_args
    if saved:
        model = Transformer(**model_args).to(device)
    else:
        model = hf.load(hf.resolve(name), model_args, device)
    return model, model, model_args
