"""A race of twins: the same word problems, filled in by random masks and by PUMA+, side by side.

    python lab/twins.py                       # the shipped twins, which were trained by
    python lab/study.py --run --out=out/twins --flags="['config/gsm_mini.py']"
    python lab/twins.py --out_dir="['out/twins/mdm_1','out/twins/puma_plus_1']"
    python lab/twins.py --svg=twins.svg       # the first problems as an animation

Two models of the same seed, data and updates. A forward pass fills in all tokens that the model is
surer of than 0.9, or, where there are none, the two surest. Shown are the question, the program
without the docstring that repeats it, what the program returns, and whether that is right.
"""

import functools
import os
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from configurator import configure
from lab import gsm8k, sandbox, view
from policies import top_k

out_dir = ["results/weights/gsm_mini_mdm", "results/weights/gsm_mini"]
problems = 48  # 1..
svg = ""  # a file: the first four as an animation, instead


def main():
    states = functools.partial(view.sampled, how=(top_k, 2, 0.9))
    runs = [view.filled(folder, 4 if svg else problems, states) for folder in out_dir]
    if svg:
        Path(svg).write_text(view.animated(runs))
        print(f"wrote {svg}")
        return
    results = [*map(returned, runs)]
    print("".join(f"{run.name:{view.WIDTH + 2}}" for run in runs))
    for row in range(len(runs[0].x)):
        race(runs, results, row)
    for run in runs:
        passes = f"{run.at.amax(1).float().mean():.1f} forward passes a problem"
        print(f"{run.name}: {sum(run.solved)} of {len(run.solved)} right, {passes}")


def returned(run):
    """What the program of each answer returns, and a tick if that is right."""
    rows = zip(run.x, ~run.prompt, strict=True)
    texts = [run.problem.tokenizer.text(x[answer]) for x, answer in rows]
    outcomes = sandbox.run(texts, gsm8k.FUNCTION)
    said = [str(each.value) if each.kind == "ok" else each.kind for each in outcomes]
    return [f"{text} {'✓' if right else '✗'}" for text, right in zip(said, run.solved, strict=True)]


def race(runs, results, row):
    """One problem, step by step on a terminal; elsewhere its end alone."""
    print(f"\n{view.question(runs[0], row)}")
    found = [view.pieces(run, row) for run in runs]
    high = 2 + max((line for own in found for line, *_ in own), default=0)
    last = max(int(run.at[row].max()) for run in runs)
    for step in range(last + 1) if os.isatty(1) else [last]:
        columns = [view.lines(own, step, high) for own in found]
        for run, column, result in zip(runs, columns, results, strict=True):
            column[-1] = f"= {result[row]}" if step >= run.at[row].max() else ""
        half = min(view.WIDTH, shutil.get_terminal_size().columns // 2 - 1)
        for texts in zip(*columns, strict=True):
            print("  ".join(f"{text[:half]:{half}}" for text in texts))
        if step < last:
            time.sleep(0.03)
            print(f"\033[{high}A", end="", flush=True)


if __name__ == "__main__":
    configure(globals())
    main()
