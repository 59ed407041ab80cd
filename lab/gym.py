"""Tasks of reasoning-gym, judged by its own verifiers: train.py config/gym.py --data=FOLDER.

The folder is of data/gym/prepare.py. An answer is solved if the verifier of its generator gives it
the full score, so an answer that is right counts although another one is listed. Many verifiers
compute what the model wrote, as Python: they run in a process of their own, which ends with an
answer that takes long, but nothing keeps them from your files. Judge models that you trust.
"""

import functools
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.gym import prepare
from data.rows import kept, prompt_text
from text import Text


class Gym(Text):
    def __init__(self, folder):
        if "gym" in folder.parts and not (folder / "header.json").is_file():
            raise SystemExit(f"{folder}: make it with: python data/gym/prepare.py {folder.name}")
        super().__init__(folder)
        self.about = json.loads((folder / "header.json").read_text())["source"]
        if "generator" not in self.about:
            raise SystemExit(f"{folder} is not of data/gym/prepare.py")
        self.tokenizer = kept(folder)
        self.verifier = Verifier(self.about)

    @functools.cached_property
    def entries(self):
        """{tokens that a row is given: what the generator said of it}"""
        made = prepare.said(self.folder / "rows.jsonl")
        questions = (prepare.trimmed(row["question"], self.about) for row in made)
        prompts = (self.tokenizer.encode(prompt_text(question)) for question in questions)
        return dict(zip(map(tuple, prompts), made, strict=True))

    def judge(self, tokens, x0, prompt):
        """Which rows of tokens (n, L) the verifier accepts, bool (n,)."""
        rows = zip(tokens, x0, prompt, strict=True)
        pairs = [
            (self.tokenizer.text(row[~given]), self.entries[tuple(x0[given].tolist())])
            for row, x0, given in rows
        ]
        return np.array([self.verifier.accepts(*pair) for pair in pairs], bool)

    def parse(self, text):
        """A question that a user types -> x0 (1, L), prompt (1, L); it has no verifier."""
        self.judge = None
        return super().parse(text)


class Verifier:
    """The process that judges; about: header.json's source; seconds: the most for an answer."""

    def __init__(self, about, seconds=10):
        self.command = [sys.executable, __file__, json.dumps(about), str(seconds)]
        self.process = None

    def accepts(self, answer, entry):
        if self.process is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.process = subprocess.Popen(
                self.command, text=True, start_new_session=True, **pipes
            )
            if not self.process.stdout.readline():
                raise SystemExit("the verifier's process does not start")
        self.process.stdin.write(json.dumps([answer, entry]) + "\n")
        self.process.stdin.flush()
        found = self.process.stdout.readline()
        if not found:  # it has ended, out of time or of memory
            self.process.wait()
            self.process = None
        return found == "True\n"


def serve(about, seconds):
    """What the process does: (answer, entry), a line each, until there are no more."""
    data = prepare.opened(about)
    say, sys.stdout = sys.stdout, sys.stderr  # for verifiers that print
    print("ready", file=say, flush=True)
    for line in sys.stdin:
        signal.alarm(int(seconds))  # ends the process, even within a long power
        print(prepare.accepts(data, *json.loads(line)), file=say, flush=True)
        signal.alarm(0)


def load(folder, test_examples):
    return Gym(Path(folder))


if __name__ == "__main__":
    serve(*sys.argv[1:])
