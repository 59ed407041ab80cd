"""Evaluate a trained model on HumanEval (arXiv 2107.03374): 164 functions to complete, with tests.

    python -m tasks.humaneval --out_dir=out/dream_coder_puma_1         pass@1 of one sample each
    python -m tasks.humaneval --out_dir=... --samples=20 --temperature=0.8 pass@1 and pass@10
    python -m tasks.humaneval --reference                              the solutions that come along
    torchrun --nproc_per_node=8 -m tasks.humaneval --out_dir=...       problems shared out

As lm-evaluation-harness does for base models: the prompt is the signature and docstring as they
stand, no examples; the answer ends where a line begins with something that is not of the function
(STOPS). Sampling as in Dream-Coder's published evaluation, which the paper follows (section 4.5);
that one ends an answer at ``` instead and keeps of it what the function needs.
Writes out_dir/humaneval.json and humaneval.jsonl; codeeval.py says what is in them, and does it.

`load` makes it a task for train.py: pairs of instruction and program, tested on these problems.
"""

from pathlib import Path
from types import SimpleNamespace

from configurator import configure
from data import sources
from tasks import codeeval, text

# -- what ----------------------------------------------------------------------------------------
out_dir = "out/dream_coder_puma_1"  # the run whose averaged weights are used
file = ""  # HumanEval.jsonl; "" = the hub's openai/openai_humaneval
examples: int | None = None  # problems at most; None = all
samples = 1  # programs per problem
reference = False  # judge the solutions in the file, in place of a model's
seconds = 3.0  # for a program with its tests
# -- how -----------------------------------------------------------------------------------------
policy = "entropy"  # top_k, margin, entropy, random, left_to_right, semi_ar_<block size>
reveal = 1  # tokens revealed per step
temperature = 0.2  # 0 = the likeliest token
top_p = 0.9  # sample from the likeliest tokens that have this share of the probability
new_tokens = 512  # of an answer, with the ends of text that fill it up
length = 2048  # tokens of prompt and answer at most; they may be more than in training
seed = 1  # of the sampled tokens and of the random policy
batch_size = 16  # rows in work at a time
# -- system --------------------------------------------------------------------------------------
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32; "" = chosen by the hardware


def read(file):
    """The problems of the file in HumanEval's form, or of the hub."""
    return [problem(*row) for row in sources.read_small(file, FIELDS, HUB)]


HUB = "openai/openai_humaneval"
FIELDS = "task_id", "prompt", "canonical_solution", "test", "entry_point"
STOPS = "\nclass", "\ndef", "\n#", "\nif", "\nprint"


def load(config):
    """The data set that data/dream_coder/prepare.py wrote, and the problems beside it."""
    folder = Path(config["data_dir"])
    train, validation, encoding = text.read_corpus(folder)
    problems = read(folder / "humaneval.jsonl")[: config["test_examples"]]
    test = codeeval.Tests(problems, STOPS, encoding, train.length)
    return text.Text(train, validation, test, encoding)


def problem(name, prompt, solution, test, function):
    return codeeval.Problem(name, prompt, solution, prompt, f"\n{test}\ncheck({function})\n")


if __name__ == "__main__":
    codeeval.run("humaneval", read, STOPS, SimpleNamespace(**configure(globals())))
