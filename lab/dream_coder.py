"""Fine-tune Dream-Coder-7B with PUMA and LoRA on 700,000 instructions (paper, section 4.5).

    pip install peft 'transformers>=5'                            # beside requirements.txt
    python data/dream_coder/prepare.py                            # once: downloads and tokenises
    torchrun --nproc_per_node=8 train.py config/dream_coder.py
    python lab/dream_coder.py --folder=FOLDER                     # the adapters, for peft

As a variant it changes the model. Dream (arXiv 2508.15487) is Qwen2 without the causal mask, so
transformers' Qwen2 loads its weights; no code of the hub is run. They are frozen, and LoRA (arXiv
2106.09685) trains two thin matrices beside each linear layer of the blocks. Dream's row i - 1
scores token i; here row i does, as in all models of this project.

--options: base, a folder or a name on the hub, of Dream or of a Qwen2, which then learns what the
mask token means; rank and alpha, of LoRA. The model has the shape of its base: dim, layers, heads,
mlp, theta and tied change nothing.
"""

import copy
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import peft
import torch

import checkpoint
from configurator import configure
from lab import hf

out_dir = "out/dream_coder"  # a run of train.py
folder = ""  # where to write its averaged adapters

LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Dream(torch.nn.Module):
    """A base with adapters, of which only the adapters are parameters.

    The base is in a tuple, where Module does not look: optimizer, averages, DDP and checkpoint get
    the 323M weights that are trained, and the other 7.6B exist once.
    """

    def __init__(self, base, rank, alpha, mask_token):
        super().__init__()
        dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
        net, shift = hf.load(base, dtype)
        if not shift:
            raise SystemExit(f"{base}: not Dream, not Qwen2")
        self.fingerprint = fingerprint(net)
        lora = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=LAYERS)
        self.base = (peft.get_peft_model(net, lora),)  # changes net; adapters are float32
        net.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        net.train()  # else it is off; there is no dropout
        self.adapters = torch.nn.ParameterList(p for p in net.parameters() if p.requires_grad)
        self.vocab_size = net.config.vocab_size
        self.mask_token = mask_token

    @property
    def net(self):
        return self.base[0].get_base_model()

    @property
    def lm_head(self):
        return self.net.lm_head

    def forward(self, x):
        h = self.net.model(x, use_cache=False).last_hidden_state  # (B, L, dim)
        return torch.cat((h[:, :1], h[:, :-1]), 1)  # token 0 has none before it: Dream does this

    def logits(self, h):
        logits = self.lm_head(h).float()
        logits[..., self.mask_token] = -torch.inf
        return logits

    def _apply(self, fn, recurse=True):
        """For .to(device): the base moves along."""
        self.net._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def __deepcopy__(self, memo):
        """The averaged model: adapters of its own beside the same frozen weights."""
        memo |= {id(p): p for p in self.net.parameters() if not p.requires_grad}
        twin = Dream.__new__(Dream)
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def get_extra_state(self):
        return self.fingerprint

    def set_extra_state(self, state):
        if state != self.fingerprint:
            raise SystemExit("the base weights are not those that the adapters were trained on")


def fingerprint(net):
    """A checksum over the beginnings of all tensors."""
    starts = [p.detach().flatten()[:64].float() for p in net.parameters()]
    return zlib.crc32(torch.cat(starts).numpy().tobytes())


def make_model(
    vocab_size, mask_token, base="Dream-org/Dream-Coder-v0-Base-7B", rank=128, alpha=128,
    length=0, dim=0, layers=0, heads=0, mlp=0, theta=0, tied=False,
):  # fmt: skip
    """length .. tied are ignored: the model has the shape of its base."""
    model = Dream(base, rank, alpha, mask_token)
    its_mask = getattr(model.net.config, "mask_token_id", None)  # Qwen2 has none
    if vocab_size > model.vocab_size or its_mask not in (None, mask_token):
        raise SystemExit(f"the data was not encoded for {base}: another vocabulary or mask token")
    return model


if __name__ == "__main__":
    configure(globals())
    model, _ = checkpoint.load_model(out_dir, "cpu")
    model.base[0].save_pretrained(folder or f"{out_dir}/adapters")
