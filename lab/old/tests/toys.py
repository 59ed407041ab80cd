"""Small stand-ins that the tests share: data sets, a table for a model, chains, a transformer.

Token 9 is the mask where nothing else is said.
"""

import copy
import json

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from block import BlockMasking, BlockUnmasking, NextToken
from data import vocabularies
from data.wordproblems import prepare
from engine.queue import ExampleQueue
from model import Transformer
from puma import MasksThenChains, ProgressiveUnmasking, RandomMasking

MASK = 9
L = 12  # of the transformer and its problems; chains have rows of 24


def first_ranks(n):
    """The first n ranks of the word problems' tokens, whose merges do not need the others."""
    ranks = vocabularies.open_kept(prepare.HERE / "vocabulary.tiktoken").ranks
    return {token: rank for token, rank in ranks.items() if rank < n}


def write_lines(path, rows):
    """Write JSON lines; a row that is text is written as it is. Returns the path."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(line + "\n" for line in lines))
    return path


def contents(folder):
    """{name: bytes} of its files."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flipped(content, at):
    """Bytes with one bit changed, in the byte at this place."""
    return content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]


class Arrays:
    """Examples x0 (n, L) and prompt, (n, L) or alike in all rows: (L,)."""

    def __init__(self, x0, prompt):
        self.x0 = np.asarray(x0)
        self.prompt = np.broadcast_to(np.asarray(prompt, bool), self.x0.shape)

    def __len__(self):
        return len(self.x0)

    def __getitem__(self, indices):
        return self.x0[indices], self.prompt[indices]


class Rows:
    """Example i has effective[i % len] positions to predict, the rest is prompt; all differ."""

    def __init__(self, n, length, effective):
        self.n, self.length, self.effective = n, length, effective

    def __len__(self):
        return self.n

    def __getitem__(self, indices):
        place = np.arange(self.length)
        open_places = np.asarray(self.effective)[indices % len(self.effective)]
        return (indices[:, None] // 9**place + place) % 9, place >= open_places[:, None]


class Table:
    """A "model" whose logits (L, V) depend on the position alone; its last token is the mask."""

    causal = False

    def __init__(self, logits):
        self.table, self.vocab_size = logits, logits.shape[1]
        self.mask_token = self.vocab_size - 1
        self.table[:, self.mask_token] = -torch.inf
        self.batches = []  # the rows of each pass

    def __call__(self, x):
        self.batches.append(len(x))
        return torch.arange(x.shape[1]).expand_as(x)

    def logits(self, position):
        return self.table[position]


# -- chains ----------------------------------------------------------------------------------------
def make_queue(B=16, length=24, effective=None, n=500, seed=0):
    return ExampleQueue(Rows(n, length, effective or [length]), B, seed=seed)


def make_chains(k=3, tau=None, buffer=1, seed=0, kind=ProgressiveUnmasking, **data):
    queue = make_queue(seed=seed, **data)
    generator = torch.Generator().manual_seed(seed)
    schedule = k if isinstance(k, list) else [(0, k)]
    return kind(queue, MASK, generator, schedule, tau, buffer)


class WhenSure(MasksThenChains):
    """Begins under noise, where a tenth of all confidences is above 0.9."""

    SHARE = 0.1

    def __init__(self, *args):
        super().__init__(RandomMasking(*args[:3]), ProgressiveUnmasking(*args))
        self.queue, self.generator = args[0], args[2]


BLOCKS = [(0, 3), (20, 12), (40, 24)]
STREAMS = {  # as train.make_stream makes them: kind(queue, mask, generator, schedule, tau, buffer)
    "puma": ProgressiveUnmasking,
    "as published": lambda *args: ProgressiveUnmasking(*args, second_visit=False),
    "masks, then chains": WhenSure,
    "blocks": lambda *args: BlockUnmasking(*args[:3], BLOCKS, *args[3:]),
    "mdm": lambda *args: RandomMasking(*args[:3]),
    "mdm in blocks": lambda *args: BlockMasking(*args[:3], BLOCKS),
    "ar": lambda *args: NextToken(*args[:3]),
}


def run(stream, steps, confidence=lambda: torch.rand(16, 24)):
    """Batches of a stream under noise in place of a model: (x0, x, hidden)."""
    for iteration in range(steps):
        x, x0, hidden, *_ = stream.batch(iteration)
        assert hidden.any(1).all(), "a slot without a training signal"
        yield x0, x, hidden
        stream.advance(torch.rand(16, 24), confidence())


def assert_resumes(make):
    """Another stream that takes over the state after 25 steps goes on with the same batches."""

    def batches(stream, start, n):
        """[x, x0, hidden] of n iterations, under noise that depends on the iteration alone."""
        for i in range(start, start + n):
            yield [t.clone() for t in stream.batch(i)[:3]]
            score = torch.rand(16, 24, generator=torch.Generator().manual_seed(i))
            stream.advance(score, score)

    whole, other = make(), make()
    list(batches(whole, 0, 25))
    queue, generator = copy.deepcopy(whole.queue.state_dict()), whole.generator.get_state()
    state = copy.deepcopy(whole.state_dict())
    for start, n in (0, 21), (0, 21), (0, 21), (25, 1):  # it is sure of more than the other
        list(batches(other, start, n))
    other.queue.load_state_dict(queue)
    other.generator.set_state(generator)
    other.load_state_dict(state)
    expected = [*batches(whole, 25, 25)]
    for ours, theirs in zip(batches(other, 25, 25), expected, strict=True):
        assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


class Waits(TorchDispatchMode):
    """`with Waits(monkeypatch) as waits`: counts what lets the host wait for the device.

    These are values read by the host, and results whose shape depends on values, as torch marks
    them for its tracers; indexing is one of these with booleans only.
    """

    BAD = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
    INDEXING = torch.ops.aten.index, torch.ops.aten.index_put_, torch.ops.aten.index_put

    def __init__(self, patch):
        super().__init__()
        self.count = 0
        for name in ("tolist", "cpu", "numpy"):  # torch does not mark these
            patch.setattr(torch.Tensor, name, self.counted(getattr(torch.Tensor, name)))

    def counted(self, read):
        def counting(*args):
            self.count += 1
            return read(*args)

        return counting

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.overloadpacket in self.INDEXING:
            places = [place for place in tree_leaves(args[1]) if place is not None]
            self.count += any(place.dtype is torch.bool for place in places)
        else:
            self.count += any(tag in op.tags for tag in self.BAD)
        return op(*args, **(kwargs or {}))


# -- models ----------------------------------------------------------------------------------------
def perturbed(model, scale=0.1):
    """Biases and norms too: at their initial values they test nothing."""
    for p in model.parameters():
        p.data.add_(scale * torch.randn_like(p))
    return model


def make_model(**options):
    """Of three layers, in float64, with weights large enough to be sure of something."""
    torch.manual_seed(0)
    model = Transformer(10, MASK, L, dim=32, layers=3, heads=4, mlp=48, **options)
    return perturbed(model, 0.2).double()


def make_problems(n=7):
    """Rows with holes anywhere, with a prompt in front, with one token given, with nothing to do.

    None with a first block that is all masks: its logits are the same everywhere, and rounding
    would decide what comes first.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(MASK, (n, L), generator=generator)
    hidden = torch.rand(n, L, generator=generator) < 0.5
    hidden[0], hidden[1], hidden[2, :5] = torch.arange(L) > 0, False, False
    return x, hidden


def rewrite_config(folder, **values):
    """Change config.json of a Hugging Face folder; None removes a key."""
    config = json.loads((folder / "config.json").read_text()) | values
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
