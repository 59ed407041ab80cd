"""Runs whose loss, gradient or weights stop being finite: what is left of them must be finite."""

import torch

from tests.attacks.lab import TEXT, TINY, Case, contents

WILD = (*TINY, "--lr=1e9", "--warmup=0", "--out_dir={out}/new")
SHAPES = [  # of runs that blow up at some iteration near 10
    f"--log_interval={log} --checkpoint_interval={save} --eval_interval={evaluate} {more}"
    for log, save, evaluate, more in (
        (1, 3, 100, ""), (10, 3, 100, ""), (1000, 3, 100, ""), (1000, 1000, 100, ""),
        (10, 1, 100, ""), (7, 5, 6, ""), (1000, 1000, 5, ""), (10, 3, 100, "--ema=0"),
        (10, 3, 100, "--keep_every=2"), (1000, 1000, 100, "--keep_every=5"),
        (10, 3, 100, "--muon=True"), (10, 3, 100, "--method=mdm"), (10, 3, 100, "--method=ar"),
        (10, 3, 100, "--block_schedule=[(0,6)]"), (10, 3, 100, "--micro_batch=2"),
        (10, 3, 100, "--papl=3"), (10, 3, 100, "--grad_clip=0"),
    )
]  # fmt: skip
# After `at` updates the gradient, or its norm alone, is no longer finite; or a weight is not.
POISON = """
import torch
real, calls = torch.nn.utils.clip_grad_norm_, [0]

def clip(parameters, *args, **options):
    parameters = list(parameters)
    calls[0] += 1
    if calls[0] == {at}:
        {what}
    norm = real(parameters, *args, **options)
    {after}
    return norm

torch.nn.utils.clip_grad_norm_ = clip
"""
GRADIENT = "next(p for p in parameters if p.grad is not None).grad.view(-1)[0] = {value}"
WEIGHT = "next(p for p in parameters if p.grad is not None).data.view(-1)[0] = {value}"


def nonfinite(lab, rng):
    for flags in SHAPES:
        for iters in (40, 11):
            words = ("train.py", *WILD, *flags.split(), f"--max_iters={iters}")
            yield diverging(f"lr 1e9, {iters} updates, {flags}", words)
    for iters in range(2, 10):  # wherever it happens, it may be the last update
        words = ("train.py", *WILD, "--eval_interval=100", f"--max_iters={iters}", "--lr=1e30")
        yield diverging(f"lr 1e30, {iters} updates", words)
    words = ("train.py", *TEXT, f"--data_dir={lab.corpus}", "--lr=1e30", "--warmup=0",
             "--max_iters=8", "--checkpoint_interval=1", "--out_dir={out}/new")  # fmt: skip
    yield diverging("text, lr 1e30", words)
    yield from poisoned()


def poisoned():
    words = ("train.py", *TINY, "--out_dir={out}/new", "--max_iters=8", "--eval_interval=100",
             "--checkpoint_interval=3", "--keep_every=2")  # fmt: skip
    for at in (1, 3, 5, 8):
        for value in ("float('nan')", "float('inf')"):
            for kind, what in (("gradient", GRADIENT), ("weight", WEIGHT)):
                change = POISON.format(at=at, what=what.format(value=value), after="")
                yield diverging(f"{kind} {value} in update {at} of 8", words, change)
                unclipped = (*words, "--grad_clip=0", "--log_interval=1000")
                yield diverging(f"{kind} {value} in update {at}, no clipping", unclipped, change)
        after = f"norm = norm * float('nan') if calls[0] == {at} else norm"
        change = POISON.format(at=at, what="pass", after=after)
        yield diverging(f"norm alone NaN in update {at}", words, change, "any")


def diverging(name, words, prelude="", must="refuse"):
    """must: "refuse", or "any": as long as what is saved is finite."""
    after = saved_is_finite if must == "refuse" else only_files
    return Case(name, words, must="refuse", prelude=prelude, after=after)


def saved_is_finite(folder, ended):
    """Exit status 0 with weights that are finite is right: it did not diverge."""
    found = only_files(folder, ended)
    if found == "correct" and ended.status != 0:
        return None
    return found


def only_files(folder, ended):
    files = [*folder.glob("new/checkpoint.pt"), *folder.glob("new/weights/*.pt")]
    if not files:
        return "lost"
    if all(map(finite, files)):
        return "correct"
    return "lost" if ended.status else "silent"


def finite(path):
    return all_finite(contents(path))


def all_finite(value):
    if isinstance(value, dict):
        return all(map(all_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(all_finite, value))
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return bool(value.isfinite().all()) if floating else True


GROUPS = {"nan": nonfinite}
