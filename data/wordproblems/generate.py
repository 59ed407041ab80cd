"""GSM-style word problems with programs, in the form of TinyGSM: made from a seed, without data.

A template (templates.txt) turns a random source into a question and a program. The numbers of a
program decide its split: a stable hash of (template, sorted numbers) gives 96% to train, 2% to
validation, 2% to test, so no two of them share a template with its numbers, whatever the seed and
the count. The templates HELD_OUT occur in `transfer` alone.

What this file does not do: draw from a template (templates.py), or cut text into tokens.
"""

import re
import zlib
from typing import NamedTuple

from data.wordproblems.templates import HELD_OUT, SEEN, Draws


class Problem(NamedTuple):
    question: str  # prose in one line
    code: str  # a function that repeats the question as its docstring and returns the answer
    template: str


PATIENCE = 20_000  # draws in a row that give no new problem; one in 50 is of the test split


def make(template, draws):
    """One problem of a template."""
    question, program = template.draw(draws)
    question = question.replace(". ", ".\n    ")  # one sentence a line
    if (last := program.rpartition("\n")[2].strip().split(" = ")[0]) != "result":
        program += f"\n    result = {last}"
    docstring = f'    """\n{question}\n    """'
    code = f"def simple_math_problem() -> int:\n{docstring}\n{program}\n    return result"
    return Problem(question.strip().replace("\n    ", " "), code, template.name)


def numbers(text):
    return re.findall(r"\d+(?:\.\d+)?", text)


def split_of(problem):
    """Where a problem belongs.

    The order of the numbers is left out, since wordings may swap them, and so are those that the
    program does not use: the same program under another distractor is the same problem.
    """
    if problem.template in HELD_OUT:
        return "transfer"
    program = problem.code.split('"""')[2]
    key = f"{problem.template} {' '.join(sorted(numbers(program)))}"
    return {0: "validation", 1: "test"}.get(zlib.crc32(key.encode()) % 50, "train")


def make_problems(count, split, seed=0):
    """`count` problems of a split with different questions; more begin with the same ones.

    split: train, validation, test or transfer. Other seeds give other problems of it, with chance
    repeats between two seeds. Raises ValueError where there are not so many.
    """
    templates = tuple((HELD_OUT if split == "transfer" else SEEN).values())
    draws, problems, misses = Draws(seed), {}, 0
    while len(problems) < count:
        problem = make(draws.pick(*templates), draws)
        if split_of(problem) == split and problem.question not in problems:
            problems[problem.question] = problem
            misses = 0
        elif (misses := misses + 1) == PATIENCE:
            raise ValueError(f"{count} {split} problems: found {len(problems)} different ones")
    return list(problems.values())
