"""Tasks of reasoning-gym, picked by a rule, at one token a step and at many.

    pip install reasoning-gym
    python lab/thirty.py                            # what of it is done, and its tables
    python lab/thirty.py --run                      # first what is missing: 25 hours of a core
    python lab/thirty.py --figure=thirty.png        # also accuracy against forward passes

PUMA+ and random masks after as many updates, random masks after twice as many, and PUMA on ten of
the tasks, drawn by lot. `solved`: the verifier gives an answer the full score; `right`: the share
of the answers' tokens, their ends included. An interruption leaves its runs with their checkpoints:
the same command goes on. A finished run leaves eval.json, and its checkpoint is deleted.
"""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import checkpoint
import policies
import sample
from configurator import configure, pick
from lab import study
from lab.evaluate import fill, open_run
from lab.study import interval, label, spread

seeds = 4
out = "out/thirty"
run = False  # train what is missing; else only the tables
only = []  # of these tasks; [] = of all
jobs = 2  # at a time, on a core each
judge = ""  # a run's folder: measure it
figure = ""  # a file of matplotlib
title = ""  # of the figure: its finding
if __name__ == "__main__":
    configure(globals())

TASKS = {  # {generator: its flags}; the rule is in results/thirty.md
    "ab": "",
    "binary_matrix": "--min_n=4 --max_n=5",
    "complex_arithmetic": "",
    "countdown": "--max_numbers=4",
    "cryptarithm": "",
    "decimal_arithmetic": "",
    "decimal_chain_sum": "",
    "fraction_simplification": "",
    "game_of_life": "--grid_size_x=5 --grid_size_y=5",
    "group_anagrams": "--max_anagram_groups=2 --max_words_per_group=2",
    "letter_jumble": "--max_words=5",
    "mini_sudoku": "",
    "number_filtering": "--max_numbers=4",
    "number_format": "--max_num_candidates=3",
    "number_sorting": "--max_numbers=6",
    "palindrome_generation": "",
    "palindrome_partitioning": "--max_string_len=5",
    "path_star": "--node_range=100",
    "polynomial_equations": "",
    "polynomial_multiplication": "--max_terms=2 --max_polynomials=2",
    "pool_matrix": "--max_rows=4 --max_cols=4",
    "power_function": "",
    "rotate_matrix": "--max_n=5",
    "simple_integration": "--max_terms=3",
    "sokoban": "--max_w=6 --max_h=6 --min_boxes=2 --max_boxes=4",
    "spell_backward": "",
    "spiral_matrix": "--max_n=5",
    "string_insertion": "",
    "word_sequence_reversal": "--max_words=6",
}
BY_LOT = [  # with PUMA, too; drawn once
    "complex_arithmetic",
    "countdown",
    "cryptarithm",
    "game_of_life",
    "number_format",
    "number_sorting",
    "path_star",
    "simple_integration",
    "sokoban",
    "spiral_matrix",
]
UPDATES = 1200
ARMS = {
    "puma_plus": "--method=puma_plus",
    "mdm": "--method=mdm",
    "mdm_twice": f"--method=mdm --max_iters={2 * UPDATES}",
    "puma": "--method=puma",
}
PAIR = "puma_plus", "mdm"
SAMPLERS = {  # tokens a step, tau
    "1": (1, 1.0), "2": (2, 1.0), "4": (4, 1.0), "8": (8, 1.0), "> 0.9": (1, 0.9), "all": (128, 1.0)
}  # fmt: skip


def main():
    tasks = [pick("only", task, TASKS) for task in only] or [*TASKS]
    pairs = [
        (task, arm, seed)
        for seed in range(1, seeds + 1)
        for arm in ARMS
        for task in tasks
        if arm != "puma" or task in BY_LOT
    ]
    pairs.sort(key=lambda pair: pair[1] == "mdm_twice")  # the longest last
    if run:
        for task in tasks:
            prepare(task)
        study.side_by_side(train, pairs, jobs)
    found = {
        (task, arm, seed): json.loads(kept(task, arm, seed).read_text())
        for task, arm, seed in pairs
        if all(kept(task, each, seed).exists() for each in {arm, *PAIR})
    }
    tasks = [task for task in tasks if values(found, task, "mdm", "1")]
    if not tasks:
        raise SystemExit(f"{out}: no pair of runs is finished; add --run")
    table(tasks, found)
    if figure:
        draw(tasks, found)


