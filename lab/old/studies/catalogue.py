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


SUDOKU = "config/sudoku_tiny.py --dataset=sudoku --k_schedule=[(0,4)]"
SUMS = "config/addition.py --operation="
NINE = {  # tasks, with the flags of their runs and the number of updates
    "minimal": (SUDOKU, 1000),
    "clues": (f"{SUDOKU} --clues=20", 1000),
    "sort": (f"{SUMS}sort --digits=14", 2000),
    "subtract": (f"{SUMS}subtract", 2000),
    "add": (f"{SUMS}add", 3000),
    "permutations": ("--dataset=permutations --k_schedule=[(0,7)] --theta=20", 1500),
    "sums": ("--dataset=sums --k_schedule=[(0,3)] --lr=4e-3", 4000),
    "latin": ("--dataset=latin --k_schedule=[(0,4)] --eval_interval=100", 600),
    "brackets": ("--dataset=brackets --k_schedule=[(0,4)]", 1000),
}


def nine(times=1, **arms):
    """The runs {name: flags} of all nine tasks in each arm."""
    return {
        f"{task}_{arm}": f"{own} --max_iters={times * updates} {flags}"
        for task, (own, updates) in NINE.items()
        for arm, flags in arms.items()
    }


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
    "nine": Study(
        "Is PUMA, with chains that begin once the model is sure, behind random masks anywhere?",
        130,
        nine(
            puma="--second_visit --chains_from=None",
            early="--second_visit",
            paper="",
            mdm="--method=mdm",
        ),
        config="config/small.py",
    ),
    "twice": Study(
        "What do random masks solve after twice the updates?",
        65,
        nine(2, twice="--method=mdm"),
        config="config/small.py",
    ),
    "hour": Study(
        "9x9 in an hour of one core: PUMA, random masks (also for two), the start, a carry.",
        480,
        {
            "puma": "--second_visit",
            "mdm": "--method=mdm",
            "start": "--second_visit --chains_from=None",
            "carry": "--second_visit --carry --window=2 --max_iters=5500 --eval_interval=250",
            "mdm_twice": "--method=mdm --max_iters=22000",
        },
        "curves",
        "config/sudoku_nine.py",
    ),
    "words": Study(
        "Word problems: chains after 2,000 updates of random masks, beside random masks.",
        80,
        {"puma": "--second_visit --chains_from=2000"} | MDM,
        "curves",
        "config/gsm_mini.py",
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
