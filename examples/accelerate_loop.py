"""Progressive Unmasking in a loop with accelerate: any number of processes, exact resume.

    pip install accelerate
    accelerate launch examples/accelerate_loop.py        or, on one device: python

The task and the model are those of own_trainer.py. Started again with the same number of processes,
it resumes from the last state it saved, exactly as if it had not stopped.
"""

import sys
from pathlib import Path

import torch

try:
    from accelerate import Accelerator
    from accelerate.utils import gather_object, set_seed
except ImportError:
    raise SystemExit("this needs: pip install accelerate") from None

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.queue import ExampleQueue
from examples.own_trainer import MASK, Copying, Net, share_solved
from losses import Objective
from model import Logits
from puma import ProgressiveUnmasking


class Progress:
    """What accelerate does not know: the step, and the chains, which the first process gathers."""

    def __init__(self, chains, rank):
        self.chains, self.rank, self.step = chains, rank, 0

    def state_dict(self):
        return {"step": self.step, "chains": gather_object([self.chains.state_dict()])}

    def load_state_dict(self, state):
        self.step = state["step"]
        self.chains.load_state_dict(state["chains"][self.rank])


def main(out_dir="out/accelerate_loop", steps=200, save_every=100):
    accelerator = Accelerator()
    rank, world, where = accelerator.process_index, accelerator.num_processes, accelerator.device
    set_seed(0)  # the same weights on every process
    net = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=2e-3))
    objective = Objective(Logits(model, MASK))
    queue = ExampleQueue(Copying(20_000, seed=0), 64 // world, where, rank=rank, world=world)
    generator = torch.Generator(where).manual_seed(rank)
    progress = Progress(ProgressiveUnmasking(queue, MASK, generator, k_schedule=4), rank)
    accelerator.register_for_checkpointing(progress)
    if saved := sorted(Path(out_dir).glob("step_*")):
        accelerator.load_state(saved[-1])
    while progress.step < steps:
        batch = progress.chains.batch(progress.step)  # partially hidden rows
        loss, score, confidence = objective(*batch)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        progress.chains.advance(score, confidence)  # reveal true tokens, the most confident first
        progress.step += 1
        if progress.step % 50 == 0:
            accelerator.print(f"step {progress.step}: loss {loss.item():.4f}")
        if progress.step % save_every == 0:
            accelerator.save_state(Path(out_dir, "partial"))
            accelerator.wait_for_everyone()  # a process may be killed before it is whole
            if accelerator.is_main_process:
                Path(out_dir, "partial").rename(Path(out_dir, f"step_{progress.step:06d}"))
    model = Logits(accelerator.unwrap_model(model), MASK)
    accelerator.print(f"{share_solved(model, where):.1%} of held-out rows solved")
    accelerator.end_training()
    return model


if __name__ == "__main__":
    main()
