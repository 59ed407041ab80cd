"""Names, colours, line styles and titles of runs in figures.

Random masks are orange and PUMA is blue in every figure. Where both methods come with several
settings, and where each group has a line of its own, the colour is the method. Other groups have
other colours (Okabe and Ito's) and line styles, so that they are told apart without colour vision.
"""

import itertools
import math

METHODS = {"puma": "PUMA", "mdm": "random masks", "ar": "next token"}
LOOKS = {"PUMA": ("#0072b2", "-"), "random masks": ("#d55e00", "--")}
OTHERS = "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#882255"
STYLES = "-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1))
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


def looks(groups):
    """The colour and line style of groups, each as (method, its settings in words).

    A method's own look goes to the first of its groups with the fewest settings.
    """
    arms = [arm for arm, _ in groups]
    both = min(map(arms.count, ("PUMA", "random masks"))) > 1  # each with the same settings
    named = [(words.count(", ") + bool(words), n) for n, (_, words) in enumerate(groups)]
    own = {arm: min(each for each in named if arms[each[1]] == arm)[1] for arm in arms}
    others = itertools.count()
    styles = {arm: itertools.count() for arm in arms}
    found = []
    for place, arm in enumerate(arms):
        color, style = LOOKS.get(arm, (OTHERS[0], "-"))
        if both:
            style = STYLES[next(styles[arm]) % len(STYLES)]
        elif own[arm] != place or arm not in LOOKS:
            n = next(others)
            color, style = OTHERS[n % len(OTHERS)], STYLES[n % len(STYLES)]
        found.append({"color": color, "linestyle": style})
    return found


def method_color(method):
    """That of PUMA for its variants too."""
    name = METHODS.get(method.split("_")[0])
    return LOOKS[name][0] if name in LOOKS else OTHERS[0]


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
        operation = same.get("operation", "addition" if task == "addition" else task)
        return f"{same['digits']}-digit {operation}" if "digits" in same else operation
    if task == "text":
        return first.get("data_dir") or "generated word problems"
    return task.replace("_", " ")
