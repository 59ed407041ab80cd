"""PUMA as a mode of NeMo AutoModel's recipe: its own step, less its set-up and sharding."""

from types import SimpleNamespace

import pytest
import torch
from conftest import same

from examples import own_trainer
from losses import Objective
from model import Logits

pytest.importorskip("nemo_automodel")
pytest.importorskip("torchao")  # which the recipe imports
from nemo_automodel.components.config.loader import ConfigNode
from nemo_automodel.components.datasets.dllm.collate import DLLMCollator
from nemo_automodel.recipes.dllm.train_ft import DiffusionLMSFTRecipe
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from examples.nemo_automodel import PumaStrategy

PAD = 3  # an ordinary word


class Examples(own_trainer.Copying):
    """Rows of 13 to 16 tokens; of the first nothing is asked."""

    asked = True

    def __getitem__(self, i):
        x0, prompt = (part[: 13 + i % 4].tolist() for part in super().__getitem__(i))
        asked = [int(self.asked and i > 0 and not given) for given in prompt]
        return {"input_ids": x0, "loss_mask": asked, "attention_mask": [1] * len(x0)}


class Net(own_trainer.Net):
    def forward(self, input_ids):
        return super().forward(input_ids)


class Recipe(DiffusionLMSFTRecipe):
    supervise = True

    def __init__(self, saved=None, epoch=0):
        torch.manual_seed(0)
        data = Examples(40, seed=0)
        sampler = StatefulDistributedSampler(data, num_replicas=1, rank=0)
        collate = DLLMCollator(PAD, max_seq_len=16, supervise_padding=self.supervise)
        self.dataloader = StatefulDataLoader(data, 8, sampler=sampler, collate_fn=collate)
        self.step_scheduler = SimpleNamespace(step=0, epoch=epoch)
        self.dllm_strategy = PumaStrategy()
        self.model_parts, self.mask_token_id = [Net()], own_trainer.MASK
        self.dist_env = SimpleNamespace(device=torch.device("cpu"))
        self.device_mesh = self.te_fp8 = self.distributed_config = None
        self.cfg, self._dllm_loss_buffer = ConfigNode({"dataset": {"seq_length": 16}}), []
        settings = ConfigNode({"puma": {"k_schedule": 4, "buffer": 2}})
        self.dllm_loss_fn = self.dllm_strategy.create_loss_fn(settings)
        if saved:
            self.dataloader.load_state_dict(saved)  # as the recipe does, before the strategy's turn
        self.dllm_strategy.setup_extra(self)
        self.chains = self.dllm_strategy.chains

    def _get_dp_rank(self):
        return 0

    def _get_dp_group_size(self, include_cp):
        return 1

    def run(self, steps):
        """Losses of steps of two microbatches each, and ours of the same rows."""
        losses, batches = [], iter(self.dataloader)
        for _ in range(steps):
            pair, found = [next(batches), next(batches)], []
            _, rows = self.dllm_strategy.pre_step(self, pair)
            for idx, batch in enumerate(pair):
                turn, model = self.chains.turn, Logits(self.model_parts[0], self.mask_token_id)
                x0, hidden = self.chains.x0[turn], self.chains.hidden[turn]
                x = x0.masked_fill(hidden, self.mask_token_id)
                ours = Objective(model)(x, x0, hidden)[0].item() / 2
                self.dllm_strategy.forward_backward(
                    self, idx, batch, loss_buffer=found, num_diffusion_tokens=rows, num_batches=2
                )
                losses.append((found[-1].item(), ours))
        return losses


def test_losses_are_ours_and_a_resumed_run_repeats_them():
    recipe = Recipe()  # whose loss knows no token that is never predicted
    recipe.model_parts[0].head.bias.data[own_trainer.MASK] = -1e4
    first = recipe.run(16)
    assert all(theirs == pytest.approx(ours, rel=1e-5) for theirs, ours in first)
    assert recipe.chains.queue.epoch >= 1
    # Padding is asked whatever the neighbours' length; of the first example it alone.
    assert {*recipe.chains.effective.tolist()} <= {3, 8}
    saved = recipe.dataloader.state_dict()
    again = Recipe(saved)
    again.model_parts[0].load_state_dict(recipe.model_parts[0].state_dict())
    assert again.run(6) == recipe.run(6)
    assert same(again.chains.state_dict(), recipe.chains.state_dict())


def test_validation_is_the_recipes():
    recipe = Recipe()
    recipe.model_parts[0].eval()
    before, found = recipe.chains.state_dict(), []
    x0, prompt = map(torch.as_tensor, own_trainer.Copying(8, seed=1)[:])
    batch = {"input_ids": x0, "loss_mask": ~prompt}
    recipe._apply_corruption = lambda x0, asked, microbatch_idx: (x0, asked > 0, asked + 0.5)
    recipe.dllm_strategy.pre_step(recipe, [batch])
    recipe.dllm_strategy.forward_backward(
        recipe, 0, batch, loss_buffer=found, num_diffusion_tokens=1, num_batches=1, is_train=False
    )
    assert found and same(before, recipe.chains.state_dict())


def test_a_run_begun_with_random_masks_goes_on_in_its_epoch():
    """Its loader is in the third epoch, of which two batches are read."""
    mdlm = Recipe(epoch=3).chains.queue.loader
    mdlm.sampler.set_epoch(3)
    batches = iter(mdlm)
    next(batches), next(batches)
    saved, rest = mdlm.state_dict(), torch.cat([batch["input_ids"] for batch in batches])
    chains = Recipe(saved, epoch=3).chains
    seen = [row.tolist() for row in chains.x0.flatten(0, 1)]  # 16 of the 24 that are left
    assert seen == rest.tolist()[: len(seen)]


def test_nothing_to_predict_is_named(monkeypatch):
    monkeypatch.setattr(Examples, "asked", False)
    monkeypatch.setattr(Recipe, "supervise", False)
    with pytest.raises(ValueError, match="no example has a token to predict"):
        Recipe()
