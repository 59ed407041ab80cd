"""Text as a task: a question, which is the prompt, and a program that answers it.

A row is question, newline, program, end of text, then end of text up to the full length; all that
follows the prompt is trained on (paper, section 4.2). A folder holds a data set: token files
(data/corpus.py), and the questions of the test set in `test.jsonl`, one object a line: question,
answer, and the reference program `code` where there is one. A question counts as solved if the
generated program returns the right number (tasks/programs.py).
"""

import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from data import corpus, tokenizer
from data.wordproblems import generate as wordproblems
from data.wordproblems import templates as wordproblem_templates
from record import write_lines
from tasks import programs

EMBEDDED = Path(wordproblems.__file__).parent  # where generated data sets are kept
VOCABULARY = EMBEDDED / "vocabulary.tiktoken"
HELD_OUT = 1000  # problems each to validate, to test, and to test transfer to other templates


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
    folder, count = folder_of(config), config["test_examples"]
    return of_folder(
        folder, lambda *form: Prompts(read_problems(folder / "test.jsonl")[:count], *form)
    )


def of_folder(folder, prompts):
    """The data set in a folder, with the test set prompts(encoding, length)."""
    train, validation = (corpus.Examples(folder, split) for split in ("train", "val"))
    encoding = corpus.load_tokenizer(folder)
    programs.report_sandbox()
    if not len(validation):
        raise ValueError(
            f"{folder} has no validation examples: prepare more or longer rows, or a larger --val"
        )
    return Text(train, validation, prompts(encoding, train.length), encoding)


def folder_of(config):
    """The folder of a run's data set; generated word problems are made where they are not there."""
    if config["data_dir"]:
        return Path(config["data_dir"])
    return embedded(config["train_examples"], config["templates"], config["text_length"])


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


def embedded(count, templates, length):
    """The folder of `count` generated word problems to train on, made if it is not there yet.

    Rows have `length` tokens, longer problems are dropped; templates: see wordproblems.generate.
    Raises ValueError where these have too few problems.
    """
    sources = [VOCABULARY, wordproblems.__file__, wordproblem_templates.__file__]
    content = repr((templates, length)).encode(), *(Path(path).read_bytes() for path in sources)
    folder = EMBEDDED / f"{count}-{hashlib.sha256(b''.join(content)).hexdigest()[:12]}"
    if folder.exists():
        return folder
    print(f"making {count:,} word problems: {folder}", flush=True)
    encoding = tokenizer.load(VOCABULARY)
    own = folder.with_name(f"{folder.name}.{os.getpid()}")  # another run may be making the same
    writer = corpus.Writer(own, encoding, length, {"wordproblems": count, "templates": templates})
    for split, kind, n in (("train", "train", count), ("val", "validation", HELD_OUT)):
        problems = wordproblems.generate(n, kind, only=templates)
        for start in tqdm(range(0, n, 1000), kind, unit="k"):
            pairs = [(problem.question, problem.code) for problem in problems[start : start + 1000]]
            encoded, dropped = corpus.encode(encoding, pairs, length)
            writer.add(split, encoded)
            writer.dropped += dropped
    for kind in ("test", "transfer"):
        rows = [
            problem._asdict()
            for problem in wordproblems.generate(HELD_OUT, kind, only=templates)
            if not corpus.encode(encoding, [(problem.question, problem.code)], length)[1]
        ]
        write_lines(writer.partial / f"{kind}.jsonl", rows)
    writer.finish()
    try:
        own.rename(folder)
    except OSError:  # the other run was first
        shutil.rmtree(own)
    return folder
