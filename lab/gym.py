"""Tasks of reasoning-gym, judged by its own verifiers: train.py config/gym.py --data=FOLDER.

The folder is of data/gym/prepare.py. An answer is solved if the verifier of its generator gives it
the full score, so an answer that is right counts although another one is listed.
"""

import functools
import itertools
import json
from pathlib import Path

import numpy as np

from data import corpus, vocabularies
from data.gym import prepare
from text import Text


class Gym(Text):
    def __init__(self, folder):
        if "gym" in folder.parts and not (folder / "header.json").is_file():
            raise SystemExit(f"{folder}: make it with: python data/gym/prepare.py {folder.name}")
        super().__init__(folder)
        self.about = json.loads((folder / "header.json").read_text())["source"]
        if "generator" not in self.about:
            raise SystemExit(f"{folder} is not of data/gym/prepare.py")
        self.tokenizer = vocabularies.open_kept(next(folder.glob("tokenizer.*")))
        self.entry = functools.cache(self.make_entry)  # some generators take long

    @functools.cached_property
    def generator(self):
        keys = "generator", "options", "seed", "rows", "reasoning-gym"
        return prepare.opened(json.dumps({key: self.about[key] for key in keys}))

    @functools.cached_property
    def places(self):
        """{tokens that a row is given: the place of its question in the generator}"""
        made = prepare.said(self.folder / "rows.jsonl")
        questions = (prepare.trimmed(row["question"], self.about) for row in made)
        prompts = (self.tokenizer.encode(corpus.prompt_text(question)) for question in questions)
        return {tuple(prompt): place for place, prompt in enumerate(prompts)}

    def make_entry(self, *prompt):
        return self.generator[self.places[prompt]]

    def judge(self, tokens, x0, prompt):
        """Which rows of tokens (n, L) the verifier accepts, bool (n,)."""
        rows = zip(tokens, x0, prompt, strict=True)
        pairs = [
            (self.text(row[~given]), self.entry(*x0[given].tolist())) for row, x0, given in rows
        ]
        return np.array([prepare.accepts(self.generator, *pair) for pair in pairs], bool)

    def text(self, ids):
        """The text of ids (k,) up to the end."""
        return self.tokenizer.decode(itertools.takewhile(lambda i: i != self.end, ids.tolist()))

    def parse(self, text):
        """A question that a user types -> x0 (1, L), prompt (1, L); it has no verifier."""
        self.judge = None
        return super().parse(text)


def load(folder, test_examples):
    return Gym(Path(folder))
