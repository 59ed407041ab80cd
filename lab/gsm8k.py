"""Word problems that a program answers, as a task: train.py --task=lab.gsm8k.

An example is `question, newline | program, end, end, ...` (text.py). It is solved if the generated
simple_math_problem(), run in lab/sandbox.py, returns the right number, within a thousandth; what
the sandbox refuses is not solved, and counted at the end. Held out are the rows of val, whose own
programs say what is right; or, if the folder has a test.jsonl (data/tinygsm/prepare.py writes
GSM8K's 1,319 test questions), these; then val_loss says nothing.
"""

import atexit
import copy
import json
import math
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np

from data.rows import kept, prompt_text
from lab import sandbox
from text import Text

FUNCTION = "simple_math_problem"  # as TinyGSM names it
NUMBER = re.compile(  # numbers as strings: $1,234.50, 12 000, 5 $, 50 %, -3/4, 1.5e3
    r"(?:\$ ?)?([-+]?) ?(?:\$ ?)?(\d{1,3}(?:[, ]\d{3}){1,30}|\d{0,100})(\.\d{0,100})?"
    r"(e[-+]?\d{1,3})?(?: ?/ ?(\d{1,100}))? ?[%$]?",
    re.IGNORECASE,
)

refused = Counter()  # what programs had, generated ones and held-out ones, that is refused


class WordProblems(Text):
    def __init__(self, folder):
        super().__init__(folder)
        self.tokenizer = kept(folder)
        if (folder / "test.jsonl").is_file():
            with (folder / "test.jsonl").open() as lines:
                self.test = self.rows([json.loads(line) for line in lines if line.strip()])

    def rows(self, problems):
        """Dictionaries with question and answer as text.Rows; without room, one is not solved."""
        encode = self.tokenizer.encode
        prompts = [encode(prompt_text(p["question"]))[: self.length - 1] for p in problems]
        numbers = [encode("####" + p["answer"].rpartition("####")[2]) for p in problems]
        examples = [(p + n)[: self.length] for p, n in zip(prompts, numbers, strict=True)]
        rows = copy.copy(self.test)
        rows.tokens = np.concatenate(examples)
        rows.starts = np.cumsum([0, *map(len, examples)])
        rows.prompts = np.array([*map(len, prompts)])
        return rows

    def judge(self, tokens, x0, prompt):
        """Which rows of tokens (n, L) solve their problem, bool (n,)."""
        n = len(tokens)
        rows = *zip(tokens, prompt, strict=True), *zip(x0, prompt, strict=True)
        programs = [self.tokenizer.text(row[~given]) for row, given in rows]
        outcomes = sandbox.run(programs, FUNCTION)
        refused.update(each.detail for each in outcomes if each.kind == "refused")
        return np.array([*map(correct, outcomes[:n], outcomes[n:], programs[n:])])

    def render(self, tokens, prompt):
        """The text of a row (L,); once nothing is masked, with what its program returns."""
        if self.mask_token in tokens:
            return super().render(tokens, prompt)
        (outcome,) = sandbox.run([self.tokenizer.text(tokens[~prompt])], FUNCTION)
        result = f"# {outcome.kind}: {outcome.detail or outcome.value!r}"
        return super().render(tokens, prompt) + "\n" + result

    def parse(self, text):
        """A question that a user types -> x0 (1, L), prompt (1, L); its answer is not known."""
        self.judge = None
        rows = self.rows([{"question": text, "answer": ""}])
        if rows.prompts[0] == self.length - 1:
            raise SystemExit(f"the question leaves no room in rows of {self.length} tokens")
        return rows[:1]


@atexit.register
def say_refused():
    if refused:
        most = ", ".join(f"{what}: {n:,}" for what, n in refused.most_common(9))
        print(f"programs refused by lab/sandbox.py: {refused.total():,} ({most})")


def correct(outcome, reference, text):
    """The reference, of this text, is a program, or else the text ends in `#### NUMBER`."""
    value = number(outcome.value) if outcome.kind == "ok" else None
    right = number(reference.value if reference.kind == "ok" else text.rpartition("####")[2])
    return None not in (value, right) and abs(value - right) <= Fraction(1, 1000)


def number(value):
    """The exact number that a result stands for; None for a bool, infinity, nan and other text.

    A percent sign changes nothing: 50 % is 50, as in GSM8K's answers.
    """
    if type(value) is str:
        return spelled(value)
    return Fraction(value) if type(value) in (int, float) and abs(value) < math.inf else None


def spelled(text):
    text = " ".join(text.split())  # a program chose it: runs of blanks would take cubic time
    for minus in "\u2212\u2013\ufe63\uff0d":  # as typesetters write it
        text = text.replace(minus, "-")
    match = NUMBER.fullmatch(text) if len(text) <= 400 else None
    sign, whole, decimals, exponent, denominator = match.groups("") if match else [""] * 5
    digits = re.sub("[, ]", "", whole) + decimals
    if digits in ("", ".") or (denominator and not int(denominator)):
        return None
    return Fraction(sign + digits + exponent) / int(denominator or 1)


def load(folder, test_examples):
    return WordProblems(Path(folder))
