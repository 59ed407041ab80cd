"""Which mixture of random masks and chains: seeds 101 to 104, five tasks, five arms.

    python lab/mixture_plan.py 0 2        # every second run from the first; goes on where it stopped
    python lab/mixture_plan.py 0 2 b_every_2,d_every_2_at_once            # of these arms, slow tasks, too
    python lab/mixture_plan.py            # the table of what is there
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ARMS = {
    "a_as_it_is": "--method=puma_plus",
    "b_every_2": "--method=puma_plus --variant=lab.mixture --options={'mix':'every2'}",
    "c_every_4": "--method=puma_plus --variant=lab.mixture --options={'mix':'every4'}",
    "d_every_2_at_once": "--method=puma_plus --variant=lab.mixture --options={'mix':'every2'} "
    "--chains_from=0",
    "e_rows": "--method=puma_plus --variant=lab.mixture --options={'mix':'rows'}",
}
TASKS = {  # each at the rate of its page
    "sudoku": "config/sudoku_tiny.py",
    "products": "config/products.py",
    "run_lengths": "config/gym.py --task=lab.run_lengths --data=32 --k_schedule=[(0,6)] --lr=4e-3",
    "number_format": "config/gym.py --data=data/gym/number_format",
    "words": "config/gsm_mini.py --max_iters=2000 --chains_from=800",
}
SLOW = "number_format", "words"  # two seeds
SAMPLERS = [(1, 1.0), (1, 0.9), (1, 0.95), (1, 0.98), (1, 0.99), (1, 0.995)]
PAIRS = [
    (seed, task, arm)
    for seed in (101, 102, 103, 104)
    for task in TASKS
    for arm in ARMS
    if task not in SLOW or seed < 103
]
PAIRS.sort(key=lambda pair: pair[1] in SLOW)  # last, and of the arms that are left


def folder(seed, task, arm):
    return Path("out/mixture", task, f"{arm}_{seed}")


def records(*pair):
    path = folder(*pair) / "eval.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    return kept if {*map(str, SAMPLERS)} <= {*kept} else None


def run(pair):
    seed, task, arm = pair
    where = folder(*pair)
    where.mkdir(parents=True, exist_ok=True)
    flags = f"{TASKS[task]} {ARMS[arm]}{' --compile' * (task in SLOW)} --seed={seed} --eval_interval=0 --test_examples=256"
    train = ["train.py", *flags.split(), "--dtype=float32", f"--out_dir={where}", "--resume"]
    judge = ["lab/evaluate.py", f"--out_dir={where}", f"--samplers={SAMPLERS}"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(f"{where}.log", "a") as log:
        for command in train, judge:
            subprocess.run([sys.executable, *command], stdout=log, stderr=log, env=env, check=True)
    kept = records(*pair)
    print(*pair, *(f"{100 * kept[str(s)]['solved']:.1f}" for s in SAMPLERS), flush=True)


def table():
    for task in TASKS:
        print(task, "% solved (passes):", SAMPLERS)
        for arm in ARMS:
            own = [kept for seed, t, a in PAIRS if (t, a) == (task, arm) and (kept := records(seed, t, a))]
            cells = [
                f"{sum(100 * k[str(s)]['solved'] for k in own) / len(own):5.1f} "
                f"({sum(k[str(s)]['steps'] for k in own) / len(own):4.1f})"
                for s in SAMPLERS if own
            ]
            print(f"  {arm:18} {len(own)}", *cells)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        first, of = map(int, sys.argv[1:3])
        left = sys.argv[3].split(",") if len(sys.argv) > 3 else []
        pairs = [p for p in PAIRS if p[1] not in SLOW or p[2] in left]
        for pair in pairs[first::of]:
            if records(*pair) is None:
                run(pair)
    else:
        table()
