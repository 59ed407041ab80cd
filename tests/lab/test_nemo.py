"""PUMA in NeMo AutoModel's recipe: its own steps, without its set-up and its sharding."""

import copy
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import same
from torch.nn.functional import cross_entropy

pytest.importorskip("nemo_automodel.recipes.dllm.train_ft")
from nemo_automodel.components.config.loader import ConfigNode
from nemo_automodel.components.datasets.dllm.collate import DLLMCollator
from nemo_automodel.recipes.dllm.train_ft import DiffusionLMSFTRecipe
from torchdata.stateful_dataloader import StatefulDataLoader

from lab.nemo_automodel import PumaStrategy


def example(i):
    """13 to 16 tokens, the first 8 given; of every tenth row all is given."""
    ids = [(i * i + k * k + i * k) % 12 for k in range(13 + i % 4)]
    asked = [int(k >= 8 and i % 10 > 0) for k in range(len(ids))]
    return {"input_ids": ids, "loss_mask": asked, "attention_mask": [1] * len(ids)}


class Recipe(DiffusionLMSFTRecipe):
    mask_token_id = 12
    device_mesh = te_fp8 = distributed_config = None
    dist_env = SimpleNamespace(device=torch.device("cpu"))
    cfg = ConfigNode({"dataset": {"seq_length": 16}})

    def __init__(self, saved=None):
        torch.manual_seed(0)
        collate = DLLMCollator(3, max_seq_len=16, supervise_padding=False)
        self.dataloader = StatefulDataLoader([*map(example, range(40))], 8, collate_fn=collate)
        self.dataloader.next_iter_state = saved  # as the recipe does, before the strategy's turn
        self.step_scheduler = SimpleNamespace(step=0, grad_acc_steps=2)
        self.net = torch.nn.Sequential(torch.nn.Embedding(13, 8), torch.nn.Linear(8, 13))
        self.net[1].bias.data[12] = -1e4  # the mask token, which the recipe's loss may predict
        self.model_parts = [lambda input_ids: self.net(input_ids)]
        self.model_parts[0].training = True
        self._dllm_loss_buffer = []
        self.dllm_strategy = PumaStrategy()
        self.dllm_loss_fn = self.dllm_strategy.create_loss_fn({"puma": {"k_schedule": [(0, 4)]}})
        self.dllm_strategy.setup_extra(self)
        self.chains = self.dllm_strategy.chains
        self.advance = self.chains.advance = Mock(wraps=self.chains.advance)

    def run(self, start, stop):
        """Losses of steps of two passes each, and the same by a loop over rows."""
        for self.step_scheduler.step in range(start, stop):
            pair = [batch for batch, _ in zip(self.dataloader, range(2), strict=False)]
            _, rows = self.dllm_strategy.pre_step(self, pair)
            for idx, batch in enumerate(pair):
                x, x0, hidden = self.chains.batch(0)
                logits = self.net(x)
                each = [cross_entropy(logits[i][h], x0[i][h]).item() for i, h in enumerate(hidden)]
                how = {"loss_buffer": [], "num_diffusion_tokens": rows, "num_batches": 2}
                self.dllm_strategy.forward_backward(self, idx, batch, **how)
                yield how["loss_buffer"][0].item(), sum(each) / 16
                confidence = logits.softmax(-1).amax(-1) * hidden
                torch.testing.assert_close(self.advance.call_args.args, (confidence, confidence))


def test_losses_are_means_over_rows_and_a_resumed_run_repeats_them():
    recipe = Recipe()
    losses = [*recipe.run(0, 20)]
    assert all(theirs == pytest.approx(ours, rel=1e-5) for theirs, ours in losses)
    assert recipe.chains.queue.taken > 60 and not recipe.chains.prompt.all(2).any()
    again = Recipe(copy.deepcopy(recipe.dataloader.state_dict()))
    assert [*again.run(20, 30)] == [*recipe.run(20, 30)]
    assert same(again.dataloader.state_dict(), recipe.dataloader.state_dict())
