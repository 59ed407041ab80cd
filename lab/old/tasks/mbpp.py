"""MBPP (arXiv 2108.07732): 500 short tasks, 11 to 510, each with three tests.

As in lm-evaluation-harness for base models: the prompt shows tasks 2, 3 and 4 with their
solutions, then the task with its tests; the answer ends at `[DONE]`. Two things differ: line ends
are \\n where the data has \\r\\n (in the three examples too), and the tests' set-up code (task 367)
is run between the program, whose classes it uses, and the tests. config/mbpp.py samples like
Dream-Coder's published evaluation, which the paper follows (section 4.5); that one prompts without
examples, on the 378 tasks of MBPP+.
499 of the 500 reference solutions pass: the one for task 123 is correct but needs 10 seconds.
"""

from typing import NamedTuple

from data import sources
from tasks import codeeval


class Task(NamedTuple):
    text: str
    code: str
    tests: list
    setup: str


HUB = "google-research-datasets/mbpp"
FIELDS = {"task_id": int, "text": str, "code": str, "test_list": list, "test_setup_code": str}
SHOWN = 2, 3, 4  # task ids of the examples in the prompt
TEST = range(11, 511)
STOPS = ("[DONE]",)


def read(file):
    """The problems 11 to 510 of a file in MBPP's format, or ("") of the hub."""
    rows = sources.read_small(file, FIELDS, HUB, "full", ("prompt", "test"))
    tasks = {row[0]: Task(*map(unix, row[1:])) for row in rows}
    if missing := [number for number in SHOWN if number not in tasks]:
        raise ValueError(f"{file or HUB}: no task {missing[0]}, which the prompt shows")
    examples = [tasks[number] for number in SHOWN]
    examples = "".join(f"{question(task)}{task.code}\n[DONE]\n\n" for task in examples)
    problems = [make_problem(number, examples, tasks[number]) for number in TEST if number in tasks]
    if not problems:
        raise ValueError(f"{file or HUB}: none of the tasks {TEST[0]} to {TEST[-1]}, to test on")
    return problems


def unix(text):
    """A text, or each of a list of texts, with \\n as line ends."""
    if isinstance(text, list):
        return [unix(each) for each in text]
    return text.replace("\r\n", "\n").replace("\r", "\n")


def question(task):
    return (
        f"You are an expert Python programmer, and here is your task: {task.text} "
        "Your code should pass these tests:\n\n" + "\n".join(task.tests) + "\n[BEGIN]\n"
    )


def make_problem(number, examples, task):
    after = "\n".join(["", task.setup, *task.tests, ""])
    return codeeval.Problem(
        f"MBPP/{number}", examples + question(task), task.code, "", after, STOPS
    )
