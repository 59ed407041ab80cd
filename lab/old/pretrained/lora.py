"""LoRA (arXiv 2106.09685) through peft: small trainable matrices beside the frozen ones of a model.

They are on all linear layers of the blocks: 323M weights at rank 128 and Dream's 7B shape, about
the 300M of the paper (section 4.5); with the output head too they would be 343M.
"""

import zlib

import torch

from pretrained import hf

LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def load(name, model_args, rank, alpha, device="cpu", dtype=torch.float32):
    """The base model from the folder or the hub, frozen and in `dtype`, and its new Adapters."""
    model = hf.load(hf.resolve(name), model_args, device, dtype)
    return model, Adapters(model, rank, alpha)


def restore(state, device="cpu"):
    """The model and the Adapters of a run's checkpoint."""
    config, weights = state["config"], state["model"]
    model, adapters = load(
        config["init_from"].removeprefix("hf:"), state["model_args"], config["lora_rank"],
        config["lora_alpha"], device, getattr(torch, weights["dtype"]),
    )  # fmt: skip
    adapters.load_state_dict(weights)
    return model, adapters


class Adapters:
    """Freezes the model and adds adapters, in float32, to its layers; it is called as before.

    A checkpoint holds the adapters in place of the model: the base weights are not written again.
    """

    def __init__(self, model, rank, alpha):
        self.peft = hf.optional("peft")
        settings = self.peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=LAYERS)
        self.model, self.wrapped = model, self.peft.get_peft_model(model, settings)

    def state_dict(self):
        weights = self.peft.get_peft_model_state_dict(self.wrapped)
        return {"weights": weights, "dtype": self.dtype(), "base": fingerprint(self.model)}

    def load_state_dict(self, state):
        """Raises ValueError if the adapters belong to another base model."""
        if (state["dtype"], state["base"]) != (self.dtype(), fingerprint(self.model)):
            raise ValueError("the base weights are not those that the adapters were trained on")
        self.peft.set_peft_model_state_dict(self.wrapped, state["weights"])

    def dtype(self):
        return str(self.model.lm_head.weight.dtype).removeprefix("torch.")

    def save(self, folder, base):
        """peft's folder: the weights, and adapter_config.json, which names the base.

        peft.PeftModel.from_pretrained(model, folder) reads it, for our model and transformers'.
        """
        settings = self.wrapped.peft_config["default"]
        settings.base_model_name_or_path = base
        settings.auto_mapping = None  # it would name our class as the one to import
        self.wrapped.save_pretrained(folder)

    def merge(self):
        """Add the adapters to the base weights: the model is then a plain Transformer."""
        self.wrapped.merge_and_unload()


def fingerprint(model):
    """A checksum over the beginnings of all frozen tensors."""
    frozen = (p.detach() for p in model.parameters() if not p.requires_grad)
    starts = torch.cat([p.flatten()[:64].float().cpu() for p in frozen])
    return zlib.crc32(starts.numpy().tobytes())
