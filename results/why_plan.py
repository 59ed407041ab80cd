import json, itertools, sys


def run(out, flags, updates, **kw):
    return {"out": f"out/{out}", "flags": flags, "updates": updates, **kw}


TINY = [
    "config/sudoku_tiny.py",
    "--variant=lab.why",
    "--keep",
    "--eval_interval=0",
    "--eval_reveal=36",
    "--dtype=float32",
    "--log_interval=50",
]
ARMS = {
    "mdm": ("mdm", {}),
    "puma": ("puma", {}),
    "plus": ("puma_plus", {}),
    "half": ("puma_plus", {"share": 0.5}),
    "off": ("puma_plus", {"share": 0.0}),
    "pool2": ("puma", {"pool": 2}),
    "pool4": ("puma", {"pool": 4}),
    "pool8": ("puma", {"pool": 8}),
    "pool32": ("puma", {"pool": 32}),
    "visits9": ("mdm", {"visits": 9}),
    "puma128": ("puma", {}),
}


def tiny(name, arm, seed, updates, lr, muon=True, momentum=0.95, beta2=0.999, extra=(), weight=1):
    method, options = ARMS[arm]
    options = (
        options
        | ({"momentum": momentum} if momentum != 0.95 else {})
        | ({"beta2": beta2} if beta2 != 0.999 else {})
    )
    every = {1000: 100, 4000: 250, 2000: 125, 250: 25}[updates]
    flags = [
        *TINY,
        f"--method={method}",
        f"--seed={seed}",
        f"--max_iters={updates}",
        f"--save_interval={every}",
        f"--lr={lr}",
        f"--warmup={100 if updates <= 1000 else 200}",
        f"--muon={muon}",
        f"--options={options}",
        *extra,
    ]
    if arm == "puma128":
        flags.append("--batch_size=128")
    return run(f"{name}/{arm}_{seed}", flags, updates, need=8 + updates / 250)


SETTINGS = [dict(lr=lr, momentum=m) for lr in (1e-3, 2e-3, 4e-3, 8e-3) for m in (0.95, 0.98)] + [
    dict(lr=lr, muon=False, beta2=b) for lr in (5e-4, 1e-3, 2e-3) for b in (0.99, 0.999)
]


def key(s):
    return f"muon_{s['lr']}_{s['momentum']}" if "momentum" in s else f"adamw_{s['lr']}_{s['beta2']}"


def sweep(arms, seeds=(101, 102), settings=SETTINGS):
    return [
        tiny(f"sweep/{updates}/{key(s)}", arm, seed, updates, **s)
        for updates in (1000, 4000)
        for seed in seeds
        for s in settings
        for arm in arms
    ]


GYM = [
    "config/gym.py",
    "--dtype=float32",
    "--variant=lab.why",
    "--keep",
    "--eval_interval=0",
    "--eval_reveal=128",
    "--log_interval=50",
]


