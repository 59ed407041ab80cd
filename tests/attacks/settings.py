"""Settings that cannot be meant, and some that are odd but right: flags and config files."""

import shutil

from tests.attacks.lab import SYSTEM, TINY, Case

TRAIN = ("train.py", *TINY, "--max_iters=2", "--out_dir={out}/new")
SAMPLE = ("sample.py", *SYSTEM)
EVALUATE = ("eval.py", *SYSTEM, "--reveal=18")
PREPARE = ("data/sudoku/prepare.py", "--box=(2,2)", "--count=8", "--out={out}/p.npy")

# One setting a line; flags that belong together share one. The key of the first must be named.
WRONG_TRAIN = """
--max_iters=-1
--max_iters=-5
--max_iters=1.5
--max_iters=x
--max_iters=
--max_iters=None
--max_iters=[3]
--lr=-1
--lr=1e400
--lr=nan
--lr=x
--lr=None
--min_lr=-1
--min_lr=nan
--min_lr=1e400
--warmup=-5
--warmup=1.5
--grad_clip=-1
--grad_clip=nan
--ema=-1
--ema=1.5
--ema=nan
--weight_decay=-1
--weight_decay=nan
--weight_decay=1e400
--betas=(0.9,)
--betas=()
--betas=(0.9,0.99,0.999)
--betas=('a','b')
--betas=(2,3)
--betas=(0.9,1)
--betas=(-0.1,0.99)
--betas=0.9
--betas=(None,None)
--kv_heads=0
--kv_heads=-1
--kv_heads=3
--kv_heads=4
--heads=0
--heads=-2
--heads=3
--heads=32
--dim=0
--dim=-32
--dim=33
--dim=6
--layers=0
--layers=-1
--mlp=0
--mlp=-4
--theta=0
--theta=-1
--theta=nan
--theta=1e400
--box=(2,3,4)
--box=(2,)
--box=()
--box=(0,3)
--box=(-2,-3)
--box=(1,1)
--box=(5,5)
--box=('a','b')
--box=(2.0,3.0)
--box=6
--clues=0
--clues=-1
--clues=36
--clues=100
--clues=x
--clues=1.5
--train_examples=0
--train_examples=-1
--train_examples=x
--test_examples=0
--test_examples=-1
--batch_size=0
--batch_size=-1
--batch_size=10000000
--micro_batch=0
--micro_batch=-1
--buffer=0
--buffer=-1
--buffer=1000000000
--seed=-1
--seed=100000000000000000000
--seed=1.5
--seed=x
--method=
--method=PUMA
--method=masked
--method=['puma']
--policy=
--policy=best
--policy=semi_ar_0
--policy=semi_ar_-1
--policy=semi_ar_x
--k_schedule=[]
--k_schedule=[(0,0)]
--k_schedule=[(0,-1)]
--k_schedule=[(0,1.5)]
--k_schedule=[(1,9)]
--k_schedule=[(0,9),(0,3)]
--k_schedule=[(0,9),(-5,3)]
--k_schedule=[(0,9),(5,3),(2,1)]
--k_schedule=[0,9]
--k_schedule=[(0,)]
--k_schedule=9
--k_schedule=[('a','b')]
--k_schedule=[(0,9,1)]
--k_schedule=[(0,nan)]
--tau=-0.1
--tau=1.1
--tau=90
--tau=nan
--tau=x
--papl=-1
--papl=nan
--papl=1e400
--chains_from=-1
--chains_from=2
--chains_from=1.5
--block_schedule=[(0,5)]
--block_schedule=[(0,-6)]
--block_schedule=[(0,6),(0,12)]
--block_schedule=[(0,72)]
--block_schedule=[(1,6)]
--block_schedule=6
--lora_rank=-1
--lora_rank=4
--lora_rank=1.5
--eval_interval=0
--eval_interval=-1
--eval_policies=[]
--eval_policies=['x']
--eval_policies=[3]
--eval_policies=x
--eval_policies=[None]
--eval_reveal=0
--eval_reveal=-1
--eval_reveal=1.5
--eval_tau=7
--eval_tau=-1
--eval_tau=nan
--eval_batch_size=0
--eval_batch_size=-4
--log_interval=0
--log_interval=-1
--checkpoint_interval=0
--checkpoint_interval=-1
--keep_every=-1
--keep_every=1.5
--device=gpu
--device=cuda:99
--device=meta
--dtype=float16
--dtype=float64
--dtype=int
--compile=maybe
--compile=2
--tied=maybe
--tied=2
--muon=2
--gradient_checkpointing=x
--dataset=
--dataset=chess
--dataset=sudoku.py
--dataset=../sudoku
--data_file=nowhere.npy
--data_file=.
--data_file=README.md
--dataset=text --data_dir=nowhere
--dataset=text --data_dir=README.md
--dataset=instructions
--text_length=0 --dataset=text
--text_length=-1 --dataset=text
--text_length=5 --dataset=text
--text_length=100000 --dataset=text
--templates=['x'] --dataset=text
--templates=[3] --dataset=text
--templates=x --dataset=text
--init_from=
--init_from=best
--init_from=nowhere.pt
--init_from=README.pt
--init_from=hf:
--init_from=hf:x
--init_from=resume
--init_from=hf:x --dataset=text
--out_dir=README.md
--out_dir=README.md/x
--out_dir=/proc/x
--max_iter=3
--Lr=1
--lr
--lr 1
-lr=1
lr=1
--=1
--
-
--eval-interval=3
---lr=1
"""
MORE_TRAIN = """
--lr=-1e-9
--lr=True
--lr=(1,)
--lr=1e-3 --min_lr=x
--warmup=nan
--warmup=None
--grad_clip=None
--grad_clip=-1e-9
--ema=None
--ema=-0.0001
--ema=1.0000001
--weight_decay=1e300
--betas=(nan,0.99)
--betas=(0.9,nan)
--betas=[0.9,'x']
--betas={}
--theta=1e-400
--theta=-1e4
--dim=2.0
--dim=1000000000
--layers=1000000000
--heads=1000000000
--mlp=1000000000000
--box=(3,4)
--box={2,3}
--box=(True,3)
--clues=None0
--train_examples=1e3
--train_examples=100000000000000
--test_examples=100000000000
--batch_size=1e2
--batch_size=None
--max_iters=1e3
--k_schedule=[(0,10000000000000000000000)]
--k_schedule=[[0,9],[1]]
--k_schedule=[(0,9),(1,'x')]
--k_schedule=[(0.5,9)]
--k_schedule=[(0,9),(nan,3)]
--block_schedule=[('x',6)]
--block_schedule=[(0,6)] --method=ar
--block_schedule=[(0,6)] --method=reverse
--chains_from=1 --method=mixed --max_iters=1
--eval_policies=['top_k','x']
--eval_policies=[['top_k']]
--eval_policies=['semi_ar_0']
--eval_tau=x
--eval_batch_size=x
--seed=None
--seed=-9223372036854775809
--papl=x
--papl=-0.1
--tau=[0.9]
--tau=0.9.1
--keep_every=x
"""
RIGHT_TRAIN = """
--max_iters=0
--tau=None
--tau=0
--tau=1
--ema=0
--grad_clip=0
--warmup=0
--weight_decay=0
--papl=2
--kv_heads=1
--kv_heads=None
--box=[2,3]
--k_schedule=((0,9),)
--k_schedule=[[0,9]]
--k_schedule=[(0,9),(1,3)]
--eval_policies=('top_k',)
--eval_policies=["entropy","margin"]
--policy=semi_ar_4
--method=mdm
--method=ar
--block_schedule=[(0,6)]
--seed=0
--lr=1
--ema=1
--device=
--box=(2,3,)
--tied=True
--tied=1
--tied
--muon
--compile=0
--keep_every=1
--chains_from=1
--buffer=1
--eval_tau=0.5
--box=(2,2)
--clues=20
--name=x
--eval_reveal=100
"""
WRONG_SAMPLE = """
--examples=0
--reveal=0
--reveal=-1
--reveal=x
--tau=2
--tau=nan
--tau_entropy=-1
--tau_entropy=nan
--tau=0.9 --tau_entropy=0.1
--temperature=-1
--temperature=nan
--temperature=1e400
--top_p=0
--top_p=1.5
--top_p=nan
--policy=x
--policy=semi_ar_0
--delay=-1 --watch
--delay=nan --watch
--seed=100000000000000000000
--seed=1.5
--device=x
--dtype=x
--out_dir=nowhere
--out_dir=
--out_dir=README.md
"""
WRONG_EVALUATE = """
--examples=0
--examples=-3
--examples=x
--reveal=0
--reveal=[]
--reveal=[0]
--reveal=[1,'x']
--reveal=[None]
--tau=[]
--tau=[2]
--tau=[nan]
--tau=[0.5] --tau_entropy=[0.5]
--policy=[]
--policy=['x']
--policy=[3]
--temperature=[-1]
--temperature=['x']
--top_p=[0]
--top_p=[nan]
--masks=0 --nelbo
--masks=-1 --nelbo
--batch_size=0
--batch_size=-1
--samples=0
--new_tokens=0
--length=0
--length=-5
--seconds=0
--seconds=-1
--seconds=nan
--seed=100000000000000000000
--problems=x
--problems=transfer
--problems=humaneval
--problems=humaneval --file=README.md
--file=nowhere
--file=README.md
--file=.
--device=x
--dtype=x
--out_dir=nowhere
--out_dir=README.md
--reference
"""
WRONG_PREPARE = """
--count=0
--count=-1
--count=x
--clues=0
--clues=16
--clues=-1
--box=(2,)
--box=(7,7)
--box=('a','b')
--seed=-1
--out=
--out=x.txt
--out=/proc/x.npy
--source=nowhere.csv
--source=README.md
--source=.
--max_rating=nan
--max_rating=x
--test_source=nowhere.csv
"""
CONFIGS = {  # content of a config file: must
    "": "accept", "# nothing": "accept", "lr = 1e-3": "accept", "import math": "accept",
    "x = 3": "refuse", "lr = 'x'": "refuse", "lr = float('nan')": "refuse", "lr = -1": "refuse",
    "lr = None": "refuse", "max_iters = 2.5": "refuse", "lr =": "refuse", "1 / 0": "refuse",
    "raise KeyError('x')": "refuse", "raise SystemExit": "refuse", "import sys; sys.exit(0)":
    "refuse", "import sys; sys.exit(3)": "refuse", "exit()": "refuse",
    "raise KeyboardInterrupt": "refuse", "import nowhere": "refuse", "def f(): f()\nf()": "refuse",
    "from config.nowhere import *": "refuse", "x = lr * 2": "refuse", "class A: pass": "accept",
    "_x = 3": "accept", "lr: float = 1e-3": "accept", "lr = 1e-3; lr = []": "refuse",
    "raise BaseException('x')": "refuse", "raise GeneratorExit": "refuse",
    "betas = 'ab'": "refuse", "betas = (0.9, float('nan'))": "refuse", "box = {2, 3}": "refuse",
    "k_schedule = [(0, [9])]": "refuse", "eval_policies = [len]": "refuse",
    "import os; os._exit(0)": "refuse", "\0": "refuse", "\ufeff lr = 1": "refuse",
    "lr = 1e-3\n  dim = 3": "refuse", "print('hello'); lr = 1e-3": "accept",
    "seed = 10 ** 30": "refuse", "lr = 10 ** 400": "refuse", "raise": "refuse",
    "del lr": "refuse", "import train": "refuse", "assert False": "refuse",
}  # fmt: skip


