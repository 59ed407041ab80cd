"""Programs with tests: sampled from a trained model, run with the tests in the sandbox; pass@k.

    python eval.py config/humaneval.py --out_dir=... --samples=20 --temperature=0.8

humaneval.py and mbpp.py read the problems. With instructions to train on, HumanEval's are also the
test set of train.py (`--dataset=instructions`).

A program is correct if `before + completion + after` runs to its end: `after` holds the tests.
Otherwise its kind says why: "assertion_failed", "exception", "syntax_error", "timeout", "killed",
or "too_long": prompt and answer do not fit, so nothing was generated.

Program and tests are one text in one process, so a malicious program can forge its own outcome (by
objects that equal everything, say) and counts as correct; pass@k is meant for models that do not
attack the sandbox. Accidents do not pass: exit(0), os._exit(0), a `check` of its own, NaN, open
strings. A program cannot change the outcome of another one.
"""

import functools
import importlib
import math
from collections import Counter, defaultdict
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

import sandbox
from data import corpus
from tasks import text, wilson_interval

KS = 1, 10, 100  # k of pass@k, as far as there are enough samples
SECONDS = 3.0  # time limit of a program with its tests, while training


class Problem(NamedTuple):
    name: str
    prompt: str
    reference: str  # a correct completion
    before: str  # the program's text before the completion
    after: str
    stops: tuple  # texts that end an answer


