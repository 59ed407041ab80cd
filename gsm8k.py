"""Evaluate a trained model on word problems: generate programs, run them, compare the numbers.

    python gsm8k.py --out_dir=out/gsm_mini_puma_1                 its test questions
    python gsm8k.py --out_dir=... --split=transfer                of templates never trained on
    python gsm8k.py --out_dir=... --file=QUESTIONS.jsonl          others; GSM8K's own files are read
    python gsm8k.py --out_dir=... --question="Ann has 3 ..."      one, its program shown
    python gsm8k.py --out_dir=... --policy_table                  the paper's table of samplers
    python gsm8k.py --file=QUESTIONS.jsonl --reference            judge the file's own programs
    torchrun --nproc_per_node=8 gsm8k.py --out_dir=...            questions shared out

Writes out_dir/gsm8k.json (accuracy with its 95 % interval, cost, failures by kind, origin) and
gsm8k.jsonl (one object per question: question, answer, program, kind, value, detail), or the same
as policy_table.json and .jsonl, and the table as policy_table.md.
"""

import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch

import backend
import checkpoint
import corpus
import metrics
import policies
import programs
import text
from configurator import configure
from sample import generate

# -- what ----------------------------------------------------------------------------------------
out_dir = "out/gsm_mini_puma_1"  # the run whose averaged weights are used
file = ""  # JSON lines with question and answer; "" = those of the run's data
split = "test"  # of the run's data: test, or transfer (word problems of templates never trained on)
question = ""  # a question of your own
examples: int | None = None  # of the questions at most; None = all
reference = False  # judge the programs in the file (its `code`), in place of a model's
policy_table = False  # all settings of the paper's table 2, in place of the one below
# -- how -----------------------------------------------------------------------------------------
policy = "top_k"  # top_k, margin, entropy, random, left_to_right, semi_ar_<block size>
reveal = 2  # tokens revealed per step
tau: float | None = None  # reveal all that is surer than this, else `reveal` tokens; None = off
temperature = 0.0  # 0 = the likeliest token
seed = 1  # of the sampled tokens and of the random policy
batch_size = 64  # rows in work at a time
# -- system --------------------------------------------------------------------------------------
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32; "" = chosen by the hardware

TABLE = [  # of the paper: confidence fast-forward, top-K, temperature; {setting: value}
    *({"tau": each, "reveal": 2, "temperature": 0.0} for each in (0.80, 0.90, 0.95)),
    *({"tau": None, "reveal": each, "temperature": 0.0} for each in (2, 5, 10, 20)),
    *({"tau": None, "reveal": 2, "temperature": each} for each in (0.2, 0.5, 0.7, 0.8, 1.0)),
]


def main():
    with backend.mistakes_named():
        check()
        world, rank, where = backend.start(device)
        if reference:
            if rank == 0:
                judge_references()
            backend.stop()
            return
        autocast = backend.autocast(where, dtype)
        model, config, iteration = checkpoint.load_model(Path(out_dir) / "checkpoint.pt", where)
        with backend.first_process_first(rank):
            folder = folder_of(config)
        encoding = corpus.load_tokenizer(folder)
        test = text.Prompts(questions(folder), encoding, corpus.read_header(folder)["length"])
        sampler = policies.get(policy)
    origin = {"iteration": iteration, "questions": file or split, "policy": policy, "seed": seed}
    origin |= {"device": where.type, "commit": metrics.commit()}
    records, rows = [], []
    settings = [{"tau": tau, "reveal": reveal, "temperature": temperature}]
    for setting in TABLE if policy_table else settings:
        with autocast:
            found, cost = evaluate(model, test, sampler, setting, world, rank)
        rows.append(origin | setting | cost | summary(found))
        records += [setting | record for record in found]
        if rank == 0 and not question:
            keep(records, rows)
    if rank == 0:
        print(markdown(rows) if policy_table else shown(records, rows[0]))
    backend.stop()


def check():
    """Raise ValueError for values that no evaluation can have."""
    for key in ("reveal", "batch_size", *(("examples",) if examples is not None else ())):
        if globals()[key] < 1:
            raise ValueError(f"{key} {globals()[key]}: expected at least 1")
    if question and (policy_table or reference or file):
        raise ValueError("--question goes with neither --policy_table, --reference nor --file")
    if split not in ("test", "transfer"):
        raise ValueError(f"split {split!r}: expected test or transfer")


def folder_of(config):
    if config["dataset"] != "text":
        raise ValueError(f"{out_dir} was trained on {config['dataset']}, expected text")
    return text.folder_of(config)


