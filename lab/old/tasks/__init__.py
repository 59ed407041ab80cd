"""What a run can be trained on. A task is one module with `load(config)`, named in TASKS.

`load` takes the configuration of a run (keys as in train.py) and returns an object that has

    length, vocab_size, mask    of a row: tokens, ids (counting the mask token's), the mask's id
    train, validation           data[indices (n,)] -> x0 (n, L) ids, prompt (n, L) bool; len(data)
    padding(x0)                 (n, L) bool: positions without content
    test                        Problems to solve
    problems(name, file)        other Problems: a named set, or from a file (eval.py)
    prompts(texts)              other Problems: those that a user types (sample.py)
    examples(name)              another split, like validation, for its likelihood
    characters                  x0 (n, L) -> characters per row, for text without prompts; or None
    files                       paths that `prompts` reads; a run keeps copies

with numpy arrays; `Task` has defaults for all but the first two lines and `test`. `load` is called
by every process, at resume and by eval.py: it must always return the same data, and what is held
out must not depend on train_examples, which is 1 where a run is evaluated.

A task's own settings are the fields of `Settings`, a NamedTuple in its module, which may be absent:
see `settings`. `load` reads them as config["name"], as it reads settings of train.py.
"""

import importlib
import math
import traceback
from collections import Counter

import numpy as np
import torch

TASKS = {
    "sudoku": "sudoku", "text": "tasks.text", "instructions": "tasks.codeeval",
    "arithmetic": "tasks.arithmetic", "own_text": "tasks.own_text",
    **dict.fromkeys(("permutations", "sums", "latin", "brackets"), "tasks.rules"),
}  # fmt: skip
FIRST = 1024  # rows of each set that `check` reads


def get(name):
    """The module of a task, imported on demand. Raises ValueError for an unknown name."""
    if name not in TASKS:
        raise ValueError(f"dataset {name!r}: expected {', '.join(TASKS)}")
    package = __package__.removesuffix("tasks")  # "puma_mdm." if these files are in a package
    module = importlib.import_module(package + TASKS[name])
    if not hasattr(module, "load"):
        raise ValueError(f"dataset {name!r}: {module.__file__} has no function load(config)")
    return module


def settings(name):
    """The NamedTuple of a task's own settings, or None."""
    return getattr(get(name), "Settings", None)


def settings_of(config):
    """The same, of the configuration's task."""
    return settings(config["dataset"])


def check(task):
    """Look at the first rows. Raises ValueError that says what does not have the form above."""
    try:
        wrong = misfit(task)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        wrong = f"{place.filename}, line {place.lineno}: {type(error).__name__}: {error}"
    if wrong:
        raise ValueError(f"not a task as tasks/__init__.py describes it: {wrong}")


def misfit(task):
    """What is wrong with its first rows, or None."""
    last = task.vocab_size - 1
    for name in "train", "test", "validation":
        data = getattr(task, name)
        x, marked = map(np.asarray, data[np.arange(min(len(data), FIRST))])
        fits = x.shape == marked.shape == (len(x), task.length) and x.dtype.kind in "iu"
        least = min(x.min(), last - x.max(), task.mask, last - task.mask)
        if not fits or marked.dtype.kind != "b" or least < 0:
            found = f"{x.dtype} {x.min()} to {x.max()} {x.shape}, {marked.dtype} {marked.shape}"
            expected = f"ids and mask 0 to {last}, and bool, both (rows, {task.length})"
            return f"{name}: {found}: expected {expected}"
    (record,) = task.test.judge(x[:1], np.zeros(1, int))  # a row of validation is an answer
    texts = [text for _, text in task.test.pieces(x[0], None)]
    if not isinstance(dict(record)["kind"], str) or not all(
        isinstance(text, str) for text in texts
    ):
        found = f"judge: {record!r:.80}, pieces: texts {texts!r:.80}"
        return f"{found}: expected a word as kind, and (position, text) pairs"
    return None


class Task:
    """Defaults of what `load` returns."""

    characters = None
    files = ()

    def padding(self, x0):
        return np.zeros(x0.shape, bool)

    def problems(self, name, file):
        raise ValueError(f"problems {name!r}, file {file!r}: this task has only its held-out ones")

    def prompts(self, texts):
        raise ValueError("this task takes no prompt: leave it out to see a held-out problem")

    def examples(self, name):
        raise ValueError(f"problems {name!r}: this task's --nelbo is for its validation set only")


class Problems:
    """A test set: it never puts answers into x, so no mistake in a mask can leak one.

    judged: whether answers can be called right or wrong; if not, a run is evaluated by its loss
    alone. A task provides __len__ and
        [indices (n,)]          array or list -> x (n, L) ids, the mask token wherever hidden, and
                                hidden (n, L) bool
        judge(tokens, indices)  -> a dictionary for each row of tokens (n, L): "kind" is "correct"
                                or says why not; the rest is for the reader
        pieces(tokens, seen)    -> [(position, text)] that make up the text of one row (L,);
                                position None: not a token; seen (L,) bool: show these, None = all
    """

    judged = True
    broken = None  # or a method, see sample.generate

    def batches(self, count, size, rank, world):
        """Index arrays of equally long problems to generate together, for one of the processes.

        For the first `count`. Here one array for the whole share: `generate` holds `size` rows at a
        time.
        """
        return [np.arange(rank, count, world)]

    def again(self, attempt):
        """These problems for another try, after an answer that breaks a rule; perhaps varied.

        Raises ValueError if only someone who knows the answer can tell that one is wrong.
        """
        raise ValueError("tries: expected 1, as no rule tells whether an answer is right")

    def summary(self, records):
        """The part of a row of results on how many are solved, and how the others fail."""
        kinds = Counter(record["kind"] for record in records)
        return accuracy(records) | {"kinds": dict(kinds.most_common())}

    def show(self, tokens, seen=None):
        """The text of one row (L,)."""
        return "".join(text for _, text in self.pieces(tokens, seen))

    def verdict(self, record):
        """One line about a record of `judge`."""
        return record["kind"].replace("_", " ")

    def judge_references(self, most=None):
        """Records of the first `most` reference solutions; None = all."""
        raise ValueError("these problems have no reference solutions")


def printable(text):
    """Output of a model or a program for a terminal: what is not printable is escaped."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def accuracy(records):
    """The share of correct records, and its 95 % interval."""
    correct = sum(record["kind"] == "correct" for record in records)
    return {
        "accuracy": correct / len(records),
        "interval": wilson_interval(correct, len(records)),
    }


def wilson_interval(correct, n):
    """95 % interval of a share, by Wilson's score; (0, 1) if n is 0."""
    if n == 0:
        return 0.0, 1.0
    z, share = 1.959964, correct / n
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + (z / n / 2) ** 2)
    low, high = ((centre + sign * spread) / (1 + z * z / n) for sign in (-1, 1))
    return max(low, 0.0), min(high, 1.0)  # clips rounding errors


def problems_on(device, test, indices):
    """x ids and hidden bool, (n, L), of a test set, as tensors on a device."""
    x, hidden = (torch.as_tensor(part).to(device) for part in test[indices])
    return x.long(), hidden
