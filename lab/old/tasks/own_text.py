"""Own text as a task: prompts with responses, or documents without prompts.

The folder, written by data/jsonl/prepare.py, says which it is. With prompts, a row is prompt,
newline, response, end, end, ...; everything after the prompt is trained on, and the held-out
prompts are the problems. Without, rows are full, and the only problem is to write a row from
scratch; the likelihood bound is also in bits per character (eval.py --nelbo).

Evaluation is the validation loss and, if `eval_judge` is set, the share of held-out prompts with a
correct response: `exact`, equal to the held-out response up to surrounding white space, or by a
user's file with one function:

    def judge(prompt, response, answer):    # texts; answer: the held-out response
        return response.split()[-1:] == answer.split()[-1:]    # or a word that says why not

True counts as solved; False is reported as "wrong", a word as itself. The file runs in this
process. It is first tried on a held-out answer; if it later raises, exits or takes longer than
SECONDS, the response counts as "judge_failed", with file and line. It is a user's own: one that a
saved run names is executed only if a command names it again (train.py --init_from=resume
--eval_judge=FILE.py, eval.py --problems=FILE.py).
"""

import contextlib
import functools
import signal
from pathlib import Path
from typing import NamedTuple

import numpy as np

import configurator
from data import corpus
from engine.files import say
from tasks import text

SECONDS = 30  # that a judge may take
say_once = functools.cache(say)


class Settings(NamedTuple):
    text_length: int = 176  # 1..65535: tokens of a row of generated text
    eval_judge: str = ""  # of responses: exact or FILE.py (see above); "" = the loss alone


class Item(NamedTuple):
    """A problem: what is given, and what followed it in the data (None = unknown)."""

    prompt: str
    answer: str | None
    ids: list  # of what is given


class Responses(text.Prompts):
    """Prompts to respond to, judged by judge(prompt, response, answer); None = not judged."""

    def __init__(self, problems, encoding, length, judge=None):
        super().__init__(problems, encoding, length)
        self.judged, self.decide = judge is not None, judge

    def ids(self, problem):
        return problem.ids

    def judge_texts(self, texts, indices):
        return [self.record(self.problems[i], t) for i, t in zip(indices, texts, strict=True)]

    def record(self, problem, response):
        kind, detail = "not judged", ""
        if self.judged and problem.answer is not None:
            kind, detail = self.decide(problem.prompt, response, problem.answer)
        if kind == "judge_failed":
            say_once(f"a response counts as not solved, since {detail} (shown only once)")
        about = {"prompt": problem.prompt, "response": response, "answer": problem.answer}
        return about | {"kind": kind, "detail": detail}

    def verdict(self, record):
        if record["kind"] == "too_long":
            return f"# the prompt leaves no room in {self.length} tokens"
        judged = f"{record['kind'].replace('_', ' ')} {record['detail']}".rstrip()
        return f"# {judged}" if self.judged and record["answer"] is not None else ""

    def judge_references(self, most=None):
        problems = self.problems[:most]
        return [self.record(problem, problem.answer) for problem in problems]


class Documents(Responses):
    """The beginnings of texts, possibly empty; everything after them is to be written."""

    def pieces(self, tokens, seen=None):
        """A document's end is shown as a blank line, each token not yet seen as a box."""
        seen = np.ones(len(tokens), bool) if seen is None else seen
        ends = seen & (np.asarray(tokens) == self.encoding.end)
        pieces = self.all_pieces(tokens, seen)
        return [(at, "\n\n" if ends[at] else text) for at, text in pieces]