def questions(folder):
    if question:
        return [text.Problem(question, None)]
    return text.read_problems(file or folder / f"{split}.jsonl")[:examples]


def judge_references():
    folder = None
    if not file:
        folder = folder_of(checkpoint.load(Path(out_dir) / "checkpoint.pt")["config"])
    problems = questions(folder)
    codes = [problem.code for problem in problems]
    if None in codes:
        raise ValueError(f"question {codes.index(None)} of {file or split} has no code to judge")
    print(shown([], summary(judged(problems, codes))))


def evaluate(model, test, sampler, setting, world, rank):
    """Records of all questions, on every process, and what the sampling of them took."""
    where = model.lm_head.weight.device
    mine = np.arange(rank, len(test), world)
    x0, prompt = (torch.from_numpy(part).to(where) for part in test[mine])
    torch.manual_seed(seed + rank)
    begin = time.perf_counter()
    tokens, revealed_at, passes = generate(
        model, x0, ~prompt, sampler, setting["reveal"], setting["tau"], setting["temperature"],
        batch_size, progress=rank == 0,
    )  # fmt: skip
    tokens = tokens.cpu().numpy()
    seconds = time.perf_counter() - begin
    records = judged([test.problems[i] for i in mine], test.programs(tokens, mine))
    steps = revealed_at.amax(1).sum().item()
    hidden, steps, passes = backend.total([(~prompt).sum().item(), steps, passes])
    shared = backend.gather({"records": records, "seconds": seconds})
    records = [None] * len(test)
    for each, part in enumerate(shared):
        records[each::world] = part["records"]
    seconds = max(part["seconds"] for part in shared)
    cost = {"tokens_per_step": hidden / steps, "forward_passes": int(passes), "seconds": seconds}
    return records, cost


def judged(problems, codes):
    """One record per question: the problem, its program and the verdict on it."""
    verdicts = programs.judge(codes, [problem.answer for problem in problems])
    return [
        {"question": problem.question, "answer": problem.answer, "program": code}
        | {"kind": verdict.kind, "value": repr(verdict.value), "detail": verdict.detail}
        for problem, code, verdict in zip(problems, codes, verdicts, strict=True)
    ]


def summary(records):
    kinds = Counter(record["kind"] for record in records)
    correct, n = kinds["correct"], len(records)
    shown = {"accuracy": correct / n, "interval": programs.interval(correct, n), "examples": n}
    return shown | {"kinds": dict(kinds.most_common())}


def keep(records, rows):
    """Write what has been found so far."""
    name = "policy_table" if policy_table else "gsm8k"
    write(f"{name}.json", json.dumps(rows, indent=1))
    write(f"{name}.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    if policy_table:
        write(f"{name}.md", markdown(rows))


def write(name, content):
    """A file in out_dir, complete or not at all."""
    partial = Path(out_dir, f"{name}.tmp")
    partial.write_text(content, encoding="utf-8")
    partial.replace(Path(out_dir, name))


def shown(records, row):
    """One row of results for a reader; of a single question the program and its result."""
    if question:
        (record,) = records
        result = record["value"] if record["kind"] == "wrong_number" else record["kind"]
        return f"{record['program']}\n# {result} {record['detail']}".rstrip()
    low, high = row["interval"]
    lines = [f"{row['accuracy']:.1%} [{low:.1%}, {high:.1%}] of {row['examples']} questions solved"]
    if "seconds" in row:
        lines.append(
            f"{row['tokens_per_step']:.2f} tokens per step, {row['forward_passes']} forward "
            f"passes, {row['seconds']:.1f} s"
        )
    return "\n".join(lines + [f"{count:6d} {kind}" for kind, count in row["kinds"].items()])


def markdown(rows):
    lines = [
        "| sampler | accuracy [95 %] | tokens per step | forward passes | seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        low, high = row["interval"]
        lines.append(
            f"| {named(row)} | {row['accuracy']:.1%} [{low:.1%}, {high:.1%}] "
            f"| {row['tokens_per_step']:.2f} | {row['forward_passes']} | {row['seconds']:.1f} |"
        )
    return "\n".join(lines)


def named(row):
    """The setting in words."""
    if row["tau"] is not None:
        return f"{row['policy']}, surer than {row['tau']:.2f}"
    heat = f", T = {row['temperature']}" if row["temperature"] else ""
    return f"{row['policy']}, {row['reveal']} per step{heat}"


if __name__ == "__main__":
    configure(globals())
    main()
