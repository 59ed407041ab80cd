"""The studies as data: a question, the runs that answer it, and the figures that show them.

Flags are separated by spaces and contain none. Studies of one configuration share the runs of the
same name. run.py carries them out.
"""

from typing import NamedTuple

MINI, TINY, WORDS = "config/sudoku_mini.py", "config/sudoku_tiny.py", "config/gsm_tiny.py"
TARGETS = "--targets=[0.5,0.8]"
LOW_TARGETS = "--targets=[0.1,0.3,0.5]"


class Study(NamedTuple):
    """Figures show the runs in the order of `runs`, without those from which others start."""

    question: str
    minutes: int  # of three seeds on two cores, beside runs that other studies have made
    runs: dict  # name -> flags of train.py; {NAME} in them: the checkpoint of that run, same seed
    figures: dict  # file -> flags of studies.plot
    scripts: tuple = ()  # executed one after another on each complete run
    config: str = TINY


def both(name, flags):
    return {f"{name}_{method}": f"{flags} --method={method}" for method in ("puma", "mdm")}


def from_ar(name, flags=""):
    """The second half of the budget, after a first half of next-token training."""
    return both(name, f"{flags} --max_iters=500 --init_from={{ar}}")


def curves_and_ends(name, flags=""):
    return {name: f"--figure=curves {flags}", f"{name}_final": f"--figure=final {flags}"}


def arms(name, flags, updates):
    mdm, puma = f"{flags} --method=mdm", f"{flags} --second_visit"
    runs = {"puma": puma, "paper": flags, "mdm": mdm, "twice": f"{mdm} --max_iters={2 * updates}"}
    return {f"{name}_{arm}": f"--max_iters={updates} {run}" for arm, run in runs.items()}


