"""Text as a task: a question, which is the prompt, and a program that answers it.

A row is question, newline, program, end of text, then end of text up to the full length; all that
follows the prompt is trained on (paper, section 4.2). A folder holds a data set: token files
(data/corpus.py), and the questions of the test set in `test.jsonl`, one object a line: question,
answer, and the reference program `code` where there is one. A question counts as solved if the
generated program returns the right number (tasks/programs.py).
"""

import itertools
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data import corpus, tokenizer
from tasks import programs


class Problem(NamedTuple):
    question: str
    answer: object  # a number, or a text that programs.number reads
    code: str | None = None


class Prompts:
    """The questions of a test set as prompts of rows (n, L); all that follows is to be generated.

    `too_long` (n,) bool: those that leave no room for a program. Their programs are empty.
    """

    def __init__(self, problems, encoding, length):
        self.problems, self.encoding = problems, encoding
        prompts = [self.ids(problem) for problem in problems]
        sizes = np.array([len(ids) for ids in prompts], int)
        self.too_long = sizes >= length
        self.prompt = np.arange(length) < sizes[:, None]
        self.x0 = np.full(self.prompt.shape, encoding.end)
        self.x0[self.prompt] = [i for ids in prompts for i in ids[:length]]

    def ids(self, problem):
        return self.encoding.encode(corpus.prompt_text(problem.question))

    def __len__(self):
        return len(self.problems)

    def __getitem__(self, indices):
        return self.x0[indices], self.prompt[indices]

    def programs(self, tokens, indices):
        """The texts up to the end, in rows of tokens (n, L) that answer the questions `indices`."""
        answers = zip(np.asarray(tokens), self.prompt[indices], strict=True)
        return [program(self.encoding, row[~prompt].tolist()) for row, prompt in answers]

    def solved(self, tokens, indices):
        """Which rows of tokens (n, L) solve the questions at `indices` (n,), bool (n,)."""
        answers = [self.problems[i].answer for i in indices]
        verdicts = programs.judge(self.programs(tokens, indices), answers)
        return np.array([verdict.kind == "correct" for verdict in verdicts], bool)


def program(encoding, ids):
    """The text of generated ids up to the first end of an answer.

    A pretrained model may have ids beyond those of the tokenizer: they show as its last one.
    """
    ids = itertools.takewhile(lambda i: i not in encoding.ends, ids)
    return encoding.decode(min(i, encoding.vocab_size - 1) for i in ids)


class Text(NamedTuple):
    """A data set to train on, one to validate the loss, and questions to solve."""

    train: corpus.Examples
    validation: corpus.Examples
    test: Prompts
    encoding: tokenizer.Tokenizer

    @property
    def length(self):
        return self.train.length

    @property
    def vocab_size(self):
        return self.encoding.vocab_size

    @property
    def mask(self):
        return self.encoding.mask

    def padding(self, x0):
        """What follows the first end of text in rows x0 (n, L), bool."""
        return (x0 == self.encoding.end).cumsum(1) > 1


def load(config):
    """The data set that the configuration of a run asks for (keys as in train.py)."""
    folder = folder_of(config)
    train, validation, encoding = read_corpus(folder)
    problems = read_problems(folder / "test.jsonl")[: config["test_examples"]]
    return Text(train, validation, Prompts(problems, encoding, train.length), encoding)


def read_corpus(folder):
    """Examples to train on, examples to validate on, and the tokenizer of a prepared folder.

    Raises FileNotFoundError or ValueError if the folder has none.
    """
    train, validation = (corpus.Examples(folder, split) for split in ("train", "val"))
    encoding = corpus.load_tokenizer(folder)
    programs.report_sandbox()
    if not len(validation):
        raise ValueError(
            f"{folder} has no validation examples: prepare more or longer rows, or a larger --val"
        )
    return train, validation, encoding


def folder_of(config):
    """The folder of a run's data set; generated word problems are made where they are not there."""
    if config["data_dir"]:
        return Path(config["data_dir"])
    from data.wordproblems.prepare import make_once  # 1,500 lines that prepared text can do without

    return make_once(config["train_examples"], config["templates"], config["text_length"])


def read_problems(path):
    """The problems in a file of JSON lines; a textual answer may lead up to `#### NUMBER` (GSM8K).

    Raises ValueError that names the line.
    """
    problems = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                question, answer = row["question"], row["answer"]
                if isinstance(answer, str):
                    answer = answer.rpartition("####")[2].strip()
                if programs.number(answer) is None or not isinstance(question, str):
                    raise ValueError("question must be text and answer a number")
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: no problem: {error!r}") from None
            problems.append(Problem(question, answer, row.get("code")))
    if not problems:
        raise ValueError(f"{path} is empty: expected lines with question and answer")
    return problems
