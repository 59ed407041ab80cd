"""Questions and answers of a generator of reasoning-gym (pip install reasoning-gym), to train on.

    python data/gym/prepare.py mini_sudoku
    python data/gym/prepare.py spell_backward --min_word_len=6 --rows=50_000
    python train.py config/gym.py --data=data/gym/mini_sudoku

The first word names one of over a hundred generators; flags that are no settings of this script are
the generator's. Of the questions the wording is removed that all of the first 300 begin or end
with. A question that recurs goes to one split, train or val. What was removed, and the rows that
were too long, are printed and kept in header.json; rows.jsonl has what the generator said, and
lab/gym.py asks its verifier. After an interruption the same command goes on.
"""

import functools
import importlib.metadata
import json
import operator
import os
import re
import sys
import time
from pathlib import Path

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure, fit, pick, plain, read
from data import corpus
from data.files import progress_bar
from data.prepare_rows import read_tokenizer, usable, write_rows
from data.processes import cores, in_order, positive, start

rows = 30_000  # of the generator; each of its questions depends on seed and place alone
seed = 1
length: int | None = None  # 2..65535: tokens of a row; None = of the longest, 128 at most
val = 0.03  # 0..1: share of the questions held out
tokenizer = "bytes"  # bytes, or a file: .tiktoken ranks, tokenizer.json; or a folder with one
out = ""  # folder; "" = the generator's name, beside this script
workers: int | None = None  # 1..1000: processes; None = one per core


def main():
    name, options = generator_of(sys.argv)
    configure(globals())
    positive(rows=rows, length=length, workers=workers)
    folder = Path(out or Path(__file__).resolve().parent / name)
    encoding = read_tokenizer(tokenizer)
    if folder.exists():
        raise FileExistsError(f"{folder} already exists: remove it, or give another --out")
    about = {"generator": name, "options": options, "seed": seed, "rows": rows}
    about["reasoning-gym"] = importlib.metadata.version("reasoning-gym")
    made = generate(about, Path(f"{folder}.jsonl"))
    about |= wording([row["question"] for row in made[:MEASURED]])
    for end in "begin", "end":
        print(f"questions {end} with, removed: {about[end]!r}")
    pairs = [usable([trimmed(row["question"], about), row["answer"]]) for row in made]
    different = len({pair[0] for pair in pairs})
    few = ": so few that intervals of what is solved are too narrow" * (different < len(pairs) / 2)
    print(f"{different:,} of {len(pairs):,} questions differ{few}")
    encoded, reasons = corpus.encode(encoding, pairs, length or 128)
    fitting = length or int(encoded.lengths.max(initial=1)) + 1
    writer = corpus.Writer(folder, encoding, fitting, about)
    write_rows(writer, [(encoded, reasons)], val)
    os.replace(f"{folder}.jsonl", folder / "rows.jsonl")


# -- the generator ---------------------------------------------------------------------------------
PIECE = 100  # rows of a worker's task


def generator_of(argv):
    """Take the generator's name and its flags out of argv -> name, {flag: value}."""
    if len(argv) < 2 or argv[1].startswith("-"):
        if not {"-h", "--help"} & {*argv}:
            raise ValueError("expected a generator's name first, as mini_sudoku; --help says more")
        return "", {}
    from reasoning_gym.factory import DATASETS

    name = pick("generator", argv.pop(1), sorted(set(DATASETS) - {"composite"}))
    defaults = {k: v for k, v in vars(DATASETS[name][1]()).items() if k not in ("seed", "size")}
    own = [key for key in plain(globals()) if key.islower()] + ["help"]
    options = {}
    for arg in argv[1:]:
        key, value = read(arg)[0] if arg.startswith("--") else ("", "")
        if key and key not in own:
            pick(f"option of {name}", key, [*defaults, *own])
            options[key] = fit(key, value, defaults[key])
            argv.remove(arg)
    return name, options


@functools.cache
def opened(about):
    """The data set that a text of JSON names: about["rows"] entries, and score_answer."""
    import reasoning_gym

    about = json.loads(about)
    how = about["options"] | {"seed": about["seed"], "size": about["rows"]}
    try:
        return reasoning_gym.create_dataset(about["generator"], **how)
    except AssertionError as error:  # how its settings say what they expect
        raise ValueError(f"{about['generator']}: {error}") from None


def generate(about, path):
    """What the generator says, [{question, answer}]; an interrupted run goes on with its file."""
    about = json.dumps(about)
    check(opened(about))
    print(f"making {rows:,} rows: {path}", flush=True)
    if not path.exists() or path.open().readline() != about + "\n":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(about + "\n")
    lines = path.read_text().splitlines(keepends=True)
    done = len([line for line in lines if line.endswith("\n")]) - 1  # the last may be cut short
    done -= done % PIECE
    starts = range(done, rows, PIECE)
    with path.open("r+") as file:
        file.truncate(sum(len(line.encode()) for line in lines[: 1 + done]))
        file.seek(0, os.SEEK_END)
        task = functools.partial(make, about)
        bar = progress_bar(in_order(task, starts, workers or cores()), total=len(starts),
                           unit=f"x{PIECE} rows")  # fmt: skip
        for piece in bar:
            file.writelines(json.dumps(row) + "\n" for row in piece)
            file.flush()
    return said(path)


def said(path):
    """[{question, answer}] of a file of `generate`, as rows.jsonl is."""
    with path.open() as file:
        return [*map(json.loads, file)][1:]


def make(about, first):
    """A worker's task: up to PIECE rows, from the first on."""
    data = opened(about)
    entries = (data[index] for index in range(first, min(first + PIECE, len(data))))
    return [{key: entry[key] for key in ("question", "answer")} for entry in entries]


def check(data):
    """The verifier must accept the answers that the generator gives."""
    entries = [data[index] for index in range(min(50, len(data)))]
    clock = time.time()
    accepted = sum(accepts(data, entry["answer"], entry) for entry in entries)
    each = (time.time() - clock) / len(entries) * 1000
    print(f"the verifier accepts {accepted} of {len(entries)} listed answers, {each:.2g} ms each")
    if not accepted:
        raise ValueError("the verifier accepts none of its answers: nothing could be judged")


def accepts(data, answer, entry):
    """Whether the verifier gives an answer the full score of 1; less is for form, or a part."""
    return data.score_answer(answer, entry) > 0.999


# -- the wording -----------------------------------------------------------------------------------
MEASURED = 300  # questions that show it


def wording(questions):
    """What all begin and end with, in whole words."""
    begin = re.sub(r"[^\W_]+$", "", common(questions))
    rest = [question[len(begin) :][::-1] for question in questions]
    return {"begin": begin, "end": re.sub(r"^[^\W_]+", "", common(rest)[::-1])}


def common(texts):
    """The longest beginning of all."""
    first, last = min(texts), max(texts)  # in alphabetical order the others lie between these
    return first[: [*map(operator.ne, first, last), True].index(True)]


def trimmed(question, about):
    return question.removeprefix(about["begin"]).removesuffix(about["end"]).strip()


if __name__ == "__main__":
    start(main)
