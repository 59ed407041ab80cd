"""Where attacks take place: a copy of the repository, tiny runs in it, what undamaged ones give.

`Lab` makes each of them when it is first asked for. A `Case` is one attack.
"""

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from tests.attacks import command

SYSTEM = ["--device=cpu", "--dtype=float32"]
SHAPE = ["--layers=1", "--dim=32", "--heads=2", "--mlp=64", "--batch_size=16", "--buffer=2"]
TINY = [*SYSTEM, *SHAPE, "--compile=False", "--log_interval=1", "--train_examples=256",
        "--test_examples=8", "--eval_interval=4", "--eval_policies=['top_k']"]  # fmt: skip
# Two passes over all examples, so that no damage to them is without effect.
ALL_DATA = [*TINY, "--method=mdm", "--train_examples=64", "--max_iters=8", "--eval_interval=8"]
TEXT = [*TINY, "--dataset=text", "--k_schedule=[(0,30)]", "--batch_size=4", "--test_examples=2",
        "--eval_reveal=40"]  # fmt: skip
ALL_TEXT = [*TEXT, "--method=mdm", "--max_iters=20", "--eval_interval=20"]
SHORT = ["ratio", "average", "laps", "crew"]  # templates of word problems of few tokens
OWN = "model", "ema", "optimizer", "ranks", "iteration", "block"  # the contents of a checkpoint
PREPARE_TEXT = """
from pathlib import Path
from data.wordproblems import prepare
prepare.HELD_OUT, prepare.FOLDER = 8, Path({folder!r})
print(prepare.make_once(40, {templates!r}, 128))
"""
PREPARE_HF = """
import torch
from pathlib import Path
from model import Transformer
from pretrained import hf
args = dict(vocab_size=1536, mask_token=1510, length=256, dim=24, layers=2, heads=2, kv_heads=1,
            mlp=32, theta=1e6, tied=False, causal=False, shifted=True, eps=1e-6)
torch.manual_seed(0)
hf.SHARD = {shard}
hf.save(Transformer(**args), args, Path({folder!r}))
"""


class Whole(NamedTuple):
    """What the command gives where nothing is damaged."""

    found: object  # its results
    lines: frozenset  # what it says, without numbers


class Case(NamedTuple):
    """One attack: `arrange` makes the damage in a new folder, where {out} stands in the words.

    must: "same": it is refused, or ends with the results of `whole`; "refuse": with a message;
    "accept": exit status 0; "any": that, or a message. names: what the message of a refusal should
    mention, with | between alternatives. act(lab, folder) -> Ended: more than one command.
    after(folder, ended) -> a verdict, or None.
    """

    name: str
    words: tuple
    arrange: Callable = lambda folder: None
    result: Callable = lambda folder, ended: None
    whole: Whole | None = None
    must: str = "same"
    names: str = ""
    prelude: str = ""
    act: Callable | None = None
    after: Callable = lambda folder, ended: None
    patience: float | None = None


class Lab:
    def __init__(self, folder, repository, commit, patience):
        self.folder, self.patience = Path(folder), patience
        self.tree = self.folder / "tree"
        self.tree.mkdir()
        copy_tree(repository, commit, self.tree)

    def run(self, *words, prelude="", patience=None):
        return command.run(self.tree, words, patience or self.patience, prelude)

    def start(self, *words, prelude="", env=None):
        return command.Process(self.tree, words, prelude, env)

    def must(self, *words, prelude=""):
        """Run what nothing is wrong with. Raises RuntimeError where it fails."""
        ended = self.run(*words, prelude=prelude, patience=300)
        if ended.status != 0:
            raise RuntimeError(f"{' '.join(map(str, words))}: {ended.status}\n{ended.errors}")
        return ended

    def whole(self, words, folder, result):
        """The Whole of an undamaged command on a copy of that folder (None: a new one)."""
        out = self.folder / "whole"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folder, out) if folder else out.mkdir()
        ended = self.must(*placed(words, out))
        return Whole(result(out, ended), said(ended))

    def train(self, name, *flags):
        """The folder of a run of those flags."""
        out = self.folder / name
        self.must("train.py", f"--out_dir={out}", *flags)
        return out

    @functools.cached_property
    def trained(self):
        """A run of four updates, with the weights that it kept on the way."""
        return self.train("trained", *TINY, "--max_iters=4", "--keep_every=2")

    @functools.cached_property
    def corpus(self):
        """A folder of word problems: 40 to train on, 8 of each other kind."""
        folder = self.folder / "corpus"
        folder.mkdir()
        code = PREPARE_TEXT.format(folder=str(folder), templates=SHORT)
        return Path(self.must("-c", code).output.splitlines()[-1])

    @functools.cached_property
    def text(self):
        return self.train("text", *TEXT, f"--data_dir={self.corpus}", "--max_iters=4")

    @functools.cached_property
    def hugging_face(self):
        """A folder in Dream's form of a few files; its weights fit the word problems."""
        folder = self.folder / "hf"
        self.must("-c", PREPARE_HF.format(folder=str(folder), shard=100_000))
        return folder


