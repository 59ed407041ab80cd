"""Problems with tests: programs sampled from a trained model, run with their tests, pass@k.

What humaneval.py and mbpp.py share: they read the problems, this file does the rest.

A row is `prompt | new_tokens to generate`; only prompts of equal length share a batch, so that no
row sees padding. A program passes if `before + completion + after` runs to its end in the sandbox:
`after` holds the tests. Its kind is "passed", or why it did not: "assertion_failed", "exception",
"syntax_error", "timeout", "killed", or "too_long": prompt and answer do not fit in `length`, so
that nothing was generated.

out_dir/<name>.jsonl has the settings in its first line, then a record per program, as they come.
The same command goes on where it was interrupted; every batch has a random state of its own, so
that neither this nor the number of processes changes a sample. out_dir/<name>.json has the result.
"""

import json
import math
import zlib
from collections import Counter, defaultdict
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad
from tqdm import tqdm

import backend
import checkpoint
import policies
import record as metrics
import sandbox
from data import corpus
from record import read_lines, write_json, write_lines
from sample import generate
from tasks import programs, text

SETTINGS = (
    "file", "samples", "policy", "reveal", "temperature", "top_p", "new_tokens", "length", "seed",
    "batch_size", "seconds",
)  # fmt: skip
SECONDS = 3.0  # of a program with its tests, in training
KS = 1, 10, 100  # of pass@k, as far as there are samples


class Problem(NamedTuple):
    name: str
    prompt: str
    reference: str  # a completion that is right
    before: str  # of the program that is run; the completion follows
    after: str


class Row(NamedTuple):
    problem: Problem
    sample: int
    ids: list  # of the prompt

    @property
    def key(self):
        return self.problem.name, self.sample


def run(name, read, stops, how):
    """Evaluate on the problems that read(file) gives, and report.

    stops: texts that end an answer; how: the settings of the script, as attributes.
    """
    with backend.mistakes_named():
        check(how)
        world, rank, where = backend.start(how.device)
        with backend.first_process_first(rank):
            problems = read(how.file)[: how.examples]
        if how.reference:
            if rank == 0:
                judge_references(problems, how.seconds)
            backend.stop()
            return
        autocast, sampler = backend.autocast(where, how.dtype), policies.get(how.policy)
        path = Path(how.out_dir) / "checkpoint.pt"
        model, config, iteration = checkpoint.load_model(path, where, how.length)
        encoding = tokenizer_of(model, config)
        programs.report_sandbox()
        origin = {key: getattr(how, key) for key in SETTINGS} | {"problems": len(problems)}
        origin |= {"iteration": iteration, "checkpoint": path.stat().st_mtime_ns}
        records = Records(path.with_name(f"{name}.jsonl"), origin) if rank == 0 else None
    rows = [
        Row(problem, sample, ids)
        for problem, ids in ((each, prompt_ids(encoding, each)) for each in problems)
        for sample in range(how.samples)
    ]
    fitting, long = [], []
    for row in rows:
        (fitting if len(row.ids) + how.new_tokens <= how.length else long).append(row)
    if records:
        records.add(record(row, "", "", "too_long", "") for row in long)
    done = backend.gather({"keys": records and records.keys})[0]["keys"]
    todo = [each for each in batches(fitting, how.batch_size) if {row.key for row in each} - done]
    bar = tqdm(total=sum(map(len, todo)), unit="program", disable=rank > 0)
    with sandbox.Pool() as pool, autocast:
        for at in range(0, len(todo), world):
            found = []
            for batch in todo[at + rank : at + rank + 1]:  # at the end there may be none
                answers = complete(model, batch, encoding, sampler, how)
                found = judge(pool, batch, answers, stops, how.seconds)
            for part in backend.gather({"found": found}):
                if records:
                    records.add(part["found"])
                bar.update(len(part["found"]))
    bar.close()
    if records:
        result = summary(records.all)
        about = {"device": where.type, "commit": metrics.commit()}
        write_json(path.with_name(f"{name}.json"), origin | about | result)
        print(shown(result))
    backend.stop()


