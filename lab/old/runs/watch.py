"""A problem filling in, in the terminal: `python sample.py --watch`.

Each token has a colour and a mark after it (MARKS), so that nothing is lost without colours: if
NO_COLOR is set, or standard output is not a terminal. In the latter case the frames follow one
another; a terminal shows them in place.
"""

import itertools
import math
import os
import shutil
import sys
import time

import numpy as np
import torch

import losses
import tasks
from engine.head import chunks

SURE = 0.9  # confidence above which a token counts as sure: the tau of most runs
MARKS = {  # kind: (mark, colour as in ECMA-48's select graphic rendition)
    "given": ("", "1"),
    "hidden": ("", "2"),
    "newest": ("\N{BLACK LEFT-POINTING SMALL TRIANGLE}", "7;36"),
    "sure": ("\N{BULLET}", "32"),
    "less sure": ("\N{RING OPERATOR}", "33"),
    "wrong": ("\N{BALLOT X}", "1;31"),
}


@torch.no_grad()
def probabilities(model, tokens, revealed_at, block=0):
    """The model's probabilities at each step of a row tokens, revealed_at (L,); yields (n, L, V).

    The first of these steps sees only the prompt; after the last one all tokens are revealed.
    """
    last = int(revealed_at.max())
    sizes = model.vocab_size * len(tokens)
    place = torch.arange(len(tokens), device=tokens.device) // (block or len(tokens))
    carry = None
    parts = chunks(last, sizes, tokens.device)
    for part in [slice(n, n + 1) for n in range(last)] if model.carries else parts if last else ():
        step = torch.arange(last, device=tokens.device)[part, None]
        x = tokens.where(revealed_at <= step, torch.full_like(tokens, model.mask_token))
        h = losses.hidden_states(model, x, tokens.expand_as(x), block, carry)
        if model.carries:  # within the block that is being filled in
            carry = h * (place == place[revealed_at == part.stop][0])[:, None]
        yield model.logits(h).softmax(-1)


def confidences(model, tokens, revealed_at, block=0):
    """The probability of each token at the step that revealed it, (L,); 0 where it is given."""
    if not revealed_at.any():
        return torch.zeros(len(tokens))
    parts = probabilities(model, tokens, revealed_at, block)
    own = torch.cat([p.gather(-1, tokens.expand(len(p), -1)[..., None])[..., 0] for p in parts])
    return own.gather(0, (revealed_at - 1).clamp(min=0)[None])[0] * (revealed_at > 0)


def truth(task, x, hidden):
    """The clean tokens of a problem (L,), if it is the first example of validation; else None.

    A question may have other right answers, so that there is no truth for single tokens.
    """
    x0, prompt = (torch.as_tensor(part)[0] for part in task.validation[np.arange(1)])
    x, hidden = x.cpu(), hidden.cpu()
    same = prompt.any() and prompt.equal(~hidden) and x0.long()[prompt].equal(x[prompt])
    return x0.numpy() if same else None


class Screen:
    """Frames of one problem, x and hidden (L,), each printed over the last one."""

    def __init__(self, task, test, x, hidden):
        self.test = test
        self.truth = truth(task, x, hidden)
        self.height = 0
        self.given, self.x = ~hidden.cpu().numpy(), x.cpu().numpy()
        self.terminal = sys.stdout.isatty()
        self.colours = self.terminal and not os.environ.get("NO_COLOR")

    def begin(self):
        """The frame before the first step: before any token is sampled."""
        self.draw(self.x, np.where(self.given, 0, 1), np.zeros(len(self.x)), 0, "")

    def play(self, model, tokens, revealed_at, block, delay):
        """The steps of tokens, revealed_at (L,), `delay` seconds apart."""
        sure = confidences(model, tokens, revealed_at, block).cpu().numpy()
        tokens, at = tokens.cpu().numpy(), revealed_at.cpu().numpy()
        for step in range(at.max() + 1):
            self.draw(tokens, at, sure, step, f" of {at.max()}")
            time.sleep(delay)

    def draw(self, tokens, at, sure, step, of):
        """Print what is revealed after a step. at, sure (L,) as in `play`."""
        kinds = np.where(sure > SURE, "sure", "less sure").astype(object)
        kinds[at == step] = "newest"
        if self.truth is not None:
            kinds[tokens != self.truth] = "wrong"
        kinds[at == 0], kinds[at > step] = "given", "hidden"
        problem = marked(self.test.pieces(tokens, at <= step), kinds)
        runs = [*problem, ("\n", ""), *self.legend(), (f"\nstep {step}{of}", "")]
        text = "".join(text for text, _ in runs)
        size = shutil.get_terminal_size()
        height = sum(max(1, math.ceil(len(line) / size.columns)) for line in text.split("\n"))
        if self.terminal and self.height:  # as far up as the terminal goes, to overwrite it
            print(f"\033[{min(self.height, size.lines - 1)}A\033[J", end="")
        print("".join(itertools.starmap(self.coloured, runs)), flush=True)
        self.height = height

    def coloured(self, text, kind):
        return f"\033[{MARKS[kind][1]}m{text}\033[0m" if self.colours and kind else text

    def legend(self):
        """Each mark with its name, as runs."""
        for kind, (mark, _) in MARKS.items():
            if mark and (kind != "wrong" or self.truth is not None):
                yield f"{mark} {kind}", kind
                yield "   ", ""
        yield f"(sure: above {SURE:g})", ""


def marked(pieces, kinds):
    """Runs of tokens of one kind as (text, kind), each with its mark; between tokens kind is "".

    In a grid the mark takes the place of the space that follows, so that columns stay aligned.
    """
    room = False
    for kind, run in itertools.groupby(pieces, lambda p: "" if p[0] is None else kinds[p[0]]):
        text = tasks.printable("".join(text for _, text in run))
        if not kind:
            yield text[room and text[:1] == " " :], ""
            continue
        mark = MARKS[kind][0]
        body = text.rstrip("\n")
        yield body + mark, kind
        yield text[len(body) :], ""
        room = bool(mark)