# -- runs ------------------------------------------------------------------------------------------
def kept(task, arm, seed):
    return Path(out, task, f"{arm}_{seed}", "eval.json")


def call(command, log):
    """Run a command of this folder on one core; what it prints goes to a file."""
    if study.launch([sys.executable, *command], log).wait():
        raise SystemExit(f"{' '.join(command)} has stopped; {log} says why")


def prepare(task):
    folder = Path("data/gym", task)
    flags = TASKS[task].split()
    if not folder.exists():
        print(f"data of {task}", flush=True)
        subprocess.run([sys.executable, "data/gym/prepare.py", task, *flags], check=True)
    made = json.loads((folder / "header.json").read_text())["source"]["options"]
    if {f"--{key}={value}" for key, value in made.items()} != {*flags}:
        raise SystemExit(f"{folder} was made with other flags than {flags}: remove it")


def train(task, arm, seed):
    """Train a run, measure it, delete its weights; unless that has been done."""
    where = kept(task, arm, seed).parent
    if (where / "eval.json").exists():
        return
    print(f"{task}, {arm}, seed {seed}", flush=True)
    where.parent.mkdir(parents=True, exist_ok=True)
    header = json.loads(Path("data/gym", task, "header.json").read_text())
    stages = f"--k_schedule=[(0,{max(2, round(header['length'] / 8))})]"  # eight
    flags = [f"--data=data/gym/{task}", *ARMS[arm].split(), stages, "--eval_interval=0"]
    flags += [f"--seed={seed}", f"--out_dir={where}", "--resume", "--dtype=float32", "--compile"]
    flags += ["--eval_reveal=128"]  # one pass: measured below
    call(["train.py", "config/gym.py", *flags], f"{where}.log")
    call(["lab/thirty.py", f"--judge={where}"], f"{where}.log")
    (where / "ckpt.pt").unlink()


def measure(where):
    """Of each sampler [solved, right, forward passes an answer], means over the held-out rows."""
    model, config, problem, count = open_run(where, None, "cpu")
    policy = policies.POLICIES[config["policy"]]
    result = {}
    for name, how in SAMPLERS.items():
        rows = []
        for at in range(0, count, 64):
            x0, prompt = problem.test[at : min(at + 64, count)]
            tokens, steps = fill(model, sample.generate, x0, prompt, policy, *how)
            answer = ~prompt & ((x0 == problem.end).cumsum(1) <= 1)  # up to the first end
            right = ((tokens == x0) & answer).sum(1) / answer.sum(1)
            rows.append(np.stack([problem.judge(tokens, x0, prompt), right, steps]))
        result[name] = np.concatenate(rows, 1).mean(1).tolist()
    with checkpoint.opened(where, "eval.json", "w") as file:
        json.dump(result, file)


# -- tables ----------------------------------------------------------------------------------------
def values(found, task, arm, sampler, what=0):
    """{seed: value} of the finished runs; what: 0 solved, 1 right, 2 forward passes."""
    return {s: kept[sampler][what] for (t, a, s), kept in found.items() if (t, a) == (task, arm)}


def gaps(found, task, arm, sampler, what=0):
    """Differences to random masks, of pairs of the same seed."""
    ours, theirs = (values(found, task, each, sampler, what) for each in (arm, "mdm"))
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def mean(numbers):
    return sum(numbers) / len(numbers) if numbers else float("nan")


def average(found, task, arm, sampler, what=0):
    return mean([*values(found, task, arm, sampler, what).values()])


def learned(found, task):
    """Whether some arm solves 5 % with some sampler."""
    return any(average(found, task, arm, each) >= 0.05 for arm in ARMS for each in SAMPLERS)