class OwnText(text.Text):
    """Problems are made from the validation examples."""

    def __init__(self, folder, judge, most):
        super().__init__(folder, most)
        self.packed = self.header["source"].get("packed", False)
        self.characters = self.encoding.characters if self.packed else None
        self.judge = judge

    @functools.cached_property
    def test(self):
        return self.held_out(self.judge, self.most)

    def padding(self, x0):
        """Tokens after the first end in rows x0 (n, L), bool; packed rows have no padding."""
        return np.zeros(x0.shape, bool) if self.packed else super().padding(x0)

    def held_out(self, judge, most=None):
        """The prompts of the validation examples, or the empty prompt."""
        if self.packed and judge:
            why = "holds text without prompts, which is evaluated by its loss only"
            raise ValueError(f'eval_judge {judge!r}: {self.folder} {why}: expected ""')
        if self.packed:
            return self.prompts([""])
        items = [self.item(row) for row in range(len(self.validation))[:most]]
        decide = find_judge(judge, items[0]) if judge else None
        return Responses(items, self.encoding, self.length, decide)

    def item(self, row):
        """The problem of a validation example."""
        x0, prompt = (part[0] for part in self.validation[[row]])  # (L,)
        given = x0[prompt].tolist()
        answer = text.answer_text(self.encoding, x0[~prompt].tolist())
        return Item(self.encoding.decode(given).removesuffix("\n"), answer, given)

    def prompts(self, texts):
        """What a user types: prompts, or the beginnings of texts."""
        kind, form = (Documents, str) if self.packed else (Responses, corpus.prompt_text)
        most = corpus.CHARACTERS * self.length
        items = [Item(each, None, self.encoding.encode(form(each)[:most])) for each in texts]
        return kind(items, self.encoding, self.length)

    def problems(self, name, file):
        """The held-out prompts judged by `name`: exact, or a FILE.py."""
        if file or not name:
            raise ValueError("own text has only its held-out prompts: expected no --file")
        return self.held_out(name)

    def examples(self, name):
        """The examples of another split of the folder, for their likelihood."""
        return corpus.Examples(self.folder, name)


def load(config):
    """The data set that the configuration of a run asks for (keys as in train.py)."""
    return OwnText(folder_of(config), config["eval_judge"], config["test_examples"])


def folder_of(config):
    """The folder of a run's data; generates the text of word problems if there is none."""
    if config["data_dir"]:
        return Path(config["data_dir"])
    from data.wordproblems.text import make_once

    return make_once(config["train_examples"], config["text_length"])


# -- judges ----------------------------------------------------------------------------------------
def find_judge(name, item):
    """decide(prompt, response, answer) -> kind and detail, for `exact` or a FILE.py.

    Raises ValueError if there is no such judge, or if it fails on the Item.
    """
    decide = functools.partial(decided, exact if name == "exact" else read_judge(name), name)
    kind, detail = decide(item.prompt, item.answer, item.answer)
    if kind == "judge_failed":
        raise ValueError(f"eval_judge: {detail}, given the held-out answer as response")
    return decide


def exact(prompt, response, answer):
    return response.strip() == answer.strip()


def decided(judge, file, *texts):
    """Kind and detail, whatever the user's function does."""
    try:
        with time_limit(SECONDS):
            answer = judge(*texts)
        shown = configurator.printable(repr(answer))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a judge may also exit, or be Late
        place = configurator.place_of(error, file)
        return "judge_failed", f"{place}: {configurator.message_of(error)}"
    if isinstance(answer, str) and answer:
        return answer, ""
    if isinstance(answer, bool | np.bool_):
        return "correct" if answer else "wrong", ""
    return "judge_failed", f"{file}: judge returned {shown}, expected True, False or a word"


class Late(BaseException):
    """Not an Exception, which a judge may catch."""


@contextlib.contextmanager
def time_limit(seconds):
    """Raises Late in the body, which must be in the main thread."""

    def stop(number, frame):
        raise Late(f"no answer within {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read_judge(file):
    """The function of the file. Raises ValueError."""
    expected = "expected exact, or a file with a function judge(prompt, response, answer)"
    if not Path(file).is_file():
        raise ValueError(f"eval_judge {file!r}: no such file; {expected}")
    try:
        with time_limit(SECONDS):
            judge = configurator.execute(file).get("judge")
    except ValueError as error:
        raise ValueError(f"eval_judge: {error}") from None
    if not callable(judge):
        raise ValueError(f"eval_judge {file!r}: the file has no function judge; {expected}")
    return judge