def visits(buffer):
    chains = {36 // k: f"--k_schedule=[(0,{k})] --tau=None" for k in (18, 9, 6, 4, 2, 1)}
    chains = {1: "--tau=0"} | chains
    return {f"visits_{n}_{buffer}": f"{flags} --buffer={buffer}" for n, flags in chains.items()}


PUMA = {"puma": "--method=puma --keep_every=125"}
MDM = {"mdm": "--method=mdm --keep_every=125"}
PAIR = {m: f"--method={m} --keep_every=125 --eval_interval=125" for m in ("puma", "mdm")}
AR = {"ar": "--method=ar --max_iters=500"}

STUDIES = {
    "sudoku_mini": Study(
        "Does PUMA reach an accuracy in fewer iterations than random masks? Minimal 6x6 puzzles; "
        "also the loss under random masks, an estimate of the NELBO per token.",
        20,
        PAIR,
        {"sudoku_mini": "--figure=curves", "sudoku_mini_loss": "--figure=curves --metric=val_loss"},
        config=MINI,
    ),
    "policies": Study(
        "Is PUMA ahead under every sampler? Threshold, tokens per step, temperature (paper, table "
        "1), other policies, thresholds by entropy ('Robustness across inference policies').",
        12,
        PAIR,
        {"policies": "--figure=policies"},
        scripts=(
            "eval.py --reveal=[1,2,3,5,9]",
            "eval.py --tau=[0.8,0.9,0.95]",
            "eval.py --tau_entropy=[0.1,0.5]",
            "eval.py --temperature=[0.2,0.5,0.7,0.8,1.0]",
            'eval.py --policy=["margin","entropy","random"] --reveal=3',
        ),
        config=MINI,
    ),
    "nelbo": Study(
        "Which bound on the negative log-likelihood of held-out puzzles is lower, PUMA's or that "
        "of random masks?",
        2,
        PAIR,
        {"nelbo": "--figure=nelbo"},
        scripts=("eval.py --nelbo",),
        config=MINI,
    ),
    "trajectories": Study(
        "Does the order in which cells are revealed settle along training? Its distance to the "
        "final order (paper, eq. traj-dist); training chain and sampler.",
        4,
        PAIR,
        {"trajectories_distance": "--figure=distance"},
        scripts=("-m studies.trajectories",),
        config=MINI,
    ),
    "k": Study(
        "When does PUMA win? K, tokens revealed per stage: 18 (2 stages) to 3 (12 stages).",
        15,
        PUMA | {f"k_{k}": f"--k_schedule=[(0,{k})]" for k in (3, 4, 5, 18)} | MDM,
        {"study_k_curves": f"--figure=curves {TARGETS}"},
    ),
    "k_schedule": Study(
        "Does a schedule of K help (paper, appendix 'K schedule ablation')? Scaled from 12 to 43 "
        "stages of 512 tokens to 4 to 9 stages of 36 cells: fixed at either end; the standard one, "
        "over the first third of the run; aggressive, mild; two stages at the start (the paper's K "
        "= 256).",
        23,
        PUMA  # fixed at K = 9
        | {
            "k_4": "--k_schedule=[(0,4)]",
            "k_standard": "--k_schedule=[(0,9),(80,7),(160,6),(240,5),(320,4)]",
            "k_aggressive": "--k_schedule=[(0,9),(25,7),(50,6),(75,5),(100,4)]",
            "k_mild": "--k_schedule=[(0,9),(200,7),(400,6),(600,5),(800,4)]",
            "k_large_start": "--k_schedule=[(0,18),(80,9),(160,7),(200,6),(240,5),(320,4)]",
        }
        | MDM,
        curves_and_ends("k_schedule"),
    ),
    "tau": Study(
        "Which confidence threshold of fast-forwarding trains best? 0.4 to 0.95, and off (paper, "
        "figure 4).",
        23,
        MDM | PUMA | {f"tau_{tau}": f"--tau={tau}" for tau in (None, 0.4, 0.65, 0.75, 0.85, 0.95)},
        curves_and_ends("tau"),
    ),
    "search": Study(
        "Is there a better choice of contexts? Any that sees x only keeps the minimiser of the "
        "loss: random masks first, the reverse order, chains in random order, other policies.",
        25,
        PUMA
        | {"chains_from_250": "--chains_from=250"}
        | {"puma_reverse": "--method=puma_reverse"}
        | {f"policy_{name}": f"--policy={name}" for name in ("random", "entropy", "margin")}
        | MDM,
        curves_and_ends("search"),
    ),
    "buffer": Study(
        "When does PUMA win? Chains held, in batches of 32: 1 to 128.",
        12,
        PUMA | {f"buffer_{size}": f"--buffer={size}" for size in (1, 8, 128)} | MDM,
        {"study_buffer": f"--figure=final {TARGETS}"},
    ),
    "budget": Study(
        "When does PUMA win? Budget: 500 to 2,000 updates, the cosine over each.",
        20,
        PUMA
        | MDM
        | both("budget_500", "--max_iters=500")
        | both("budget_2000", "--max_iters=2000"),
        {"study_budget": f"--figure=final {TARGETS}"},
    ),
    "size": Study(
        "When does PUMA win? Width of the model: 32, 64, 96 (0.1M to 0.7M parameters).",
        18,
        PUMA
        | MDM
        | both("dim_32", "--dim=32 --heads=2 --mlp=96")
        | both("dim_96", "--dim=96 --heads=6 --mlp=288"),
        {"study_size": f"--figure=final {TARGETS}"},
    ),
    "papl": Study(
        "Does PAPL help, a loss weighted by the model's confidence (alpha 1, 3, 5)? On random "
        "masks and on PUMA.",
        21,
        PUMA
        | MDM
        | both("papl_1", "--papl=1")
        | both("papl_3", "--papl=3")
        | both("papl_5", "--papl=5"),
        curves_and_ends("papl"),
    ),
    "arithmetic": Study(
        "Does the second visit keep what chains as published forget, where one answer is certain? "
        "Sorting of 14 digits, subtraction and addition of 10.",
        100,
        arms("sort", "--operation=sort --digits=14", 2000)
        | arms("subtract", "--operation=subtract", 2000)
        | arms("add", "--operation=add", 3000),
        {"arithmetic": "--figure=curves", "arithmetic_visits": "--figure=visits"},
        config="config/addition.py",
    ),
    "visits": Study(
        "How many visits should an example get? 1 (a chain that ends at once) to 26 (one token a "
        "step), with a buffer of 1 and of 32 batches.",
        65,
        visits(1) | visits(32) | {"visits_mdm": "--method=mdm"},
        {"visits_final": "--figure=final"},
        scripts=("-m studies.discrepancy",),
    ),
    "nine": Study(
        "The paper's Sudoku on a laptop: 9x9, minimal puzzles.",
        210,
        {"puma": "--method=puma", "mdm": "--method=mdm"},
        {"nine": "--figure=curves", "nine_visits": "--figure=visits"},
        config="config/sudoku_nine.py",
    ),
    "when": Study(
        "What does the second visit cost where chains as published pay? 6x6 Sudoku at K = 4, "
        "minimal puzzles and 20 clues.",
        60,
        arms("minimal", "--k_schedule=[(0,4)]", 1000)
        | arms("clues", "--k_schedule=[(0,4)] --clues=20", 1000),
        {"when": "--figure=curves", "when_visits": "--figure=visits"},
    ),
    "carry": Study(
        "Does it pay to hand states on (arXiv 2609.37974)? 6x6 with 2 layers, 2,000 forward passes "
        "of each arm: windows of 1 to 8; random order; layers looped twice; random masks.",
        55,
        {
            f"carry_{name}": f"--layers=2 --k_schedule=[(0,4)] {flags}"
            for name, flags in {
                "plain": "--second_visit --max_iters=2000",
                "1": "--second_visit --carry --max_iters=2000",
                "2": "--second_visit --carry --window=2 --max_iters=1000",
                "4": "--second_visit --carry --window=4 --max_iters=500",
                "8": "--second_visit --carry --window=8 --max_iters=250",
                "loops": "--second_visit --loops=2 --max_iters=1000",
                "random": "--policy=random --tau=None --carry --window=2 --max_iters=1000",
                "mdm": "--method=mdm --max_iters=2000",
                "mdm_twice": "--method=mdm --max_iters=4000",
            }.items()
        },
        curves_and_ends("carry"),
    ),
    "ar": Study(  # not Sudoku: an autoregressive model does not see the clues that come later
        "Does PUMA gain more from an autoregressive start? Word problems, PUMA and random masks "
        "from scratch, and for half of the budget from a model trained autoregressively for the "
        "other half, which the iterations of the former do not count.",
        22,
        AR | from_ar("ar_to") | PUMA | MDM,
        curves_and_ends("ar", LOW_TARGETS),
        config=WORDS,
    ),
    "block": Study(  # not Sudoku: a block does not see the clues that come later
        "Is PUMA ahead in block diffusion? Word problems, each run from an autoregressive model as "
        "in ar: blocks of 64 and of 16 tokens, a warm-up from 1 to all 128, and all 128 at once.",
        27,
        AR
        | from_ar("ar_to")
        | from_ar("block_64", "--block_schedule=[(0,64)]")
        | from_ar("block_16", "--block_schedule=[(0,16)]")
        | from_ar("block_warmup", "--block_schedule=[(0,1),(125,16),(250,128)]"),
        curves_and_ends("block", LOW_TARGETS),
        config=WORDS,
    ),
}
