"""Damaged records: metrics.jsonl of a run, eval.json and eval.jsonl of its evaluation."""

import json
import shutil

from tests.attacks.checkpoints import RESUME, SOLVE, byte_changed
from tests.attacks.lab import SYSTEM, Case, printed, record, rows

PLOT = ("-m", "studies.plot", "--runs={out}", "--out={out}/curves.png", "--figure=final")
PROBLEMS = [
    {"task_id": f"Own/{i}", "prompt": f"def f{i}(x):\n", "canonical_solution": f"    return {i}\n",
     "test": f"def check(f):\n    assert f(0) == {i}\n", "entry_point": f"f{i}"}
    for i in range(3)
]  # fmt: skip
PROGRAMS = ("eval.py", *SYSTEM, "--out_dir={out}/run", "--problems=humaneval", "--new_tokens=6",
            "--length=100", "--reveal=6")  # fmt: skip


# -- metrics.jsonl ---------------------------------------------------------------------------------
def metrics(lab, rng):
    whole = lab.whole(RESUME, lab.trained, record)
    good = (lab.trained / "metrics.jsonl").read_bytes()
    for name, data in [*line_changes(good), *byte_changes(good, rng)]:
        yield Case(name, RESUME, replaced(lab.trained, "metrics.jsonl", data), record, whole,
                   names="metrics.jsonl")  # fmt: skip
    for name, change in PATHS.items():
        yield Case(name, RESUME, replaced(lab.trained, "metrics.jsonl", change), record, whole,
                   names="metrics.jsonl")  # fmt: skip


def plots(lab, rng):
    whole = lab.whole(PLOT, lab.trained, printed)
    good = (lab.trained / "metrics.jsonl").read_bytes()
    for name, data in line_changes(good):
        yield Case(name, PLOT, replaced(lab.trained, "metrics.jsonl", data), printed, whole,
                   names="metrics.jsonl")  # fmt: skip


