"""GSM-style word problems with programs, in the form of TinyGSM: made from a seed, without data.

A template (templates.txt) turns a random source into a question and a program. The numbers of a
program decide its split: a stable hash of (template, sorted numbers) gives 96% to train, 2% to
validation, 2% to test, so no two of them share a template with its numbers, whatever the seed and
the count.
"""

import re
import zlib
from typing import NamedTuple

from data.wordproblems.templates import TEMPLATES, Draws

PATIENCE = 20_000  # draws in a row that give no new problem; one in 50 is of the test split


class Problem(NamedTuple):
    question: str  # prose in one line
    code: str  # a function that repeats the question as its docstring and returns the answer
    template: str


def make(template, draws):
    question, program = template.text(draws).split("\n\n")  # lines with an indent of four
    question = question.replace(". ", ".\n    ")  # one sentence a line
    if (last := program.rpartition("\n")[2].strip().split(" = ")[0]) != "result":
        program += f"\n    result = {last}"
    docstring = f'    """\n{question}\n    """'
    code = f"def simple_math_problem() -> int:\n{docstring}\n{program}\n    return result"
    return Problem(question.strip().replace("\n    ", " "), code, template.name)


def split_of(problem):
    """Where a problem belongs, by the numbers that its program uses, in any order."""
    numbers = re.findall(r"\d+(?:\.\d+)?", problem.code.split('"""')[2])
    key = f"{problem.template} {' '.join(sorted(numbers))}"
    return {0: "validation", 1: "test"}.get(zlib.crc32(key.encode()) % 50, "train")


def make_problems(count, split, seed=0):
    """`count` problems of a split with different questions; more begin with the same ones.

    split: train, validation or test. SystemExit where there are not so many.
    """
    templates = tuple(TEMPLATES.values())
    draws, problems, misses = Draws(seed), {}, 0
    while len(problems) < count:
        problem = make(draws.pick(*templates), draws)
        if split_of(problem) == split and problem.question not in problems:
            problems[problem.question] = problem
            misses = 0
        elif (misses := misses + 1) == PATIENCE:
            raise SystemExit(f"{count} {split} problems: found {len(problems)} different ones")
    return list(problems.values())