def check(how):
    """Raise ValueError for values that no evaluation can have."""
    counts = ["samples", "reveal", "new_tokens", "batch_size", "seconds"]
    for key in counts + ["examples"] * (how.examples is not None):
        if getattr(how, key) <= 0:
            raise ValueError(f"{key} {getattr(how, key)}: expected more than 0")
    if not 0 < how.top_p <= 1 or how.temperature < 0:
        raise ValueError(f"top_p {how.top_p}: 0 to 1; temperature {how.temperature}: at least 0")


def tokenizer_of(model, config):
    """The tokenizer of the data that a run was trained on."""
    if config["dataset"] not in ("text", "humaneval"):
        raise ValueError(f"the run was trained on {config['dataset']}, expected text or humaneval")
    folder = text.folder_of(config)
    encoding = corpus.load_tokenizer(folder)
    own_mask = model.mask_token >= encoding.vocab_size  # a pretrained model may have more ids
    if encoding.vocab_size > model.vocab_size or not (
        own_mask or model.mask_token == encoding.mask
    ):
        raise ValueError(f"{folder} has another vocabulary than the model: prepare it anew")
    return encoding


class Tests(text.Prompts):
    """Problems as the test set of a training run: all that follows a prompt is the answer."""

    def __init__(self, problems, stops, encoding, length):
        super().__init__(problems, encoding, length)
        self.stops = stops

    def ids(self, problem):
        return prompt_ids(self.encoding, problem)

    def solved(self, tokens, indices):
        """Which rows of tokens (n, L) pass the tests of the problems at `indices` (n,), bool."""
        completions = [cut(answer, self.stops) for answer in self.programs(tokens, indices)]
        with sandbox.Pool() as pool:
            found = outcomes_of(pool, [self.problems[i] for i in indices], completions, SECONDS)
        return np.array([kind == "passed" for kind, _ in found], bool)


def prompt_ids(encoding, problem):
    return encoding.start + encoding.encode(problem.prompt)


def batches(rows, size):
    """Lists of up to `size` rows whose prompts have the same number of tokens, short ones first."""
    rows = sorted(rows, key=lambda row: len(row.ids))  # stable: the same on every process
    for _, group in groupby(rows, key=lambda row: len(row.ids)):
        group = list(group)
        yield from (group[at : at + size] for at in range(0, len(group), size))


def complete(model, rows, encoding, sampler, how):
    """What the model answers, up to the end of text, to rows whose prompts are equally long."""
    prompt = torch.tensor([row.ids for row in rows], device=model.lm_head.weight.device)
    x = pad(prompt, (0, how.new_tokens))
    hidden = pad(torch.zeros_like(prompt, dtype=torch.bool), (0, how.new_tokens), value=True)
    torch.manual_seed(zlib.crc32(f"{how.seed} {rows[0].key}".encode()))
    tokens, _, _ = generate(
        model, x, hidden, sampler, how.reveal, None, how.temperature, len(rows), top_p=how.top_p
    )
    return [text.program(encoding, row) for row in tokens[:, prompt.shape[1] :].tolist()]


def judge(pool, rows, answers, stops, seconds):
    """One record per row, in order: the answer, what of it was run, and how that ended."""
    completions = [cut(answer, stops) for answer in answers]
    outcomes = outcomes_of(pool, [row.problem for row in rows], completions, seconds)
    return [
        record(row, answer, completion, kind, detail)
        for row, answer, completion, (kind, detail) in zip(
            rows, answers, completions, outcomes, strict=True
        )
    ]


def record(row, answer, completion, kind, detail):
    found = {"task_id": row.problem.name, "sample": row.sample, "kind": kind, "detail": detail}
    return found | {"answer": answer, "completion": completion}


