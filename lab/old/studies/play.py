"""One HTML file in which models fill in Sudoku: held-out puzzles, or one that a visitor types.

    python -m studies.play --out_dir="['out/puma','out/mdm','weights/sudoku_nine']" --out=play.html

play.html is the page without its data: model.py in JavaScript, no server, no network. Models of one
size of grid stand side by side. Their weights are rounded to 8 bits: 1.4 MB for a million.
"""

import base64
from pathlib import Path

import tasks
from configurator import configure, errors_as_messages
from engine.files import write
from runs.saved import open_run
from sample import Sampler, generate
from studies.labels import METHODS, method_color
from studies.view import kept, page

out_dir: str | list = "weights/sudoku_nine"  # a run on Sudoku, or a list of runs
out = "play.html"  # the HTML file


def main():
    folders = [*map(str, out_dir)] if isinstance(out_dir, list | tuple) else [out_dir]
    with errors_as_messages():
        loaded = [(open_run(files[-1]), task) for files, _, task in map(kept, folders)]
        if not all(hasattr(task, "box") for _, task in loaded):
            raise ValueError("the page shows grids: expected runs on Sudoku")
        tests = {task.box: task.test for _, task in loaded}  # one for all models of a size
        models = [about(saved, tests[task.box]) for saved, task in loaded]
        write(Path(out), page(models, Path(__file__).with_suffix(".html"), Path(out)))
    print(f"wrote {out}, {Path(out).stat().st_size / 1e6:.2f} MB")


def about(saved, test):
    """What the page needs of a model: its weights, and what it makes of the puzzles with them."""
    data = saved.args | rounded(saved.model) | {"box": test.box, "updates": saved.iteration}
    rows, method = range(min(100, len(test))), saved.config["method"]
    tokens, _, _ = generate(saved.model, *tasks.problems_on("cpu", test, rows), Sampler())
    data |= {"records": test.judge(tokens, rows), "color": method_color(method)}
    return data | {"name": METHODS.get(method, method) + " with a carry" * bool(data.get("carry"))}


def rounded(model):
    """Round each row of the weights, in place, to multiples (-127 to 127) of a step of its own."""
    shapes, parts = [], []
    for name, weight in model.state_dict().items():
        rows = weight.view(len(weight), -1)  # a vector's elements are rows
        step = rows.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
        multiples = (rows / step).round()
        rows.copy_(multiples * step)
        shapes.append([name, *rows.shape])
        parts += [step.numpy().tobytes(), multiples.char().numpy().tobytes()]
    return {"shapes": shapes, "weights": base64.b64encode(b"".join(parts)).decode()}


if __name__ == "__main__":
    configure(globals())
    main()
