"""Evaluate a trained model on word problems: generate programs, run them, compare the numbers.

    python -m tasks.gsm8k --out_dir=out/gsm_mini_puma_1           its test questions
    python -m tasks.gsm8k --out_dir=... --split=transfer          of templates never trained on
    python -m tasks.gsm8k --out_dir=... --file=QUESTIONS.jsonl    others; GSM8K's own files are read
    python -m tasks.gsm8k --out_dir=... --question="Ann has 3 ..." one, its program shown
    python -m tasks.gsm8k --out_dir=... --policy_table            the paper's table of samplers
    python -m tasks.gsm8k --file=QUESTIONS.jsonl --reference      judge the file's own programs
    torchrun --nproc_per_node=8 -m tasks.gsm8k --out_dir=...      questions shared out

Writes out_dir/gsm8k.json (accuracy with its 95 % interval, cost, failures by kind, origin) and
gsm8k.jsonl (one object per question: question, answer, program, kind, value, detail), or the same
as policy_table.json and .jsonl, and the table as policy_table.md.
"""

from collections import Counter
from pathlib import Path

import numpy as np

import backend
import checkpoint
import record as metrics
from configurator import configure
from data import corpus
from evaluation import Sampler, markdown, on_device, share, solve
from record import write, write_json, write_lines
from tasks import programs, text

# -- what ----------------------------------------------------------------------------------------
out_dir = "out/gsm_mini_puma_1"  # the run whose averaged weights are used
file = ""  # JSON lines with question and answer; "" = those of the run's data
split = "test"  # of the run's data: test, or transfer (word problems of templates never trained on)
question = ""  # a question of your own
examples: int | None = None  # of the questions at most; None = all
reference = False  # judge the programs in the file (its `code`), in place of a model's
policy_table = False  # all settings of the paper's table 1, in place of the one below
# -- how -----------------------------------------------------------------------------------------
policy = "top_k"  # top_k, margin, entropy, random, left_to_right, semi_ar_<block size>
reveal = 2  # tokens revealed per step
tau: float | None = None  # reveal all that is surer than this, else `reveal` tokens; None = off
tau_entropy: float | None = None  # the same for all of less entropy than this, in nats
temperature = 0.0  # 0 = the likeliest token
seed = 1  # of the sampled tokens and of the random policy
batch_size = 64  # rows in work at a time
# -- system --------------------------------------------------------------------------------------
device = ""  # cpu, cuda, mps; "" = the best there is
dtype = ""  # bfloat16 or float32; "" = chosen by the hardware

TABLE = [  # of the paper: confidence fast-forward, top-K, temperature; {setting: value}
    *({"tau": each} for each in (0.80, 0.90, 0.95)),  # if none is as sure, 2 tokens
    *({"reveal": each} for each in (2, 5, 10, 20)),
    *({"temperature": each} for each in (0.2, 0.5, 0.7, 0.8, 1.0)),  # 2 per step
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
    if rank == 0 and test.too_long.any():
        print(f"{test.too_long.sum()} questions leave no room for a program: they count as failed")
    origin = {"iteration": iteration, "questions": file or split, "seed": seed}
    origin |= {"device": where.type, "commit": metrics.commit()}
    records, rows = [], []
    samplers = [Sampler(policy, reveal, tau, tau_entropy, temperature)]
    for sampler in [Sampler(policy, **each) for each in TABLE] if policy_table else samplers:
        with autocast:
            found, cost = evaluate(model, test, sampler, world, rank)
        rows.append(origin | sampler._asdict() | cost | summary(found))
        records += [sampler._asdict() | record for record in found]
        if rank == 0 and not question:
            keep(records, rows)
    if rank == 0:
        print(markdown(rows).rstrip() if policy_table else shown(records, rows[0]))
    backend.stop()


def check():
    """Raise ValueError for values that no evaluation can have."""
    for key in ("reveal", "batch_size", *(("examples",) if examples is not None else ())):
        if globals()[key] < 1:
            raise ValueError(f"{key} {globals()[key]}: expected at least 1")
    if question and (policy_table or reference or file):
        raise ValueError("--question goes with neither --policy_table, --reference nor --file")
    Sampler(policy, reveal, tau, tau_entropy, temperature).check()
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


def evaluate(model, test, sampler, world, rank):
    """Records of all questions, on every process, and what the sampling of them took."""
    mine = np.arange(rank, len(test), world)
    x0, prompt = on_device(test[mine], model.lm_head.weight.device)
    tokens, cost = solve(model, x0, prompt, sampler, seed, batch_size, rank)
    own = judged([test.problems[i] for i in mine], test.programs(tokens, mine))
    records = [None] * len(test)
    for each, part in enumerate(backend.gather(own)):
        records[each::world] = part
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
    return share(kinds["correct"], len(records)) | {"kinds": dict(kinds.most_common())}


def keep(records, rows):
    """Write what has been found so far."""
    path = Path(out_dir, "policy_table" if policy_table else "gsm8k")
    write_json(path.with_suffix(".json"), rows)
    write_lines(path.with_suffix(".jsonl"), records)
    if policy_table:
        write(path.with_suffix(".md"), markdown(rows))


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


if __name__ == "__main__":
    configure(globals())
    main()