def cut(answer, stops):
    """The answer up to the first of the texts that end it."""
    ends = [answer.find(stop) for stop in stops]
    return answer[: min((end for end in ends if end >= 0), default=None)]


def outcomes_of(pool, problems, completions, seconds):
    """[(kind, detail)] of each problem's program with that completion, run with its tests."""
    pairs = zip(problems, completions, strict=True)
    texts = [problem.before + completion + problem.after for problem, completion in pairs]
    outcomes = pool.run(texts, None, seconds)  # None: the text alone, to its end
    return [(kind_of(outcome), outcome.detail) for outcome in outcomes]


def kind_of(outcome):
    if outcome.kind == "exception" and outcome.detail.partition(":")[0] == "AssertionError":
        return "assertion_failed"
    return "passed" if outcome.kind == "ok" else outcome.kind


class Records:
    """A file of JSON lines: the settings, then `all` records, each with a key of its own.

    What an evaluation with other settings left is kept aside; a line that was cut off is dropped.
    """

    def __init__(self, path, origin):
        self.path, self.all = path, []
        lines = read_lines(path)
        if lines and lines[0] == origin:
            self.all = lines[1:]
        elif path.exists():
            print(f"kept as {path.rename(checkpoint.unused(path))}: programs of other settings")
        write_lines(path, [origin, *self.all])

    @property
    def keys(self):
        return {(record["task_id"], record["sample"]) for record in self.all}

    def add(self, records):
        """Append those that are not there yet: of a batch that was cut off some are."""
        keys = self.keys
        records = [each for each in records if (each["task_id"], each["sample"]) not in keys]
        with open(self.path, "a") as file:
            file.write("".join(json.dumps(record) + "\n" for record in records))
        self.all += records


def pass_at_k(n, correct, k):
    """The chance that one of k programs is right, of n of which `correct` are: without bias.

    Chen et al. (arXiv 2107.03374), eq. 1: the share of the subsets of k that hold a right one.
    """
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


def summary(records):
    """pass@k, its 95 % interval over problems, and how many programs ended how.

    The interval is Wilson's. It treats a problem's score as a toss of a coin; with several samples
    the score lies between 0 and 1 and varies less, so that the interval is rather too wide.
    """
    problems = defaultdict(list)
    for each in records:
        problems[each["task_id"]].append(each["kind"] == "passed")
    samples = min(map(len, problems.values()))
    result = {"problems": len(problems), "samples": samples}
    for k in (k for k in KS if k <= samples):
        scores = [pass_at_k(len(passed), sum(passed), k) for passed in problems.values()]
        low, high = programs.interval(sum(scores), len(scores))
        result[f"pass@{k}"] = {"score": sum(scores) / len(scores), "interval": [low, high]}
    kinds = Counter(each["kind"] for each in records)
    return result | {"kinds": dict(kinds.most_common())}


def shown(result):
    lines = [f"{result['problems']} problems, {result['samples']} programs each"]
    for name in (name for name in result if name.startswith("pass@")):
        score, (low, high) = result[name]["score"], result[name]["interval"]
        lines.append(f"{score:.1%} [{low:.1%}, {high:.1%}] {name}")
    return "\n".join(lines + [f"{count:6d} {kind}" for kind, count in result["kinds"].items()])


def judge_references(problems, seconds):
    """Run the solutions that come with the problems; print the result and which fail, and why."""
    programs.report_sandbox()
    with sandbox.Pool() as pool:
        found = outcomes_of(pool, problems, [each.reference for each in problems], seconds)
    for problem, (kind, detail) in zip(problems, found, strict=True):
        if kind != "passed":
            print(f"{problem.name}: {kind} {detail}".rstrip())
    names = [problem.name for problem in problems]
    pairs = zip(names, found, strict=True)
    print(shown(summary([{"task_id": name, "kind": kind} for name, (kind, _) in pairs])))
