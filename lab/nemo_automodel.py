"""PUMA as a mode of NeMo AutoModel's recipe for diffusion language models.

    pip install nemo-automodel
    torchrun --nproc-per-node=8 -m lab.nemo_automodel -c llada_sft.yaml --dllm.mode=puma

Takes any config of the mode `mdlm` that sets dataset.seq_length, to which rows are padded, and does
as many updates; dllm.puma may hold k_schedule and tau. Sharding, LoRA and checkpoints are the
recipe's; each data-parallel rank saves its chains there and resumes exactly. A run begun with
random masks can go on with PUMA. Tried with 0.7.0 in one process on a CPU, and nowhere else.
"""

import torch
from nemo_automodel.components.loss.dllm_loss import MDLMCrossEntropyLoss
from nemo_automodel.recipes.dllm.strategy import DLLM_STRATEGIES, MDLMStrategy
from torchdata.stateful_dataloader import StatefulDataLoader

import puma


class Examples:
    """The recipe's, as puma.Queue reads them: data[indices (n,)] -> x0, prompt (n, L)."""

    def __init__(self, loader, length):
        self.examples = loader.dataset
        self.collate = loader.collate_fn
        self.collate.pad_seq_len_divisible = length  # it pads all rows

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, indices):
        batch = self.collate([self.examples[int(i)] for i in indices])
        x0, prompt = batch["input_ids"], batch["loss_mask"] == 0
        bad = prompt.all(1).nonzero()[:, 0].numpy()  # nothing to predict: the next in its place
        if len(bad):
            x0[bad], prompt[bad] = self[(indices[bad] + 1) % len(self)]
        return x0, prompt


class ChainLoader(StatefulDataLoader):
    """In place of the recipe's loader: the kind of object that it saves on each rank."""

    def __init__(self, chains):  # without the set-up of a loader: it holds no data
        self.chains = chains

    def __iter__(self):
        while True:
            yield {"input_ids": self.chains.x0[0]}  # for the recipe to count; see forward_backward

    def state_dict(self):
        return {"chains": self.chains.state_dict(), "queue": self.chains.queue.state_dict()}

    def load_state_dict(self, state):
        self.chains.load_state_dict(state["chains"])
        self.chains.queue.load_state_dict(state["queue"])


class RevealingLoss(MDLMCrossEntropyLoss):
    """The one place that sees logits: with the loss of a training batch its chains advance."""

    chains = None  # while training

    def forward(self, logits, target_ids, noise_mask, *args, **kwargs):
        if self.chains:
            hidden = logits.detach()[noise_mask].float()  # (n, V)
            hidden[:, self.chains.mask_token] = -torch.inf
            confidence = torch.zeros(target_ids.shape, device=logits.device)
            confidence[noise_mask] = hidden.softmax(-1).amax(-1)
            self.chains.advance(confidence, confidence)
        return super().forward(logits, target_ids, noise_mask, *args, **kwargs)


class PumaStrategy(MDLMStrategy):
    """Batches come from the chains, filled in at the last moment; validation is `mdlm`'s."""

    def create_loss_fn(self, dllm_cfg):
        self.settings = dllm_cfg.get("puma") or {}
        self.loss = RevealingLoss()
        return self.loss

    def setup_extra(self, recipe):
        length = recipe.cfg.dataset.seq_length
        loader = recipe.dataloader
        scheduler = recipe.step_scheduler
        where = recipe.dist_env.device, 1, recipe._get_dp_rank(), recipe._get_dp_group_size()
        queue = puma.Queue(Examples(loader, length), loader.batch_size, *where)
        k_schedule = self.settings.get("k_schedule", [(0, max(1, length // 8))])  # 8 stages
        how = k_schedule, self.settings.get("tau", 0.9), scheduler.grad_acc_steps, False
        self.chains = puma.ProgressiveUnmasking(queue, recipe.mask_token_id, *how)
        recipe.untrack_state("dataloader")
        recipe.dataloader = scheduler.dataloader = ChainLoader(self.chains)
        scheduler.epoch_len = None  # it ends after max_steps
        if "chains" in (loader.next_iter_state or {}):  # of a resumed run; else it begins now
            recipe.dataloader.load_state_dict(loader.next_iter_state)

    def pre_step(self, recipe, batches):
        """Counts rows instead of tokens: the loss is the mean over rows, as in loss.py."""
        if not recipe.model_parts[0].training:
            return super().pre_step(recipe, batches)
        rows = sum(len(batch["input_ids"]) for batch in batches)
        return rows, rows

    def forward_backward(self, recipe, idx, batch, *, is_train=True, **rest):
        if is_train:
            step = recipe.step_scheduler.step
            torch.manual_seed(hash((recipe._get_dp_rank(), step, idx)))  # no random state to save
            x, x0, hidden = self.chains.batch(step)
            count = hidden.sum(1, keepdim=True).float().expand(x.shape)  # the loss divides by it
            batch |= {"_noisy_input_ids": x, "_clean_input_ids": x0, "_noise_mask": hidden,
                      "_p_mask": count, "loss_mask": hidden}  # fmt: skip
        self.loss.chains = self.chains if is_train else None
        super().forward_backward(recipe, idx, batch, is_train=is_train, **rest)


DLLM_STRATEGIES["puma"] = PumaStrategy

if __name__ == "__main__":
    from nemo_automodel.recipes.dllm.train_ft import main

    main()