def table(tasks, found):
    known = [task for task in tasks if learned(found, task)]
    known.sort(key=lambda task: -mean(gaps(found, task, "puma_plus", "1")))
    print("% solved, PUMA+ and random masks, and the difference [95 % interval over seeds]")
    print(f"{'':26}" + "".join(f"{sampler + ' a step':32}" for sampler in ("1", "4", "> 0.9")))
    for task in known:
        cells = []
        for sampler in "1", "4", "> 0.9":
            ours, theirs = (100 * average(found, task, arm, sampler) for arm in PAIR)
            gap = interval(gaps(found, task, "puma_plus", sampler))
            cells.append(f"{ours:5.1f} {theirs:5.1f} {gap:20}")
        print(f"{task:26}" + "".join(cells))
    print("not learned, tokens right (PUMA+, random masks, difference):")
    for task in sorted(set(tasks) - set(known)):
        right = " ".join(f"{100 * average(found, task, arm, '1', 1):.1f}" for arm in PAIR)
        print(f"  {task:26}{right} {interval(gaps(found, task, 'puma_plus', '1', 1))}")
    for what, name, of in (0, "solved", known), (1, "right", tasks):
        print(f"{name}, difference to random masks:")
        for arm in "puma_plus", "mdm_twice", "puma":
            for sampler in SAMPLERS:
                summary(arm, sampler, what, of, found)
    print("forward passes to what random masks solve one a step (PUMA+, random masks):")
    for task in known:
        fewest = [passes(found, task, arm) for arm in PAIR]
        print(f"  {task:24}{fewest[0]:6.1f}{fewest[1]:6.1f}")


def passes(found, task, arm):
    """The fewest of an answer with which an arm solves what random masks solve one a step."""
    wanted = average(found, task, "mdm", "1")
    enough = [each for each in SAMPLERS if average(found, task, arm, each) >= wanted > 0]
    return min((average(found, task, arm, each, 2) for each in enough), default=float("inf"))


def summary(arm, sampler, what, tasks, found):
    """Of an arm against random masks over tasks: ahead, won, lost, and the mean difference."""
    of_tasks = [pairs for task in tasks if (pairs := gaps(found, task, arm, sampler, what))]
    if not of_tasks:
        return
    means = [mean(pairs) for pairs in of_tasks]
    bounds = [spread(pairs) for pairs in of_tasks if len(pairs) > 1]
    ahead = sum(middle > 0 for middle in means)
    won = sum(middle - half > 0 for middle, half in bounds)
    lost = sum(middle + half < 0 for middle, half in bounds)
    count = f"ahead in {ahead} of {len(of_tasks)}, won {won}, lost {lost}"
    print(f"  {arm:10}{sampler:6}{count}; mean over tasks {interval(means)}")


def draw(tasks, found):
    """Means over tasks against forward passes an answer; a star: all above 0.9 at once."""
    from matplotlib.figure import Figure

    known = [task for task in tasks if learned(found, task)]
    page = Figure(figsize=(9, 3.6), layout="constrained")
    page.suptitle(title)
    left, right = page.subplots(1, 2)
    names = {arm: label(arm) for arm in PAIR}
    names |= {"mdm_twice": "random masks, twice the updates"}
    for axes, what, of in (left, 0, known), (right, 1, tasks):
        for arm, name in names.items():
            *line, star = (
                point(found, of, arm, sampler, what)
                for sampler in ("all", "8", "4", "2", "1", "> 0.9")
            )
            runs = [len(gaps(found, task, arm, "1")) for task in of]
            if runs == [len(gaps(found, task, "mdm", "1")) for task in of]:  # else not comparable
                drawn = axes.plot(*zip(*line, strict=True), marker="o", label=name)
                axes.plot(*star, marker="*", markersize=12, color=drawn[0].get_color())
        axes.set(xlabel="forward passes an answer", xscale="log")
        axes.set_xticks([1, 3, 10, 30], labels=["1", "3", "10", "30"])
        axes.grid(alpha=0.3)
    left.set_ylabel(f"held-out answers solved, %\n(the {len(known)} tasks learned)")
    right.set_ylabel(f"answer tokens right, %\n(all {len(tasks)} tasks)")
    left.legend(frameon=False)
    page.savefig(figure, dpi=110)
    print(f"wrote {figure}")


def point(found, tasks, arm, sampler, what):
    """Forward passes an answer, and % solved (what 0) or right (1): means over tasks."""
    cost, share = (
        mean([average(found, task, arm, sampler, kind) for task in tasks]) for kind in (2, what)
    )
    return cost, 100 * share


if __name__ == "__main__":
    study.begin((lambda: measure(judge)) if judge else main)
