"""One HTML file in which models fill in Sudoku: held-out puzzles, or one that a visitor types.

    python lab/play.py --out_dir="['out/study/puma_plus_1','out/study/mdm_1']" --out=play.html

lab/play.html is the page without its data: model.py and lab/carry.py in JavaScript, no server, no
network. Models of one size of grid stand side by side. Their weights are rounded to 8 bits: 1.4 MB
for a million.
"""

import base64
import json
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import checkpoint
import policies
import sample
from configurator import configure, pick
from lab.tables import label

out_dir = ["results/weights/sudoku_mini"]  # runs of train.py on Sudoku
out = "play.html"

SHOWN = "", "lab.carry"  # the variants that the pages can follow


def about(folder):
    """What the page needs of a model: its weights, and what it makes of the puzzles with them."""
    model, run = checkpoint.load_model(folder, "cpu")
    name = label(pick("variant", run["variant"], SHOWN) or run["method"])
    problem = checkpoint.module(run["task"]).load(run["data"], 100)
    if not hasattr(problem, "box"):
        raise SystemExit(f"{folder}: the page shows grids, expected a run on Sudoku")
    saved = checkpoint.load(folder)
    data = saved["args"] | rounded(model) | {"box": problem.box, "updates": saved["iteration"]}
    x0, prompt = problem.test[:100]
    generate = checkpoint.of_variant(run["variant"], "generate", sample.generate)
    hidden = ~torch.as_tensor(prompt)
    x, _ = generate(model, torch.as_tensor(x0).long(), hidden, policies.top_k, reveal=2)
    solved = problem.judge(x.numpy(), x0, prompt).tolist()
    pairs = [["".join(map(str, row)) for row in pair] for pair in problem.test.pairs[:100]]
    return data | {"name": name, "puzzles": pairs, "solved": solved}


def rounded(model):
    """Round each row of the weights, in place, to multiples (-127 to 127) of a step of its own."""
    shapes = []
    parts = []
    for name, weight in model.state_dict().items():
        rows = weight.view(len(weight), -1)  # a vector's elements are rows
        step = rows.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
        multiples = (rows / step).round()
        rows.copy_(multiples * step)
        shapes.append([name, *rows.shape])
        parts += [step.numpy().tobytes(), multiples.char().numpy().tobytes()]
    return {"shapes": shapes, "weights": base64.b64encode(b"".join(parts)).decode()}


def write(data, template, out):
    """A page without its data, with it."""
    packed = base64.b64encode(zlib.compress(json.dumps(data).encode(), 9)).decode()
    Path(out).write_text(template.read_text().replace("DATA", packed))
    print(f"wrote {out}, {Path(out).stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    configure(globals())
    write([about(folder) for folder in out_dir], Path(__file__).with_suffix(".html"), out)
