"""The studies as data: a question, the runs that answer it, and the figure that shows them.

Flags are separated by spaces and contain none. Studies of one configuration share the runs of the
same name. run.py carries them out.
"""

from typing import NamedTuple


class Study(NamedTuple):
    question: str
    minutes: int  # of three seeds on two cores, beside runs that other studies have made
    runs: dict  # name -> flags of train.py; the figure shows them in this order
    figure: str = "final"  # of studies.plot
    config: str = "config/sudoku_tiny.py"


def arms(name, flags, updates):
    mdm, puma = f"{flags} --method=mdm", f"{flags} --second_visit"
    runs = {"puma": puma, "paper": flags, "mdm": mdm, "twice": f"{mdm} --max_iters={2 * updates}"}
    return {f"{name}_{arm}": f"--max_iters={updates} {run}" for arm, run in runs.items()}


def carried(name, updates, flags):
    return {f"carry_{name}": f"--layers=2 --k_schedule=[(0,4)] --max_iters={updates} {flags}"}


PUMA, MDM = {"puma": "--method=puma"}, {"mdm": "--method=mdm"}
STUDIES = {
    "sudoku_mini": Study(
        "Does PUMA reach an accuracy in fewer iterations than random masks? Minimal 6x6 puzzles.",
        20,
        {method: f"--method={method} --eval_interval=125" for method in ("puma", "mdm")},
        "curves",
        "config/sudoku_mini.py",
    ),
    "k": Study(
        "When does PUMA win? K, tokens revealed per stage: 18 (2 stages) to 3 (12 stages).",
        15,
        PUMA | {f"k_{k}": f"--k_schedule=[(0,{k})]" for k in (3, 4, 5, 18)} | MDM,
        "curves",
    ),
    "tau": Study(
        "Which confidence threshold of fast-forwarding trains best (paper, figure 4)?",
        23,
        MDM | PUMA | {f"tau_{tau}": f"--tau={tau}" for tau in (None, 0.4, 0.65, 0.75, 0.85, 0.95)},
    ),
    "arithmetic": Study(
        "Does the second visit keep what chains as published forget? Sorting, sums, differences.",
        100,
        arms("sort", "--operation=sort --digits=14", 2000)
        | arms("subtract", "--operation=subtract", 2000)
        | arms("add", "--operation=add", 3000),
        "curves",
        "config/addition.py",
    ),
    "when": Study(
        "What does the second visit cost where chains as published pay? Minimal puzzles, 20 clues.",
        60,
        arms("minimal", "--k_schedule=[(0,4)]", 1000)
        | arms("clues", "--k_schedule=[(0,4)] --clues=20", 1000),
        "curves",
    ),
    "carry": Study(
        "Does it pay to hand states on (arXiv 2609.37974)? 2 layers, equal numbers of passes.",
        55,
        carried("plain", 2000, "--second_visit")
        | carried("1", 2000, "--second_visit --carry")
        | carried("2", 1000, "--second_visit --carry --window=2")
        | carried("4", 500, "--second_visit --carry --window=4")
        | carried("8", 250, "--second_visit --carry --window=8")
        | carried("loops", 1000, "--second_visit --loops=2")
        | carried("random", 1000, "--policy=random --tau=None --carry --window=2")
        | carried("mdm", 2000, "--method=mdm")
        | carried("mdm_twice", 4000, "--method=mdm"),
    ),
}
