"""What figures call runs, and how they draw them: words, colours, line styles, a title.

A method has the same colour and line style in every figure. Groups that differ in a setting as well
have others of the palette, which is that of Okabe and Ito: told apart without colour vision, too.
"""

import itertools

METHODS = {
    "puma": "PUMA",
    "mdm": "random masks",
    "ar": "next token",
    "bell": "bell-shaped masks",
    "sat": "self-aligned masks",
    "puma_mixed": "PUMA, half of the rows random",  # so called in records, before random_share
    "puma_quarter_mixed": "PUMA, a quarter of the rows random",
}
LOOKS = {"puma": ("#0072b2", "-"), "mdm": ("#d55e00", "--"), "ar": ("#595959", ":")}
OTHERS = "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d1f"
STYLES = "-.", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1, 1, 1))
TASKS = {"own_text": "own text", "instructions": "instructions"}


def looks(groups):
    """{label: {color, linestyle}} of groups {label: runs}."""
    known, others, found = dict(LOOKS), itertools.count(), {}
    for label, runs in groups.items():
        look = known.pop(runs[0].config.get("method"), None)  # of the method's first group
        if look is None:
            n = next(others)
            look = OTHERS[n % len(OTHERS)], STYLES[n % len(STYLES)]
        found[label] = dict(zip(("color", "linestyle"), look, strict=True))
    return found


def in_words(config, keys):
    """A group of runs by its method and those of its settings that differ: "PUMA, K = 4"."""
    method = str(config.get("method"))
    words = METHODS.get(method, method.replace("puma_", "PUMA, ").replace("_", " "))
    return ", ".join([words, *(setting(key, config.get(key)) for key in keys if key != "method")])


def setting(key, value):
    """A key of train.py and its value, in words."""
    if key == "k_schedule" and isinstance(value, list):
        first, (last, K) = value[0][1], value[-1]
        return f"K = {first}" + f" to {K} by update {last:,}" * (len(value) > 1)
    if key == "block_schedule" and isinstance(value, list):
        sizes = " to ".join(str(size) for size in dict.fromkeys(size for _, size in value))
        return f"blocks of {sizes}" if value else "no blocks"
    if value is None and key in ("tau", "clues"):
        return {"tau": "no fast-forward", "clues": "minimal puzzles"}[key]
    form = FORMS.get(key)
    if form is None or isinstance(value, str | list | dict) or value is None:
        return {"init_from": "from {}", "policy": "by {}"}.get(key, key + " = {}").format(value)
    return form.format(value)


FORMS = {
    "tau": "tau = {}",
    "clues": "{} clues",
    "buffer": "buffer of {}",
    "random_share": "{:.0%} of the rows random",
    "chains_from": "chains from update {:,}",
    "chains_until": "chains until update {:,}",
    "papl": "PAPL {:g}",
    "max_iters": "{:,} updates",
    "train_examples": "{:,} examples",
    "dim": "width {}",
    "heads": "{} heads",
    "mlp": "MLP of {}",
    "muon": "Muon {}",
    "digits": "{} digits",
}


def title(runs):
    """The task of the runs, as far as it is the same for all: "6x6 Sudoku, minimal puzzles"."""
    configs = [run.config for run in runs]
    if len({config.get("dataset") for config in configs}) != 1:
        return ""
    config = configs[0]
    same = {key for key in config if all(c.get(key) == config[key] for c in configs)}
    task = config.get("dataset", "sudoku")
    if task == "sudoku" and "box" in same:
        n = config["box"][0] * config["box"][1]
        puzzles = setting("clues", config.get("clues")) if "clues" in same else ""
        puzzles = "" if config.get("data_file") else puzzles
        return f"{n}x{n} Sudoku" + f", {puzzles}" * bool(puzzles)
    if task == "addition":
        return f"{config['digits']}-digit addition" if "digits" in same else "addition"
    if task == "text":
        return config.get("data_dir") or "generated word problems"
    return TASKS.get(task, task)
