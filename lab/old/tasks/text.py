"""Text as a task: a question, which is the prompt, and a program that answers it.

A row is question, newline, program, end of text, then end of text up to the full length; everything
after the prompt is trained on (paper, section 4.2). A folder holds a data set: token files
(data/corpus.py), and the questions of the test set in `test.jsonl`, one object per line: question,
answer, and the reference program `code` if there is one. A question counts as solved if the
generated program returns the correct number (tasks/gsm8k.py).
"""

import functools
import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np

import sandbox
from data import corpus
from tasks import Problems, Task, gsm8k


# ruff: noqa: RUF012 (a NamedTuple shares the default, which nobody changes)
class Settings(NamedTuple):
    templates: list[str] = []  # names in data/wordproblems/templates.txt; [] = all of them
    text_length: int = 176  # 1..65535: tokens of a generated problem; longer ones are dropped


class Prompts(Problems):
    """Prompts of rows of `length` tokens; everything after them is to be generated.

    A subclass defines the prompt of a problem (`ids`) and judges texts (`judge_texts`). If a prompt
    leaves no room for an answer, nothing is generated: its kind is "too_long".
    """

    def __init__(self, problems, encoding, length):
        self.problems, self.encoding, self.length = problems, encoding, length

    def __len__(self):
        return len(self.problems)

    def __getitem__(self, indices):
        return self.rows[0][indices], self.rows[1][indices]

    @functools.cached_property
    def rows(self):
        """x and hidden (N, L) of all problems."""
        prompts = [self.ids(problem) for problem in self.problems]
        sizes = np.array([len(ids) for ids in prompts], int)
        hidden = np.arange(self.length) >= sizes[:, None]
        x = np.full(hidden.shape, self.encoding.mask)
        x[~hidden] = [i for ids in prompts for i in ids[: self.length]]
        return x, hidden

    def encode(self, text):
        """Ids of the text; of its beginning only, if it is too long anyway."""
        return self.encoding.encode(text[: corpus.CHARACTERS * self.length])

    def judge(self, tokens, indices):
        hidden = self[indices][1]
        answers = zip(np.asarray(tokens), hidden, strict=True)
        texts = [answer_text(self.encoding, row[mask].tolist()) for row, mask in answers]
        records = zip(self.judge_texts(texts, indices), hidden.any(1), strict=True)
        too_long = {"kind": "too_long", "detail": ""}
        return [record if fits else record | too_long for record, fits in records]

    def pieces(self, tokens, seen=None):
        """The pieces of a row up to its end, with a box for each token not yet seen."""
        seen = np.ones(len(tokens), bool) if seen is None else seen
        ends = np.flatnonzero(seen & (np.asarray(tokens) == self.encoding.end))
        return self.all_pieces(tokens, seen)[: ends[0] if len(ends) else None]

    def all_pieces(self, tokens, seen):
        """The pieces of a whole row."""
        texts = [
            self.encoding.decode_each(ids) if now else ["\N{LIGHT SHADE}"] * len(ids)
            for now, ids in neighbours(tokens, seen)
        ]
        return [*enumerate(itertools.chain(*texts))]


class Questions(Prompts):
    """Word problems, answered by programs."""

    def ids(self, problem):
        return self.encode(corpus.prompt_text(problem.question))

    def judge_texts(self, texts, indices):
        return gsm8k.judge(texts, [self.problems[i] for i in indices])

    def judge_references(self, most=None):
        codes = [problem.code for problem in self.problems[:most]]
        if None in codes:
            raise ValueError(f"question {codes.index(None)} has no code to judge")
        return self.judge_texts(codes, range(len(codes)))

    def verdict(self, record):
        kind, value = record["kind"], record["value"]
        if kind not in ("correct", "wrong_number"):
            return f"# {record['detail'] or kind.replace('_', ' ')}"
        if record["answer"] is None:  # unknown: a question that a user typed
            return f"# returned {value}"
        return f"# {kind.replace('_', ' ')} {value}"


def neighbours(tokens, seen):
    """(seen, ids) for each run of tokens with equal `seen`."""
    pairs = zip(seen.tolist(), tokens.tolist(), strict=True)
    for now, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        yield now, [token for _, token in group]


def answer_text(encoding, ids):
    """The text of generated ids up to the first end of an answer.

    A pretrained model may have ids beyond the tokenizer's: they are shown as its last one.
    """
    ids = itertools.takewhile(lambda i: i not in encoding.ends, ids)
    return encoding.decode(min(i, encoding.vocab_size - 1) for i in ids)


class Text(Task):
    """The training and validation examples of a folder; a subclass adds problems to solve.

    Examples are read when they are asked for: prompts need `files` alone, which every run keeps.
    Raises FileNotFoundError or ValueError for an invalid folder, or one without examples.
    """

    train = functools.cached_property(lambda self: self.split("train"))
    validation = functools.cached_property(lambda self: self.split("val"))

    def __init__(self, folder, most=None):
        self.folder = folder
        self.most = most
        self.header = corpus.read_header(folder)
        self.files = corpus.needed(folder)
        self.encoding = corpus.load_tokenizer(folder)
        self.length = self.header["length"]
        self.vocab_size = self.encoding.vocab_size
        self.mask = self.encoding.mask

    def split(self, name):
        if len(examples := corpus.Examples(self.folder, name)):
            return examples
        more = "prepare more text, or with another --length or --val"
        raise ValueError(f"{self.folder} has no rows in {name}: {more}")

    def padding(self, x0):
        """Tokens after the first end of text in rows x0 (n, L), bool."""
        return (x0 == self.encoding.end).cumsum(1) > 1


class WordProblems(Text):
    """Questions answered by programs: the first `most` in test.jsonl are the test set."""

    @functools.cached_property
    def test(self):
        return self.questions(corpus.kept_file(self.folder, "test.jsonl"), self.most)

    def questions(self, path, most=None):
        return Questions(gsm8k.read_problems(path)[:most], self.encoding, self.length)

    def problems(self, name, file):
        """The questions in a file, or of the folder's set transfer (unseen templates)."""
        if not file and name != "transfer":
            raise ValueError(f"problems {name!r}: expected transfer, humaneval, mbpp, or --file")
        return self.questions(file or corpus.kept_file(self.folder, f"{name}.jsonl"))

    def prompts(self, texts):
        problems = [gsm8k.Problem(text, None) for text in texts]
        return Questions(problems, self.encoding, self.length)


def load(config):
    """The data set that the configuration of a run asks for (keys as in train.py)."""
    sandbox.report_missing_layers()
    return WordProblems(folder_of(config), config["test_examples"])


def folder_of(config):
    """The folder of a run's data; generates the word problems if they do not exist yet."""
    if config["data_dir"]:
        return Path(config["data_dir"])
    from data.wordproblems.prepare import make_once  # prepared text does not need it

    return make_once(config["train_examples"], config["templates"], config["text_length"])
