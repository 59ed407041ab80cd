"""Variants for one question: why may chains be behind random masks, and what takes that away?

    python train.py config/sudoku_tiny.py --method=puma --variant=lab.why --options="{'pool': 4}"

--options, each alone:
    pool: batches of chains that PUMA visits in turn; 1 in the paper
    visits: random masks, but each example stays for so many updates, as in one batch of chains
    share: PUMA+ follows tau on this share of the visits, by a coin for each chain and visit
    beta2, momentum: of AdamW, of Muon
    theirs: what the authors' code has and train.py has not, a list of the names below

    init    embeddings of standard deviation 1, torch's initialisation of linear layers
    rotary  a rotary embedding whose pairs turn by two angles: no rotation; theta 1e4
    bias    of the output of attention
    decay   of weights, on vectors too
    start   a new chain shows a random share of stage 0

With --task=lab.why a row is the puzzle, blanks included, and then the whole solution; --tau=1.0,
--min_lr=0, --ema=0 and --muon=False are the rest of their procedure.
"""

from pathlib import Path

import numpy as np
import torch

import model as root
import puma
import sudoku

THEIRS = "init", "rotary", "bias", "decay", "start"


# -- the model -------------------------------------------------------------------------------------
def make_model(pool=1, visits=1, share=1.0, beta2=0.999, momentum=0.95, theirs=(), **args):
    if unknown := {*theirs} - {*THEIRS}:
        raise SystemExit(f"theirs: {', '.join(unknown)}: expected some of {', '.join(THEIRS)}")
    made = root.Transformer(**args | ({"theta": 1e4} if "rotary" in theirs else {}))
    made.pool = pool
    made.visits = visits
    made.share = share
    made.beta2 = beta2
    made.momentum = momentum
    made.theirs = theirs
    for layer in made.model.layers:
        if "bias" in theirs:
            layer.self_attn.o_proj.bias = torch.nn.Parameter(torch.zeros(args["dim"]))
        if "rotary" in theirs:
            layer.self_attn.forward = unrotated.__get__(layer.self_attn)
    if "init" in theirs:
        made.apply(torchs_own)
    return made


def torchs_own(part):
    if isinstance(part, torch.nn.Linear | torch.nn.Embedding):
        part.reset_parameters()


def unrotated(self, h, cos, sin, visible):
    """Attention with the authors' embedding: component 2i turns with 2i + 1, by two angles."""
    B, L, _ = h.shape
    q, k, v = (
        proj(h).view(B, L, -1, self.width).transpose(1, 2)
        for proj in (self.q_proj, self.k_proj, self.v_proj)
    )
    turned = (t * cos + neighbours(t) * sin for t in (q, k))
    out = torch.nn.functional.scaled_dot_product_attention(*turned, v)
    return self.o_proj(out.transpose(1, 2).reshape(B, L, -1))


def neighbours(t):
    return torch.stack((-t[..., 1::2], t[..., 0::2]), -1).flatten(-2)


def wrap_update(update, model, optimizer):
    layers, ends, vectors = optimizer.param_groups
    for group in optimizer.param_groups:
        group["betas"] = group["betas"][0], model.beta2
    if layers["momentum"]:
        layers["momentum"] = model.momentum
    if "decay" in model.theirs:
        vectors["weight_decay"] = ends["weight_decay"]
    return update


# -- the streams -----------------------------------------------------------------------------------
class Repeated(puma.RandomMasking):
    """Random masks, new ones each time, of examples that stay for `visits` updates."""

    def __init__(self, queue, mask_token, visits):
        super().__init__(queue, mask_token)
        self.visits = visits
        self.x0, self.prompt = (part.clone() for part in queue.take(queue.all))
        self.age = torch.arange(queue.rows, device=self.x0.device) % visits

    def batch(self, iteration):
        self.hidden = self.hide(self.prompt)
        x = self.x0.masked_fill(self.hidden, self.mask_token)
        return puma.Batch(x, self.x0.clone(), self.hidden)

    def advance(self, score, confidence):
        super().advance(score, confidence)
        self.age += 1
        ended = self.age >= self.visits
        x0, prompt = self.queue.take(ended)
        self.x0.copy_(torch.where(ended[:, None], x0, self.x0))
        self.prompt.copy_(torch.where(ended[:, None], prompt, self.prompt))
        self.age.masked_fill_(ended, 0)

    def state_dict(self):
        own = {"x0": self.x0, "prompt": self.prompt, "age": self.age}
        return super().state_dict() | own

    def load_state_dict(self, state):
        super().load_state_dict(state)
        for name in "x0", "prompt", "age":
            getattr(self, name).copy_(state[name])


class Chains(puma.ProgressiveUnmasking):
    """PUMA's or PUMA+'s, with tau on a share of the visits, or the authors' first states."""

    def __init__(self, share, random_start, *how):
        self.share = share
        self.often = how[3]
        self.random_start = random_start
        super().__init__(*how)

    def hidden_at(self, prompt, stage):
        if not self.random_start:
            return super().hidden_at(prompt, stage)
        effective = (~prompt).sum(1)
        count = puma.tokens_at((stage + puma.uniform(stage)) / self.stages, effective)
        return ~prompt & ~puma.reveal(puma.uniform(prompt), ~prompt, count)

    def advance(self, score, confidence):
        if self.share < 1:
            off = puma.uniform(self.stage[self.turn]) >= self.share
            self.tau = torch.where(off, 1.0, self.often)[:, None]  # (B, 1)
        super().advance(score, confidence)


def make_streams(model, queue, method, k_schedule, tau, grad_accum, **rest):
    rest |= dict(method=method, k_schedule=k_schedule, tau=tau, grad_accum=grad_accum)
    masks, chains, begin = puma.make_streams(model, queue, **rest)
    queue.load_state_dict({"taken": 0})  # chains that were made are not used
    if model.visits > 1:
        return masks, Repeated(queue, model.mask_token, model.visits), 0
    if chains is None:
        return masks, None, begin
    buffer = len(chains.x0) if chains.second_visit else model.pool * grad_accum
    how = queue, model.mask_token, k_schedule, tau, buffer, chains.second_visit
    return masks, Chains(model.share, "start" in model.theirs, *how), begin


# -- the authors' rows, as a task ------------------------------------------------------------------
class PuzzleThenSolution(sudoku.Sudoku):
    """Tokens 0 .. n-1 the digits, n a blank, n + 1 the mask; L = 2 n^2, the first half given."""

    def __init__(self, folder):
        super().__init__(folder)
        self.cells = self.length
        self.length = 2 * self.cells
        self.mask_token += 1
        self.vocab_size += 1
        self.test = Doubled(self.test, self.mask_token - 1)

    @property
    def train(self):
        return Doubled(sudoku.Puzzles(self.folder / "train.npy"), self.mask_token - 1)

    def judge(self, tokens, x0, prompt):
        puzzle = x0[:, : self.cells]
        given = np.where(puzzle < self.mask_token - 1, puzzle + 1, 0)
        return sudoku.solves(tokens[:, self.cells :] + 1, given, self.box)


class Doubled:
    def __init__(self, puzzles, blank):
        self.puzzles = puzzles
        self.blank = blank

    def __len__(self):
        return len(self.puzzles)

    def __getitem__(self, indices):
        x0, prompt = self.puzzles[indices]
        both = np.concatenate([np.where(prompt, x0, self.blank), x0], 1)  # (n, 2 cells)
        return both, np.broadcast_to(np.arange(both.shape[1]) < x0.shape[1], both.shape).copy()


def load(folder, test_examples):
    return PuzzleThenSolution(Path(folder))
