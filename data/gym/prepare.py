"""Questions and answers of a generator of reasoning-gym (pip install reasoning-gym), to train on.

    python data/gym/prepare.py mini_sudoku
    python data/gym/prepare.py spell_backward --min_word_len=6 --rows=50_000
    python train.py config/gym.py --data=data/gym/mini_sudoku

The first word names one of over a hundred generators; flags that are no settings of this script are
the generator's, and `NAME --help` lists them. The wording is removed that all of the first 300
questions begin or end with. A question that recurs goes to one split, train or val. What was
removed, and the rows that were too long, are printed and kept in header.json. Right is the listed
answer alone: where others are right, too, as of palindrome_generation or countdown, too few count.
"""

import functools
import importlib.metadata
import json
import operator
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from configurator import configure, pick, plain
from data import rows as text_rows
from data.files import progress_bar
from data.processes import cores, in_order, start

rows = 30_000  # 1.. of the generator
seed = 1  # of the first row; the next has seed + 1, so seeds that are near share rows
length = None  # 2..65535 tokens of a row; None = of the longest, 128 at most
val = 0.03  # 0..1 share of the questions held out
tokenizer = "bytes"  # bytes, or a file: .tiktoken ranks, tokenizer.json; or a folder with one
out = ""  # folder; "" = the generator's name, beside this script
workers = None  # 1.. processes; None = one per core


def main():
    name, defaults = generator_of(sys.argv)
    settings = defaults | globals()
    configure(settings)
    globals().update(settings)
    options = {key: settings[key] for key in defaults if settings[key] != defaults[key]}
    folder = Path(out or Path(__file__).resolve().parent / name)
    coder = text_rows.tokenizer(tokenizer)
    if folder.exists():
        raise FileExistsError(f"{folder} exists: remove it, or choose another --out")
    about = {"generator": name, "options": options, "seed": seed, "rows": rows}
    about["reasoning-gym"] = importlib.metadata.version("reasoning-gym")
    made = generate(about)
    about |= wording([row["question"] for row in made[:300]])
    for end in "begin", "end":
        print(f"questions {end} with, removed: {about[end]!r}")
    pairs = [(trimmed(row["question"], about), row["answer"]) for row in made]
    print(f"{len({question for question, _ in pairs}):,} of {len(pairs):,} questions differ")
    writer = text_rows.Folder(folder, coder, length or longest(coder, pairs), about)
    writer.add(text_rows.of(pairs), val, workers=workers)
    writer.finish()


def longest(coder, pairs, most=128):
    """The length of a row that all pairs fit into with an end, but for those of `most` tokens."""
    found = [text_rows.encode(coder, pair, text_rows.plain, most) for pair in pairs]
    return 1 + max((sum(map(len, ids)) for ids in found if not isinstance(ids, str)), default=1)


def generator_of(argv):
    """Take the generator's name out of argv -> name, {flag: its default}."""
    asks = {"-h", "--help"} & {*argv}
    if len(argv) < 2 or argv[1].startswith("-"):
        if not asks:
            raise ValueError("expected a generator's name first, as mini_sudoku; --help says more")
        return "", {}
    from reasoning_gym.factory import DATASETS

    name = pick("generator", argv.pop(1), sorted(set(DATASETS) - {"composite"}))
    defaults = plain(vars(DATASETS[name][1]()))
    own = {*globals(), "size"}  # flags of these names are this script's
    defaults = {key: value for key, value in defaults.items() if key not in own}
    if asks:
        print(f"{name}:", " ".join(f"--{key}={value!r}" for key, value in defaults.items()), "\n")
    return name, defaults


@functools.cache
def opened(about):
    """The data set that a text of JSON names."""
    import reasoning_gym

    about = json.loads(about)
    how = about["options"] | {"seed": about["seed"], "size": about["rows"]}
    return reasoning_gym.create_dataset(about["generator"], **how)


def generate(about):
    """[{question, answer}] of all rows."""
    about = json.dumps(about)
    opened(about)  # says what is wrong with the flags
    print(f"making {rows:,} rows", flush=True)
    parts = [range(at, min(at + 100, rows)) for at in range(0, rows, 100)]
    made = in_order(functools.partial(make, about), parts, workers or cores())
    return [row for part in progress_bar(made, total=len(parts), unit="x100 rows") for row in part]


def make(about, places):
    """A worker's task: what the generator says at these places."""
    data = opened(about)
    entries = (data[at] for at in places if at < len(data))
    return [{name: entry[name] for name in ("question", "answer")} for entry in entries]


def wording(questions):
    """What all begin and end with, in whole words."""
    begin = re.sub(r"[^\W_]+$", "", common(questions))
    backwards = [question[len(begin) :][::-1] for question in questions]
    return {"begin": begin, "end": re.sub(r"^[^\W_]+", "", common(backwards)[::-1])}


def common(texts):
    """The longest beginning of all."""
    first, last = min(texts), max(texts)  # in alphabetical order the others lie between these
    return first[: [*map(operator.ne, first, last), True].index(True)]


def trimmed(question, about):
    return question.removeprefix(about["begin"]).removesuffix(about["end"]).strip("\n")


if __name__ == "__main__":
    start(main)