def cases(words, text, must, arrange=lambda folder: None):
    for line in text.strip("\n").split("\n"):
        flags = [line] if " " in line and "=" not in line else line.split(" ")
        key, _, value = flags[0].lstrip("-").partition("=")
        names = f"{key}|{value}" if len(value) > 3 and value[0].isalpha() else key  # of a file
        yield Case(f"{words[0]} {line}", (*words, *flags), arrange, must=must, names=names)


def files(words):
    for content, must in CONFIGS.items():

        def arrange(folder, content=content):
            (folder / "config.py").write_text(content, encoding="utf-8")

        yield Case(f"config {content!r}", (*words, "{out}/config.py"), arrange, must=must,
                   names="config.py")  # fmt: skip
    for name, data in (("Latin-1", b"lr = 1e-3 # \xe4"), ("binary", b"\x7fELF\x00\xff")):
        yield Case(
            f"config {name}", (*words, "{out}/config.py"), must="refuse", names="config.py",
            arrange=lambda folder, data=data: (folder / "config.py").write_bytes(data) and None,
        )  # fmt: skip
    for name in ("nowhere.py", "config", ".", "README.md", "config/nowhere.py"):
        yield Case(f"config {name}", (*words, name), must="refuse", names=name)


def settings(lab, rng):
    yield from cases(TRAIN, WRONG_TRAIN, "refuse")


def more_settings(lab, rng):
    """Those that no list of mistakes had: judged by the same rule."""
    yield from cases(TRAIN, MORE_TRAIN, "refuse")


def other_scripts(lab, rng):
    def arrange(folder):
        shutil.copytree(lab.trained, folder / "run")

    yield from cases((*SAMPLE, "--out_dir={out}/run"), WRONG_SAMPLE, "refuse", arrange)
    yield from cases((*EVALUATE, "--out_dir={out}/run"), WRONG_EVALUATE, "refuse", arrange)
    yield from cases(PREPARE, WRONG_PREPARE, "refuse")


def right(lab, rng):
    yield from cases(TRAIN, RIGHT_TRAIN, "accept")


def configs(lab, rng):
    yield from files(TRAIN)


GROUPS = {
    "settings": settings, "more_settings": more_settings, "other_scripts": other_scripts,
    "right": right, "configs": configs,
}  # fmt: skip