def tasks(seeds=(1, 2, 3, 4)):
    base = {
        "nine": (
            [
                "config/sudoku_nine.py",
                "--data=data/sudoku/paper_9x9",
                "--dtype=float32",
                "--max_iters=5000",
                "--test_examples=1000",
                "--save_interval=500",
                "--eval_reveal=81",
            ],
            5000,
        ),
        "products": (
            ["config/products.py", "--dtype=float32", "--save_interval=125", "--eval_reveal=36"],
            1500,
        ),
        "run_lengths": (
            [
                *GYM,
                "--task=lab.run_lengths",
                "--data=32",
                "--k_schedule=[(0,6)]",
                "--test_examples=512",
                "--save_interval=100",
            ],
            1200,
        ),
        "words": (
            [
                "config/gsm_mini.py",
                "--dtype=float32",
                "--save_interval=500",
                "--eval_reveal=176",
                "--test_examples=500",
            ],
            5000,
        ),
        "number_format": (
            [
                *GYM,
                "--task=text",
                "--data=data/gym/number_format",
                "--k_schedule=[(0,16)]",
                "--test_examples=882",
                "--save_interval=100",
            ],
            1200,
        ),
        "binary_matrix": (
            [
                *GYM,
                "--task=text",
                "--data=data/gym/binary_matrix",
                "--k_schedule=[(0,12)]",
                "--test_examples=954",
                "--save_interval=100",
            ],
            1200,
        ),
    }
    out = []
    for seed in seeds:
        for task, (flags, updates) in base.items():
            for arm in ("mdm", "plus", "half", "off"):
                method, options = ARMS[arm]
                rest = [f for f in flags if f != "--keep"]
                out.append(
                    run(
                        f"tau/{task}/{arm}_{seed}",
                        [
                            *rest,
                            "--variant=lab.why",
                            "--keep",
                            "--eval_interval=0",
                            "--log_interval=50",
                            f"--method={method}",
                            f"--seed={seed}",
                            f"--options={options}",
                        ],
                        updates,
                        need=10 + updates / 100,
                        curve=[(1, 1.0)],
                        some=256,
                        count=1000 if task != "words" else 500,
                    )
                )
    return out


THEIR = ["init", "rotary", "bias", "decay", "start"]


def authors(seeds=(1, 2, 3, 4)):
    conditions = {
        "all": None,
        "-rows": "rows",
        "-tau": "tau",
        "-start": "start",
        "-init": "init",
        "-rotary": "rotary",
        "-decay": "decay",
        "-bias": "bias",
        "-beta2": "beta2",
        "-cosine": "cosine",
        "none": "none",
    }
    out = []
    for seed in seeds:
        for name, gone in conditions.items():
            for method in ("puma", "mdm"):
                theirs = [t for t in THEIR if t != gone] if gone != "none" else []
                options = {"theirs": theirs} | ({"beta2": 0.99} if gone == "beta2" else {})
                rows = gone not in ("rows", "none")
                flags = [
                    *TINY,
                    f"--method={method}",
                    f"--seed={seed}",
                    "--max_iters=6000",
                    "--save_interval=500",
                    "--muon=False",
                    "--lr=2e-3",
                    "--warmup=200",
                    f"--options={options}",
                    *(
                        ["--task=lab.why", "--k_schedule=[(0,9)]"]
                        if rows
                        else ["--k_schedule=[(0,4.5)]"]
                    ),
                    "--tau=" + ("0.9" if gone in ("tau", "none") else "1.0"),
                    *([] if gone in ("cosine", "none") else ["--min_lr=0.0", "--ema=0.0"]),
                ]
                out.append(run(f"authors/{name}/{method}_{seed}", flags, 6000, need=35))
    return out


NINE = [
    "config/sudoku.py",
    "--variant=lab.why",
    "--keep",
    "--save_interval=2500",
    "--eval_interval=0",
    "--eval_reveal=81",
    "--test_examples=1000",
    "--log_interval=100",
]


def paper():
    big = dict(need=400, curve=[(2, 1.0), (1, 0.9)], some=1000, weight=3, keep_ckpt=True)
    return [
        run(f"paper/{m}_1", [*NINE, f"--method={m}"], 56250, **big)
        for m in ("puma", "mdm", "puma_plus")
    ] + [
        run(
            f"paper/theirs_{m}_1",
            [
                *NINE,
                f"--method={m}",
                "--task=lab.why",
                "--tau=1.0",
                "--k_schedule=[(0,20)]",
                "--options={'theirs':['start']}",
            ],
            56250,
            **big,
        )
        for m in ("puma",)
    ]


if __name__ == "__main__":
    plan = sum((eval(a) for a in sys.argv[2:]), [])
    open(sys.argv[1], "w").writelines(json.dumps(r) + "\n" for r in plan)
    print(len(plan), sum(r["updates"] for r in plan))
