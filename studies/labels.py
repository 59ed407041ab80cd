"""Names, colours, line styles and titles of runs in figures.

Random masks are orange and PUMA is blue in every figure. Where both methods come with several
settings, the colour is the method and the line style the setting; other groups have other colours.
The palette is Okabe and Ito's, and line styles differ as well, so that
groups are told apart without colour vision.
"""

import itertools
import math

METHODS = {"puma": "PUMA", "mdm": "random masks", "ar": "next token"}
LOOKS = {"puma": ("#0072b2", "-"), "mdm": ("#d55e00", "--"), "ar": ("#595959", ":")}
OTHERS = "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#882255"
STYLES = "-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1))


def looks(groups):
    """[(color, line style)] of groups, each as (arm, its settings in words).

    A method's own look goes to its group without a setting, or else to the first.
    """
    arms = [arm for arm, _ in groups]
    several = {arm for arm in arms if arms.count(arm) > 1}
    if {"puma", "mdm"} <= several:  # each with the same settings
        seen = {arm: itertools.count() for arm in arms}
        return [
            (LOOKS.get(arm, (OTHERS[0], ""))[0], STYLES[next(seen[arm]) % len(STYLES)])
            for arm in arms
        ]
    own = {arm: groups.index((arm, "")) if (arm, "") in groups else arms.index(arm) for arm in arms}
    others = itertools.count()
    return [
        LOOKS[arm] if own[arm] == place and arm in LOOKS
        else (OTHERS[(n := next(others)) % len(OTHERS)], STYLES[n % len(STYLES)])
        for place, arm in enumerate(arms)
    ]  # fmt: skip


def in_words(config, keys):
    """A group's arm and those of its settings that differ, in words: "PUMA", "K = 4"."""
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


SPECIAL = {
    ("tau", "None"): "no fast-forward",
    ("clues", "None"): "minimal puzzles",
    ("policy", "random"): "in random order",
    ("block_schedule", "[]"): "no blocks",
    ("second_visit", "False"): "as published",
    ("second_visit", "True"): "second visit",
}
FORMS = {
    "policy": "by {}",
    "init_from": "from {}",
    "tau": "tau = {}",
    "clues": "{} clues",
    "buffer": "buffer of {}",
    "chains_from": "chains from update {:,}",
    "papl": "PAPL {:g}",
    "max_iters": "{:,} updates",
    "train_examples": "{:,} examples",
}


def title(runs):
    """The task of the runs, as far as it is the same for all: "6x6 Sudoku, minimal puzzles"."""
    config = runs[0].config
    same = {key: v for key, v in config.items() if all(r.config.get(key) == v for r in runs)}
    task = same.get("dataset", "" if "dataset" in config else "sudoku")
    if task == "sudoku" and "box" in same:
        n = math.prod(same["box"])
        generated = "clues" in same and not config.get("data_file")
        return f"{n}x{n} Sudoku" + (f", {setting('clues', same['clues'])}" if generated else "")
    if task in ("addition", "arithmetic"):  # the first in older records
        operation = same.get("operation", "addition" if task == "addition" else task)
        return f"{same['digits']}-digit {operation}" if "digits" in same else operation
    if task == "text":
        return config.get("data_dir") or "generated word problems"
    return task.replace("_", " ")