PATHS = {
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to nowhere": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


def replaced(source, name, data):
    """Arranges a copy of the folder whose file has other bytes, or is changed by data(path)."""

    def arrange(folder):
        shutil.copytree(source, folder, dirs_exist_ok=True)
        path = folder / name
        data(path) if callable(data) else path.write_bytes(data)

    return arrange


def line_changes(good):
    """(name, new content) of JSON lines."""
    lines = good.splitlines(keepends=True)
    first, second, *_ = lines
    objects = [json.loads(line) for line in lines]
    for name, text in {
        "a number": "3", "a list": "[1]", "a text": '"x"', "null": "null", "no JSON": "hello",
        "no type": '{"iter": 1}', "no iter": '{"type": "train"}', "an empty object": "{}",
        "iter of text": '{"type": "train", "iter": "two"}',
        "iter null": '{"type": "train", "iter": null}',
        "an eval without accuracy": '{"type": "eval", "iter": 2}',
        "type a number": '{"type": 3, "iter": 1}', "NaN for iter": '{"type": "eval", "iter": NaN}',
    }.items():  # fmt: skip
        yield f"a line more: {name}", b"".join([first, second, text.encode() + b"\n", *lines[2:]])
    yield "empty", b""
    yield "binary", b"\xff\xfe\x00\n" + good
    yield "UTF-16", good.decode().encode("utf-16")
    yield "no UTF-8 in a line", good.replace(b"loss", b"l\xf6ss", 1)
    yield "blank lines", good.replace(b"\n", b"\n\n")
    yield "line ends of Windows", good.replace(b"\n", b"\r\n")
    yield "without the last line end", good[:-1]
    yield "without the first line", b"".join(lines[1:])
    yield "without a line in the middle", b"".join(lines[:2] + lines[3:])
    yield "without the last line", b"".join(lines[:-1])
    yield "a line twice", b"".join(lines[:3] + lines[2:])
    yield "two lines swapped", b"".join([first, lines[2], second, *lines[3:]])
    yield "all of it twice", good * 2
    yield "rows of the future", good + json.dumps(objects[1] | {"iter": 99}).encode() + b"\n"
    yield "a config of text", b'{"type": "config", "config": "x"}\n' + b"".join(lines[1:])


def byte_changes(good, rng):
    for length in sorted(rng.randrange(1, len(good)) for _ in range(5)):
        yield f"{length} of {len(good)} bytes", good[:length]
    for _ in range(4):
        at, value = rng.randrange(len(good)), rng.randrange(1, 256)
        yield f"byte {at} ^ {value}", byte_changed(at, value)(good)


# -- eval.json, eval.jsonl -------------------------------------------------------------------------
def results(lab, rng):
    """The same evaluation again, on what is left of the first one."""
    source = lab.folder / "evaluated"
    shutil.copytree(lab.trained, source)
    words = [word.replace("{out}", str(source)) for word in SOLVE]
    lab.must(*words)
    whole = lab.whole(SOLVE, source, rows)
    for file, changes in (("eval.json", row_changes), ("eval.jsonl", record_changes)):
        for name, data in changes((source / file).read_bytes()):
            for redo in (False, True):  # the rows alone; or, without eval.json, from the records
                if redo and file == "eval.json":
                    continue
                yield Case(f"{file}{', no eval.json' * redo}: {name}", SOLVE,
                           damaged(source, file, data, redo), rows, whole,
                           names=file)  # fmt: skip


def damaged(source, file, data, redo):
    def arrange(folder):
        replaced(source, file, data)(folder)
        if redo:
            (folder / "eval.json").unlink()

    return arrange


def row_changes(good):
    (row,) = json.loads(good)
    texts = {
        "empty": "", "half": good[: len(good) // 2].decode(), "an object": "{}", "a number": "3",
        "no list of rows": json.dumps(row), "a row without id": json.dumps([{"sampler": "x"}]),
        "a row that is a number": "[3]", "null": "null", "no rows": "[]",
        "a row of its id alone": json.dumps([{"id": row["id"]}]),
        "a row without accuracy": json.dumps([{k: row[k] for k in row if k != "accuracy"}]),
        "a row without kinds": json.dumps([{k: row[k] for k in row if k != "kinds"}]),
    }  # fmt: skip
    yield from ((name, text.encode()) for name, text in texts.items())
    yield "binary", b"\xff\xfe\x00"


def record_changes(good):
    lines = good.splitlines(keepends=True)
    one = json.loads(lines[0])
    rest = b"".join(lines[1:])
    for name, text in {
        "a number": "3", "a list": "[1]", "null": "null", "no JSON": "hello",
        "an empty object": "{}", "no kind": less(one, "kind"), "no index": less(one, "index"),
        "no tokens": less(one, "tokens"), "no id": less(one, "id"),
        "index of text": json.dumps(one | {"index": "x"}),
        "an unknown index": json.dumps(one | {"index": 10**6}),
        "tokens of text": json.dumps(one | {"tokens": "x"}),
    }.items():  # fmt: skip
        yield name, text.encode() + b"\n" + rest
    yield "empty", b""
    yield "a record less", rest
    yield "a record twice", lines[0] + good
    yield "half", good[: len(good) // 2]
    yield "binary", b"\xff\xfe\x00\n" + rest


def less(row, key):
    return json.dumps({k: value for k, value in row.items() if k != key})


def programs(lab, rng):
    """Records of programs with tests."""
    source, problems = lab.folder / "programs", lab.folder / "problems.jsonl"
    shutil.copytree(lab.text, source / "run")
    problems.write_text("".join(json.dumps(each) + "\n" for each in PROBLEMS))
    words = (*PROGRAMS, f"--file={problems}")
    result = lambda folder, ended: rows(folder / "run", ended)  # noqa: E731
    lab.must(*[word.replace("{out}", str(source)) for word in words])
    whole = lab.whole(words, source, result)
    for name, data in program_changes((source / "run/eval.jsonl").read_bytes()):

        def arrange(folder, data=data):
            replaced(source, "run/eval.jsonl", data)(folder)
            (folder / "run/eval.json").unlink()

        yield Case(name, words, arrange, result, whole, names="eval.jsonl")


def program_changes(good):
    yield from record_changes(good)
    lines = good.splitlines(keepends=True)
    one = json.loads(lines[0])
    yield "no task_id", less(one, "task_id").encode() + b"\n" + b"".join(lines[1:])
    other = json.dumps(one | {"task_id": "Other/1", "kind": "correct", "index": 77})
    yield "a problem that is not there", good + other.encode() + b"\n"
    other = json.dumps(one | {"sample": 5, "kind": "correct", "index": 78})
    yield "a sample too many", good + other.encode() + b"\n"


GROUPS = {"metrics": metrics, "plots": plots, "results": results, "programs": programs}
