"""Progressive Unmasking with the Trainer of transformers, for any masked language model.

    pip install transformers accelerate
    python examples/hf_trainer.py

Trains a small BERT on the task of own_trainer.py; any other masked language model can take its
place, with its mask_token_id. The next states depend on what the model predicts now, so batches
come from the chains; the data loader only counts steps. It resumes from its last checkpoint.
"""

import sys
from pathlib import Path

import torch

try:
    import transformers as hf
    from transformers.trainer_utils import get_last_checkpoint
except ImportError:
    raise SystemExit("this needs: pip install transformers accelerate") from None

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.queue import ExampleQueue
from examples.own_trainer import MASK, WORDS, Copying, share_solved
from losses import Objective
from model import Logits
from puma import ProgressiveUnmasking


class PumaTrainer(hf.Trainer):
    def __init__(self, model, args, chains):
        super().__init__(model, args, train_dataset=[{"input_ids": 0}] * args.max_steps)
        self.chains = chains
        self.add_callback(Checkpoints(chains))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        batch = self.chains.batch(self.state.global_step)  # partially hidden rows
        loss, score, confidence = Objective(Logits(model, self.chains.mask_token))(*batch)
        self.chains.advance(score, confidence)  # reveal true tokens, the most confident first
        return loss


class Checkpoints(hf.TrainerCallback):
    """Keeps the chains, their queue and chance in the checkpoints: a file for each process."""

    def __init__(self, chains):
        self.chains = chains

    def file(self, args, state):
        return f"{args.output_dir}/checkpoint-{state.global_step}/chains_{args.process_index}.pt"

    def on_save(self, args, state, control, **_):
        queue = self.chains.queue.state_dict()
        chance = self.chains.generator.get_state()
        torch.save([self.chains.state_dict(), queue, chance], self.file(args, state))

    def on_train_begin(self, args, state, control, **_):
        if state.global_step:  # resumed from a checkpoint
            chains, queue, chance = torch.load(self.file(args, state))
            self.chains.load_state_dict(chains)
            self.chains.queue.load_state_dict(queue)
            self.chains.generator.set_state(chance)


def main(out_dir="out/hf_trainer", steps=200, model=None):
    torch.manual_seed(0)
    small = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    model = model or hf.BertForMaskedLM(hf.BertConfig(vocab_size=WORDS + 1, **small))
    args = hf.TrainingArguments(
        out_dir, max_steps=steps, learning_rate=2e-3, warmup_steps=20, logging_steps=50,
        save_steps=100, per_device_train_batch_size=1, report_to="none",
    )  # fmt: skip
    where = args.device
    rank = args.process_index
    world = args.world_size
    queue = ExampleQueue(Copying(20_000, seed=0), 64, where, args.seed, rank, world)
    chance = torch.Generator(where).manual_seed(rank)
    trainer = PumaTrainer(model, args, ProgressiveUnmasking(queue, MASK, chance, k_schedule=4))
    trainer.train(resume_from_checkpoint=Path(out_dir).exists() and get_last_checkpoint(out_dir))
    print(f"{share_solved(Logits(model, MASK), args.device):.1%} of held-out rows solved")
    return trainer


if __name__ == "__main__":
    main()
