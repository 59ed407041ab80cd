"""Eight pairs on minimal 6x6 Sudoku, 4,000 updates, each method at the rate that a sweep chose.

python lab/study.py lab/pairs.py --run                 # trains first: two hours of a core
python lab/study.py lab/pairs.py --curves=a.png --figure=b.png
"""

flags = [
    "config/sudoku_tiny.py", "--max_iters=4000", "--warmup=200", "--dtype=float32",
    "--eval_interval=250", "--eval_reveal=2", "--log_interval=50", "--keep", "--save_interval=500",
]  # fmt: skip
arms = {
    "puma_plus": "--method=puma_plus --lr=1e-3",
    "puma": "--method=puma --lr=1e-3 --variant=lab.why --options=\"{'momentum': 0.98}\"",
    "mdm": "--method=mdm --lr=2e-3",
}
seeds = 8
out = "out/pairs"
samplers = [(n, 1.0) for n in (1, 2, 4, 8)] + [(1, tau) for tau in (0.95, 0.9, 0.8, 0.6)]
levels = [50, 90]
