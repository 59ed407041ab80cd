"""Evaluate a trained model on MBPP (arXiv 2108.07732): 500 short tasks, ids 11 to 510, three tests.

    python -m tasks.mbpp --out_dir=out/dream_coder_puma_1             pass@1 of one sample each
    python -m tasks.mbpp --reference                                  the solutions that come along
    torchrun --nproc_per_node=8 -m tasks.mbpp --out_dir=...           problems shared out

As lm-evaluation-harness does for base models: the prompt shows tasks 2, 3 and 4 with their
solutions, then the task with its tests; the answer ends at `[DONE]`. Two things differ: line ends
are \\n, where the data has \\r\\n (in the three examples too), and the set-up code of a test
(task 367) is run, between the program, whose classes it uses, and the tests. Sampling as in
Dream-Coder's published evaluation, which the paper follows (section 4.5); that one asks without
examples, for the 378 tasks of MBPP+.
Of the solutions that come along, 499 of 500 pass: that of task 123 is right but needs 10 seconds.
Writes out_dir/mbpp.json and mbpp.jsonl; codeeval.py says what is in them, and does it.
"""

from types import SimpleNamespace
from typing import NamedTuple

from configurator import configure
from data import sources
from tasks import codeeval

# -- what ----------------------------------------------------------------------------------------
out_dir = "out/dream_coder_puma_1"  # the run whose averaged weights are used
file = ""  # mbpp.jsonl; "" = the hub's google-research-datasets/mbpp
examples: int | None = None  # problems at most; None = all
samples = 1  # programs per problem
reference = False  # judge the solutions in the file, in place of a model's
seconds = 3.0  # for a program with its tests
# -- how -----------------------------------------------------------------------------------------
policy = "entropy"  # top_k, margin, entropy, random, left_to_right, semi_ar_<block size>
reveal = 1  # tokens revealed per step
temperature = 0.1  # 0 = the likeliest token
top_p = 0.9  # sample from the likeliest tokens that have this share of the probability
new_tokens = 512  # of an answer, with the ends of text that fill it up
length = 2048  # tokens of prompt and answer at most; they may be more than in training
seed = 1  # of the sampled tokens and of the random policy
batch_size = 16  # rows in work at a time
# -- system --------------------------------------------------------------------------------------
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32; "" = chosen by the hardware


class Task(NamedTuple):
    text: str
    code: str
    tests: list
    setup: str


HUB = "google-research-datasets/mbpp"
FIELDS = "task_id", "text", "code", "test_list", "test_setup_code"
SHOWN = 2, 3, 4  # task ids of the examples in the prompt
TEST = range(11, 511)
STOPS = ("[DONE]",)


def read(file):
    """The problems 11 to 510 of the file in MBPP's form, or of the hub."""
    rows = sources.read_small(file, FIELDS, HUB, "full", ("prompt", "test"))
    tasks = {row[0]: Task(*map(unix, row[1:])) for row in rows}
    if missing := [number for number in SHOWN if number not in tasks]:
        raise ValueError(f"{file or HUB}: no task {missing[0]}, which the prompt shows")
    shown = [tasks[number] for number in SHOWN]
    shown = "".join(f"{question(task)}{task.code}\n[DONE]\n\n" for task in shown)
    return [problem(number, shown, tasks[number]) for number in TEST if number in tasks]


def unix(text):
    """Line ends are \\n in the text, or in each of a list of texts."""
    if isinstance(text, list):
        return [unix(each) for each in text]
    return text.replace("\r\n", "\n").replace("\r", "\n")


def question(task):
    return (
        f"You are an expert Python programmer, and here is your task: {task.text} "
        "Your code should pass these tests:\n\n" + "\n".join(task.tests) + "\n[BEGIN]\n"
    )


def problem(number, shown, task):
    after = "\n".join(["", task.setup, *task.tests, ""])
    return codeeval.Problem(f"MBPP/{number}", shown + question(task), task.code, "", after)


if __name__ == "__main__":
    codeeval.run("mbpp", read, STOPS, SimpleNamespace(**configure(globals())))
