"""Progressive Unmasking as a mode of NeMo AutoModel's recipe for diffusion language models.

    pip install nemo-automodel
    torchrun --nproc-per-node=8 -m examples.nemo_automodel -c llada_sft.yaml --dllm.mode=puma

Takes any config of the recipe's mode `mdlm` that sets dataset.seq_length, to which rows are padded,
and makes as many updates; `dllm.puma` may hold k_schedule, tau, buffer. Sharding, LoRA, checkpoints
are the recipe's; each data-parallel rank saves its chains there and resumes exactly. A run begun
with random masks (`mdlm`) can go on with PUMA.

Tried with 0.7.0 on CPUs alone (one process and two, DDP, accumulated gradients): not on GPUs, and
without tensor, context or pipeline parallelism.
"""

import torch
from nemo_automodel.components.loss.dllm_loss import MDLMCrossEntropyLoss
from nemo_automodel.recipes.dllm.strategy import DLLM_STRATEGIES, MDLMStrategy
from torchdata.stateful_dataloader import StatefulDataLoader

from model import never
from puma import ProgressiveUnmasking


class Rows:
    """A queue of the recipe's examples (L,), one by one, in its order, from that epoch on."""

    def __init__(self, loader, length, epoch):
        self.loader = loader
        self.length = length
        self.rows = loader.batch_size
        loader.collate_fn.pad_seq_len_divisible = length  # all rows as the collator pads long ones
        self.left, self.taken = [], 0
        self.begin(epoch, found=True)

    def begin(self, epoch, found=False):
        self.epoch, self.found = epoch, found  # whether it has an example with a token to predict
        self.loader.sampler.set_epoch(epoch)
        self.batches = iter(self.loader)

    def next_row(self):
        while not self.left:
            if batch := next(self.batches, None):
                rows = zip(batch["input_ids"], batch["loss_mask"] == 0, strict=True)
                self.left = [(x0, given) for x0, given in rows if not given.all()]
                self.found |= bool(self.left)
            elif self.found:
                self.begin(self.epoch + 1)
            else:
                raise ValueError("no example has a token to predict within dataset.seq_length")
        return self.left.pop(0)

    def take(self, wanted):
        """(B,) bool -> x0, prompt (B, L), number (B,): new where wanted."""
        blank = torch.zeros(self.length, dtype=torch.long), torch.ones(self.length).bool()
        rows = [self.next_row() if new else blank for new in wanted.tolist()]
        x0, prompt = (torch.stack(part).to(wanted.device) for part in zip(*rows, strict=True))
        number = self.taken + wanted.cumsum(0)
        self.taken = int(number[-1])
        return x0, prompt, number

    def state_dict(self):
        place = {"left": self.left, "taken": self.taken, "epoch": self.epoch}
        return place | {"loader": self.loader.state_dict()}

    def load_state_dict(self, state):
        self.left, self.taken = [*state["left"]], state["taken"]
        self.loader.load_state_dict(state["loader"])
        self.begin(state["epoch"], found=True)


class ChainLoader(StatefulDataLoader):
    """In place of the recipe's loader: the kind of object that it saves on each rank."""

    def __init__(self, chains):  # without the set-up of a loader: it holds no data
        self.chains = chains

    def __iter__(self):
        while True:
            yield {"input_ids": self.chains.x0[0]}  # for the recipe to count; see forward_backward

    def state_dict(self):
        chance = self.chains.generator.get_state()
        queue = self.chains.queue.state_dict()
        return {"chains": self.chains.state_dict(), "queue": queue, "chance": chance}

    def load_state_dict(self, state):
        self.chains.load_state_dict(state["chains"])
        self.chains.queue.load_state_dict(state["queue"])
        self.chains.generator.set_state(state["chance"])


class RevealingLoss(MDLMCrossEntropyLoss):
    """The one place that sees logits: after the loss of a training batch its chains advance."""

    chains = None  # set once there is data

    def forward(self, logits, target_ids, noise_mask, *args, **kwargs):
        if self.chains.visiting:
            with torch.no_grad():
                hidden = never(logits[noise_mask].float(), self.chains.mask_token)
                confidence = torch.zeros(target_ids.shape, device=logits.device)
                confidence[noise_mask] = hidden.softmax(-1).amax(-1)
            self.chains.advance(confidence, confidence)
        return super().forward(logits, target_ids, noise_mask, *args, **kwargs)


class PumaStrategy(MDLMStrategy):
    """Batches come from the chains, filled in at the last moment; validation is `mdlm`'s."""

    def create_loss_fn(self, dllm_cfg):
        self.settings = dllm_cfg.get("puma")
        self.loss = RevealingLoss()
        return self.loss

    def setup_extra(self, recipe):
        loader, device = recipe.dataloader, recipe.dist_env.device
        saved, loader.next_iter_state = loader.next_iter_state, None  # of a run that is resumed
        if saved and "chains" not in saved:  # begun with random masks
            loader.load_state_dict(saved)
        if not (length := recipe.cfg.get("dataset.seq_length")):
            raise ValueError("dllm.mode=puma needs dataset.seq_length: rows are padded to it")
        chance = torch.Generator(device)
        epoch = recipe.step_scheduler.epoch
        settings = {"k_schedule": max(1, length // 8)}  # 8 stages
        settings |= self.settings.to_dict() if self.settings else {}
        self.chains = self.loss.chains = ProgressiveUnmasking(
            Rows(loader, length, epoch), recipe.mask_token_id,
            chance.manual_seed(recipe._get_dp_rank()), **settings,
        )  # fmt: skip
        recipe.untrack_state("dataloader")
        recipe.dataloader = recipe.step_scheduler.dataloader = ChainLoader(self.chains)
        recipe.step_scheduler.epoch_len = None  # it ends after max_steps
        if saved and "chains" in saved:
            recipe.dataloader.load_state_dict(saved)

    def pre_step(self, recipe, batches):
        """Counts rows instead of tokens: the loss is the mean over rows, as in losses.row_mean."""
        if not recipe.model_parts[0].training:
            return super().pre_step(recipe, batches)
        rows = sum(len(batch["input_ids"]) for batch in batches)
        return rows, rows

    def forward_backward(self, recipe, idx, batch, *, is_train=True, **rest):
        if is_train:
            x, x0, hidden, *_ = self.chains.batch(recipe.step_scheduler.step)
            count = hidden.sum(1, keepdim=True).float().expand(x.shape)  # the loss divides by it
            batch |= {"_noisy_input_ids": x, "_clean_input_ids": x0, "_noise_mask": hidden,
                      "_p_mask": count, "loss_mask": hidden}  # fmt: skip
        super().forward_backward(recipe, idx, batch, is_train=is_train, **rest)


DLLM_STRATEGIES["puma"] = PumaStrategy

if __name__ == "__main__":
    from nemo_automodel.recipes.dllm.train_ft import main

    main()