class Programs(text.Prompts):
    """Problems in rows of one length; everything after the prompt is the answer."""

    samples = 1

    def __init__(self, problems, encoding, length, seconds=SECONDS):
        super().__init__(problems, encoding, length)
        self.seconds = seconds

    def ids(self, problem):
        return self.encoding.start + self.encode(problem.prompt)

    def problem(self, index):
        return self.problems[index // self.samples]

    def judge_texts(self, texts, indices):
        problems = [self.problem(i) for i in indices]
        completions = [cut(*pair) for pair in zip(texts, problems, strict=True)]
        outcomes = outcomes_of(problems, completions, self.seconds)
        rows = zip(indices, texts, completions, outcomes, strict=True)
        return [self.record(i, answer, completion, *how) for i, answer, completion, how in rows]

    def judge_references(self, most=None):
        indices = range(0, len(self), self.samples)[:most]
        return self.judge_texts([self.problem(i).reference for i in indices], indices)

    def record(self, index, answer, completion, kind, detail):
        about = {"task_id": self.problem(index).name, "sample": int(index % self.samples)}
        about |= {"kind": kind, "detail": detail}
        return about | {"answer": answer, "completion": completion}

    def verdict(self, record):
        return f"{record['task_id']}: {record['kind']} {record['detail']}".rstrip()

    def summary(self, records):
        return summary(records)


class Sampled(Programs):
    """Rows of prompt and new_tokens to generate; row i is sample i % samples of its problem."""

    def __init__(self, problems, encoding, length, seconds, samples, new_tokens):
        super().__init__(problems, encoding, length, seconds)
        self.samples, self.new_tokens = samples, new_tokens

    def __len__(self):
        return len(self.problems) * self.samples

    def __getitem__(self, indices):
        """For prompts of equal length; nothing is hidden in rows longer than `length`."""
        ids = np.array([self.ids(self.problem(i)) for i in indices])
        size = ids.shape[1] + self.new_tokens
        if size > self.length:
            return ids, np.zeros(ids.shape, bool)
        x = np.full((len(ids), size), self.encoding.mask)
        x[:, : ids.shape[1]] = ids
        return x, np.tile(np.arange(size) >= ids.shape[1], (len(x), 1))

    def batches(self, count, size, rank, world):
        """Rows whose prompts have the same number of tokens, short ones first."""
        sizes = [len(self.ids(problem)) for problem in self.problems]
        rows = sorted(range(len(self)), key=lambda i: sizes[i // self.samples])
        groups = [[*group] for _, group in groupby(rows, key=lambda i: sizes[i // self.samples])]
        batches = [group[at : at + size] for group in groups for at in range(0, len(group), size)]
        return batches[rank::world]


class Requests(text.Prompts):
    """Instructions that a user types, in the chat template; answers are not judged."""

    def ids(self, problem):
        return corpus.chat(self.encoding, problem, "", corpus.CHARACTERS * self.length)[0]

    def judge_texts(self, texts, indices):
        return [{"kind": "not_judged", "answer": answer, "detail": ""} for answer in texts]


class Instructions(text.Text):
    """Instructions to train on, with HumanEval's problems in the folder as the test set."""

    @functools.cached_property
    def test(self):
        return self.programs(corpus.kept_file(self.folder, "humaneval.jsonl"), self.most)

    def programs(self, path, most=None):
        return Programs(read("humaneval", path)[:most], self.encoding, self.length)

    def problems(self, name, file):
        """The problems of a file in HumanEval's form."""
        if name or not file:
            raise ValueError(f"problems {name!r}: expected humaneval, mbpp, or --file")
        return self.programs(file)

    def prompts(self, texts):
        return Requests(texts, self.encoding, self.length)


def load(config):
    """The data set written by data/dream_coder/prepare.py, with HumanEval's problems beside it."""
    return Instructions(Path(config["data_dir"]), config["test_examples"])


def read(name, file):
    """The problems of humaneval or mbpp, from a file in their format or ("") from the hub."""
    sandbox.report_missing_layers()
    return importlib.import_module(f".{name}", __package__).read(file)


def encoding_of(saved):
    """The tokenizer of the data that a run was trained on. Raises ValueError if there is none."""
    if saved.config["dataset"] not in ("text", "instructions"):
        raise ValueError(
            f"the run was trained on {saved.config['dataset']}, expected text or instructions"
        )
    folder = text.folder_of(saved.config)
    encoding, model = corpus.load_tokenizer(folder), saved.model
    has_mask = model.mask_token == encoding.mask or model.mask_token >= encoding.vocab_size
    if encoding.vocab_size > model.vocab_size or not has_mask:  # a pretrained model may have more
        raise ValueError(f"{folder} does not have the model's vocabulary: prepare it again")
    return encoding


def cut(answer, problem):
    """The answer up to the first of the problem's stop texts."""
    ends = [answer.find(stop) for stop in problem.stops]
    return answer[: min((end for end in ends if end >= 0), default=None)]


def outcomes_of(problems, completions, seconds):
    """[(kind, detail)] of running each problem's program, with the completion and its tests."""
    pairs = zip(problems, completions, strict=True)
    texts = [problem.before + completion + problem.after for problem, completion in pairs]
    outcomes = sandbox.run(texts, None, seconds)  # None: run the text, call no function
    return [(kind_of(outcome), outcome.detail) for outcome in outcomes]


def kind_of(outcome):
    if outcome.kind == "exception" and outcome.detail.partition(":")[0] == "AssertionError":
        return "assertion_failed"
    return "correct" if outcome.kind == "ok" else outcome.kind


def pass_at_k(n, correct, k):
    """Unbiased estimate of P(at least one of k programs is correct), from `correct` out of n.

    Chen et al. (arXiv 2107.03374), eq. 1: the share of subsets of size k with a correct one.
    """
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


def summary(records):
    """pass@k, its 95 % interval over problems, and the number of programs of each kind.

    The interval is Wilson's, as if scores were tosses of a coin: too wide with several samples.
    """
    problems = defaultdict(list)
    for each in records:
        problems[each["task_id"]].append(each["kind"] == "correct")
    samples = min(map(len, problems.values()))
    result = {"problems": len(problems), "samples": samples}
    for k in (k for k in KS if k <= samples):
        scores = [pass_at_k(len(passed), sum(passed), k) for passed in problems.values()]
        low, high = wilson_interval(sum(scores), len(scores))
        result[f"pass@{k}"] = {"score": sum(scores) / len(scores), "interval": [low, high]}
    kinds = Counter(each["kind"] for each in records)
    return result | {"kinds": dict(kinds.most_common())}
