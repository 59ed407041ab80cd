"""HumanEval (arXiv 2107.03374): 164 functions to complete, with tests.

As in lm-evaluation-harness for base models: the prompt is the signature and docstring as they are,
without examples; the answer ends at the first line that cannot belong to the function (STOPS).
config/humaneval.py samples like Dream-Coder's published evaluation, which the paper follows
(section 4.5); that one instead ends an answer at ``` and keeps the part that the function needs.
"""

from data import sources
from tasks import codeeval

HUB = "openai/openai_humaneval"
FIELDS = dict.fromkeys(("task_id", "prompt", "canonical_solution", "test", "entry_point"), str)
STOPS = "\nclass", "\ndef", "\n#", "\nif", "\nprint"


def read(file):
    """The problems of a file in HumanEval's format, or ("") of the hub."""
    rows = sources.read_small(file, FIELDS, HUB)
    return [make_problem(*row) for row in rows]


def make_problem(name, prompt, solution, test, function):
    after = f"\n{test}\ncheck({function})\n"
    return codeeval.Problem(name, prompt, solution, prompt, after, STOPS)