def copy_tree(repository, commit, tree):
    """The files of a commit of the repository, or ("") those in its folder that git would add."""
    git = ["git", "-C", str(repository)]
    if commit:
        archive = subprocess.run([*git, "archive", commit], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
        return
    listed = [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        if name and Path(repository, name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(repository, name), tree / name)


def placed(words, folder):
    return [str(word).replace("{out}", str(folder)) for word in words]


# -- what came out ---------------------------------------------------------------------------------
def weights(folder, ended=None):
    """The contents of a run's checkpoint."""
    return contents(folder / "checkpoint.pt")


def contents(path):
    state = torch.load(path, map_location="cpu", weights_only=True)
    return {key: state[key] for key in OWN if key in state}


def bound(folder, ended):
    """nelbo.json, without what differs from call to call and from version to version."""
    found = json.loads((folder / "nelbo.json").read_text())
    return {key: value for key, value in found.items() if key in NUMBERS}


NUMBERS = ("per_example", "per_token", "per_token_without_padding", "per_token_error", "examples")


def rows(folder, ended):
    """The rows of eval.json, without times."""
    kept = "accuracy", "interval", "kinds", "examples", "tokens_per_step", "pass@1"
    return [{k: row.get(k) for k in kept} for row in json.loads((folder / "eval.json").read_text())]


def answers(folder, ended):
    """The records of eval.jsonl, and the rows of eval.json."""
    lines = (folder / "eval.jsonl").read_text().splitlines()
    records = [{k: v for k, v in json.loads(line).items() if k != "id"} for line in lines]
    return records, rows(folder, ended)


def printed(folder, ended):
    """The standard output without times."""
    return re.sub(r"\d+(\.\d+)? s\b", "", ended.output)


def record(folder, ended):
    """The lines of metrics.jsonl but for times and versions, and the weights."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["type"] != "config"]
    for line in kept:
        line.pop("seconds", None)
        line.pop("examples_per_second", None)
    return kept, weights(folder)


def same(a, b):
    """Equal to the bit, NaN and tensors included."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.equal(b)
    return type(a) is type(b) and a == b


def said(ended):
    """The different lines of both streams, without numbers and paths."""
    return frozenset(filter(None, map(form, lines_of(ended.output + "\n" + ended.errors))))


def lines_of(text):
    """The lines that are not empty, without progress bars; a message may follow a bar directly."""
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[\w", "", text))
    lines = [re.sub(r"^.*\d+%\|.*?\[.*?\]", "", line).strip() for line in lines]
    return [line for line in lines if line]


def form(line):
    """What a line says whatever the numbers are; "" for a grid or a count by kind."""
    line = re.sub(r"/[^\s:,']+", "PATH", line)
    line = re.sub(r"\b(nan|inf|None)\b", "0", line)
    line = re.sub(
        r"\b(solved|wrong|correct|no_function|syntax_error|exception|wrong_number)\b", "KIND", line
    )
    line = re.sub(r"\+- [-\d.e+]+ ", "", line)
    line = re.sub(r"[-\d.,%e+|]+", "", line)
    return " ".join(line.split()) if re.search(r"[a-zA-Z]{2}", line) else ""
