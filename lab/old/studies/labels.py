"""Names, colours, line styles and titles of runs in figures.

Random masks are orange and PUMA is blue in every figure (Okabe and Ito's colours). Several settings
of a method have shades of its colour, and other line styles.
"""

import itertools
import math

METHODS = {"puma": "PUMA", "mdm": "random masks", "ar": "next token"}
SHADES = {  # the first is the method's own
    "PUMA": ("#0072b2", "#56b4e9", "#003a5c"),
    "random masks": ("#d55e00", "#f0a35e", "#7a3600"),
    "next token": ("#009e73", "#66c5ab", "#005a41"),
}
STYLES = "-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1))
NAMES = {
    "add": "addition", "subtract": "subtraction", "sort": "sorting", "latin": "Latin squares",
    "text": "generated word problems", "sums": "sums of three numbers",
}  # fmt: skip
SPECIAL = {
    ("tau", "None"): "no fast-forward",
    ("clues", "None"): "minimal puzzles",
    ("policy", "random"): "in random order",
    ("block_schedule", "[]"): "no blocks",
    ("second_visit", "False"): "as published",
    ("second_visit", "True"): "second visit",
    ("chains_from", "0"): "chains at once",
    ("chains_from", "None"): "chains once it is sure",
    ("carry", "True"): "carry",
}
FORMS = {
    "policy": "by {}",
    "init_from": "from {}",
    "window": "W = {}",
    "loops": "{} loops",
    "clues": "{} clues",
    "buffer": "buffer of {}",
    "chains_from": "chains from update {:,}",
    "papl": "PAPL {:g}",
    "train_examples": "{:,} examples",
    "max_iters": "{:,} updates",
}
BY = {
    "k_schedule": "K", "tau": "tau", "papl": "PAPL", "buffer": "buffer", "clues": "clues",
    "dim": "width", "max_iters": "updates", "window": "W", "policy": "policy",
    "train_examples": "examples",
}  # fmt: skip


def looks(groups):
    """The colour and line style of groups, each as (method, its settings in words).

    A method's own look goes to the first of its groups with the fewest settings.
    """
    said = [", ".join(filter(None, group)).count(", ") for group in groups]
    found = [None] * len(groups)
    counts = {name: itertools.count() for name in SHADES}
    for place in sorted(range(len(groups)), key=lambda n: said[n]):
        name = family(groups[place][0])
        n = next(counts[name])
        style = STYLES[(n + (name == "random masks")) % len(STYLES)]
        found[place] = {"color": SHADES[name][n % 3], "linestyle": style}
    return found


def family(arm):
    """The method of SHADES that a variant belongs to."""
    return arm.split(",")[0] if arm.split(",")[0] in SHADES else "next token"


def method_color(method):
    """That of PUMA for its variants too."""
    return SHADES[family(METHODS.get(method.split("_")[0], ""))][0]


def in_words(config, keys):
    """A group's method and its settings that differ, in words: "PUMA", "K = 4"."""
    arm = str(config.get("method"))
    words = METHODS.get(arm, arm.replace("puma_", "PUMA, ").replace("_", " "))
    told = [key for key in keys if key not in ("method", "data")] or [*{"data"} & {*keys}]
    return words, ", ".join(setting(key, config.get(key)) for key in told)


def setting(key, value):
    """A key of train.py and its value, in words; a value of another form is shown as it is."""
    if (key, str(value)) in SPECIAL:
        return SPECIAL[key, str(value)]
    try:
        if key == "k_schedule":
            first, (last, K) = value[0][1], value[-1]
            return f"K = {first}" + f" to {K} by update {last:,}" * (len(value) > 1)
        if key == "block_schedule":
            return "blocks of " + " to ".join(dict.fromkeys(str(size) for _, size in value))
        return FORMS.get(key, key + " = {}").format(value)
    except (TypeError, ValueError, LookupError):
        return f"{key} = {value}"


def title(configs):
    """The task of runs, as far as it is the same for all: "6x6 Sudoku, minimal puzzles"."""
    first = configs[0]
    same = {key: value for key, value in first.items() if all(c.get(key) == value for c in configs)}
    task = same.get("dataset", "" if "dataset" in first else "sudoku")  # older records
    if task == "sudoku" and "box" in same:
        n = math.prod(same["box"])
        generated = "clues" in same and not first.get("data_file")
        return f"{n}x{n} Sudoku" + (f", {setting('clues', same['clues'])}" if generated else "")
    if task in ("addition", "arithmetic"):  # the first in older records
        operation = same.get("operation", task)
        digits = f", {same['digits']} digits" * ("digits" in same)
        return NAMES.get(operation, operation) + digits
    if task == "text" and first.get("data_dir"):
        return first["data_dir"]
    return NAMES.get(task, task.replace("_", " "))


def compared(configs):
    """What runs differ in: "PUMA and random masks, by K"."""
    arms = [in_words(config, ())[0].split(",")[0] for config in configs]
    varied = [
        word for key, word in BY.items() if len({str(config.get(key)) for config in configs}) > 1
    ]
    return " and ".join(sorted({*arms})) + (f", by {varied[0]}" if len(varied) == 1 else "")
