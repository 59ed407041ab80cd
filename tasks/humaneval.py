"""HumanEval (arXiv 2107.03374): 164 functions to complete, with tests.

As lm-evaluation-harness does for base models: the prompt is the signature and docstring as they
stand, no examples; the answer ends where a line begins with something that is not of the function
(STOPS). config/humaneval.py samples as Dream-Coder's published evaluation, which the paper follows
(section 4.5); that one ends an answer at ``` instead and keeps of it what the function needs.
"""

from data import sources
from tasks import codeeval

HUB = "openai/openai_humaneval"
FIELDS = dict.fromkeys(("task_id", "prompt", "canonical_solution", "test", "entry_point"), str)
STOPS = "\nclass", "\ndef", "\n#", "\nif", "\nprint"


def read(file):
    """The problems of the file in HumanEval's form, or of the hub if it is ""."""
    rows = sources.read_small(file, FIELDS, HUB)
    sources.unique((row[0] for row in rows), file or HUB)
    return [make_problem(*row) for row in rows]


def make_problem(name, prompt, solution, test, function):
    after = f"\n{test}\ncheck({function})\n"
    return codeeval.Problem(name, prompt, solution, prompt, after, STOPS)
