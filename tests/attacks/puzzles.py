"""Damaged caches of Sudoku puzzles, and files of puzzles by others: CSV, .npy, lines, prompts."""

import io
import shutil

import numpy as np

from tests.attacks.checkpoints import byte_changed
from tests.attacks.lab import ALL_DATA, SYSTEM, TINY, Case, printed, weights

NEW = ("train.py", *ALL_DATA, "--out_dir={out}/new", "--clues=20")  # a set of its own
HEADER = 128  # bytes of an .npy before its data
# What is done to the first rows of a large file alone is done to the first 16 of this small one.
SMALL_SLAB = "import sudoku; sudoku.SLAB = 16"


def new_weights(folder, ended):
    return weights(folder / "new")


# -- the cache -------------------------------------------------------------------------------------
def cache(lab, rng):
    """A new run on damaged puzzles that an earlier one kept."""
    kept = lab.tree / "data/sudoku"
    whole = lab.whole(NEW, None, new_weights)
    (made,) = kept.glob("*clues20*.npy")
    good = lab.folder / "cache"
    shutil.copytree(kept, good)
    data = made.read_bytes()
    for name, change in cache_changes(data, rng).items():

        def arrange(folder, change=change):
            shutil.rmtree(kept)
            shutil.copytree(good, kept)
            change(made)

        yield Case(
            name, NEW, arrange, new_weights, whole, names=made.name, prelude=SMALL_SLAB
        )  # fmt: skip


def cache_changes(data, rng):
    """{name: change(path)}; the array is uint8 (N, 2, 36)."""
    pairs = np.load(io.BytesIO(data))
    size, half = len(data), len(pairs) // 2
    changes = {}
    for _ in range(12):
        at, value = rng.randrange(HEADER, size), rng.randrange(1, 256)
        changes[f"byte {at} ^ {value}"] = write(byte_changed(at, value)(data))
    for _ in range(4):  # another digit that is in range
        row, cell = rng.randrange(len(pairs)), rng.randrange(36)
        changes[f"solution {row}, cell {cell}"] = array(digit_changed(pairs, row, cell))
    for _ in range(3):
        at, value = rng.randrange(HEADER), rng.randrange(1, 256)
        changes[f"header byte {at} ^ {value}"] = write(byte_changed(at, value)(data))
    for length in (0, 5, HEADER, HEADER + 1, size // 2, size - 72, size - 1):
        changes[f"{length} of {size} bytes"] = write(data[:length])
    changes |= {
        "int64": array(pairs.astype(np.int64)),
        "float": array(pairs.astype(float)),
        "bool": array(pairs.astype(bool)),
        "columns in another order": array(np.ascontiguousarray(pairs.transpose(0, 2, 1))),
        "flat": array(pairs.reshape(-1)),
        "20 rows": array(pairs[:20]),
        "half the rows twice": array(np.concatenate([pairs[:half], pairs[:half]])),
        "more rows": array(np.concatenate([pairs, pairs])),
        "zeros": array(np.zeros_like(pairs)),
        "255": array(np.full_like(pairs, 255)),
        "puzzles and solutions swapped": array(pairs[:, ::-1].copy()),
        "two rows swapped": array(pairs[[1, 0, *range(2, len(pairs))]]),
        "rows reversed": array(pairs[::-1].copy()),
        "digits 1 and 2 swapped": array(np.array([0, 2, 1, 3, 4, 5, 6], np.uint8)[pairs]),
        "a blank filled in": array(filled_in(pairs)),
        "a clue taken away": array(clue_less(pairs)),
        "a zip archive": lambda path: save_zip(path, pairs),
        "text": write(b"hello"),
        "a folder": lambda path: (path.unlink(), path.mkdir()),
        "bytes behind the end": write(data + b"more"),
    }
    return changes


def write(data):
    return lambda path: path.write_bytes(data)


def array(values):
    return lambda path: path.write_bytes(npy(values))


def npy(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def save_zip(path, pairs):
    with open(path, "wb") as file:
        np.savez(file, pairs)


def digit_changed(pairs, row, cell):
    pairs = pairs.copy()
    pairs[row, 1, cell] = pairs[row, 1, cell] % 6 + 1
    return pairs


def filled_in(pairs):
    pairs = pairs.copy()
    cells = (pairs[:, 0] == 0).argmax(1)
    rows = np.arange(len(pairs))
    pairs[rows, 0, cells] = pairs[rows, 1, cells]
    return pairs


def clue_less(pairs):
    pairs = pairs.copy()
    pairs[np.arange(len(pairs)), 0, (pairs[:, 0] > 0).argmax(1)] = 0
    return pairs


# -- files of others -------------------------------------------------------------------------------
SOLUTION = "1234341221434321"
PUZZLE = "0204340021034320"
OTHER = SOLUTION.translate(str.maketrans("12", "21"))
GOOD = f"{PUZZLE},{SOLUTION}\n"
HEAD = "puzzle,solution\n"
CSV = {  # content of the file: (it, must)
    "good": (HEAD + GOOD, "accept"),
    "byte order mark": ("\ufeff" + HEAD + GOOD, "accept"),
    "line ends of Windows": ((HEAD + GOOD).replace("\n", "\r\n"), "accept"),
    "blank lines": (HEAD + "\n\n" + GOOD + "\n", "accept"),
    "no line end": ((HEAD + GOOD).rstrip(), "accept"),
    "quoted": (HEAD + f'"{PUZZLE}","{SOLUTION}"\n', "accept"),
    "dots for blanks": (HEAD + GOOD.replace("0", "."), "accept"),
    "more columns": ("id,puzzle,x,solution\n" + f"1,{PUZZLE},y,{SOLUTION}\n", "accept"),
    "columns in capitals": ("Puzzle,SOLUTION\n" + GOOD, "accept"),
    "empty": ("", "refuse"),
    "header alone": (HEAD, "refuse"),
    "no header": (GOOD, "refuse"),
    "another header": ("quizzes,solutions\n" + GOOD, "refuse"),
    "one column": ("puzzle\n" + PUZZLE + "\n", "refuse"),
    "too short": (HEAD + GOOD.replace("0", "", 1), "refuse"),
    "too long": (HEAD + "0" + GOOD, "refuse"),
    "a letter": (HEAD + GOOD.replace("0", "x", 1), "refuse"),
    "a digit too large": (HEAD + GOOD.replace("0", "5", 1), "refuse"),
    "a space": (HEAD + GOOD.replace("0", " ", 1), "refuse"),
    "not ASCII": (HEAD + GOOD.replace("0", "\u0660", 1), "refuse"),
    "a blank in the solution": (HEAD + f"{PUZZLE},0{SOLUTION[1:]}\n", "refuse"),
    "a solution of another puzzle": (HEAD + f"{PUZZLE},{OTHER}\n", "refuse"),
    "a solution that breaks the rules": (HEAD + f"{PUZZLE},{'1' * 16}\n", "refuse"),
    "nothing blank": (HEAD + f"{SOLUTION},{SOLUTION}\n", "refuse"),
    "the same clue twice in a row": (HEAD + f"11{'0' * 14},{SOLUTION}\n", "refuse"),
    "no solution": (HEAD + PUZZLE + "\n", "refuse"),
    "an empty solution": (HEAD + PUZZLE + ",\n", "refuse"),
    "the second row bad": (HEAD + GOOD + "x" + GOOD, "refuse"),
    "semicolons": ((HEAD + GOOD).replace(",", ";"), "refuse"),
    "an open quote": (HEAD + '"' + GOOD, "refuse"),
    "a NUL": (HEAD + GOOD.replace("0", "\0", 1), "refuse"),
    "binary": (HEAD + "\x80\xff\x00\n", "refuse"),
    "an enormous field": (HEAD + "0" * 200_000 + "," + SOLUTION + "\n", "refuse"),
    "an enormous header": ("x" * 200_000 + "\n" + GOOD, "refuse"),
    "JSON": ('{"puzzle": 1}\n', "refuse"),
    "HTML": ("<html><body>404</body></html>\n", "refuse"),
    "another size": (HEAD + f"{'0' * 81},{'1' * 81}\n", "refuse"),
}
RATED = {
    "rated": ("puzzle,solution,rating\n" + GOOD.strip() + ",0.5\n", "accept"),
    "no rating": (HEAD + GOOD, "refuse"),
    "a rating of text": ("puzzle,solution,rating\n" + GOOD.strip() + ",hard\n", "refuse"),
    "an empty rating": ("puzzle,solution,rating\n" + GOOD.strip() + ",\n", "refuse"),
    "a rating cut off": ("puzzle,solution,rating\n" + GOOD, "refuse"),
    "none rated so low": ("puzzle,solution,rating\n" + GOOD.strip() + ",9\n", "refuse"),
    "a rating of nan": ("puzzle,solution,rating\n" + GOOD.strip() + ",nan\n", "refuse"),
}


def csv_files(lab, rng):
    words = ("data/sudoku/prepare.py", "--box=(2,2)", "--source={out}/p.csv", "--out={out}/p.npy")
    for name, (content, must) in CSV.items():
        yield with_content(name, words, "p.csv", content.encode(errors="surrogateescape"), must)
    for name, (content, must) in RATED.items():
        yield with_content(name, (*words, "--max_rating=1"), "p.csv", content.encode(), must)
    latin = HEAD.encode() + GOOD.encode() + b"\xe4\xf6,\xfc\n"
    yield with_content("Latin-1", words, "p.csv", latin, "refuse")
    yield with_content("UTF-16", words, "p.csv", (HEAD + GOOD).encode("utf-16"), "refuse")


def with_content(name, words, file, content, must):
    def arrange(folder):
        (folder / file).write_bytes(content)

    def after(folder, ended):  # what could not be made must not be there in part
        left = sorted(path.name for path in folder.iterdir() if path.name != file)
        return "lost" if ended.status and left else None

    return Case(name, words, arrange, must=must, names=file, after=after)


def steps():
    """A row of solving steps of PUZZLE: 1 + 4 L whole numbers."""
    clues = [i for i in range(16) if PUZZLE[i] != "0"]
    order = clues + [i for i in range(16) if i not in clues]
    row = [len(clues)]
    for cell in order:
        row += [cell // 4, cell % 4, int(SOLUTION[cell]), 0]
    return np.array([row])


def steps_changed(column, value):
    rows = steps().astype(float if isinstance(value, float) else int)
    rows[0, column] = value
    return npy(rows)


def step_files(lab, rng):
    words = ("data/sudoku/prepare.py", "--box=(2,2)", "--source={out}/s.npy", "--out={out}/p.npy")
    good = steps()
    contents = {
        "good": (npy(good), "accept"), "float": (npy(good.astype(float)), "accept"),
        "uint8": (npy(good.astype(np.uint8)), "accept"), "from 1": (npy(one_based()), "accept"),
        "complex": (npy(good.astype(complex)), "refuse"), "text": (npy(good.astype(str)), "refuse"),
        "empty file": (b"", "refuse"), "half": (npy(good)[:200], "refuse"),
        "a zip archive": (zipped(good), "refuse"), "no array": (b"hello", "refuse"),
        "no rows": (npy(good[:0]), "refuse"), "flat": (npy(good[0]), "refuse"),
        "a column less": (npy(good[:, :-1]), "refuse"), "objects": (objects(good), "refuse"),
        "a nan": (steps_changed(3, np.nan), "refuse"), "a half": (steps_changed(3, 1.5), "refuse"),
        "infinite": (steps_changed(3, np.inf), "refuse"),
        "no clues": (steps_changed(0, 0), "refuse"), "16 clues": (steps_changed(0, 16), "refuse"),
        "clues -1": (steps_changed(0, -1), "refuse"),
        "row 4": (steps_changed(1, 4), "refuse"), "column -1": (steps_changed(2, -1), "refuse"),
        "value 5": (steps_changed(3, 5), "refuse"), "value 0": (steps_changed(3, 0), "refuse"),
        "value 2^40": (steps_changed(3, 2**40), "refuse"),
        "a cell twice": (steps_changed(2, 3), "refuse"),
    }  # fmt: skip
    for name, (content, must) in contents.items():
        yield with_content(name, words, "s.npy", content, must)


def one_based():
    rows = steps().reshape(-1)
    rows[1::4] += 1
    rows[2::4] += 1
    return rows[None]


def zipped(values):
    file = io.BytesIO()
    np.savez(file, values)
    return file.getvalue()


def objects(values):
    file = io.BytesIO()
    np.save(file, values.astype(object), allow_pickle=True)
    return file.getvalue()


EASY = "100000" + "0" * 30  # a puzzle of the trained run: 6x6
LINES = {
    "good": (EASY + "\n", "accept"), "dots": (EASY.replace("0", ".") + "\n", "accept"),
    "CSV": ("id,puzzle\n1," + EASY + "\n", "accept"), "blank lines": (f"\n{EASY}\n\n", "accept"),
    "byte order mark": ("\ufeff" + EASY + "\n", "accept"),
    "empty": ("", "refuse"), "blank lines alone": ("\n\n", "refuse"),
    "too short": (EASY[1:] + "\n", "refuse"), "too long": (EASY + "0\n", "refuse"),
    "a digit too large": ("7" + EASY[1:] + "\n", "refuse"),
    "a letter": ("x" + EASY[1:] + "\n", "refuse"),
    "a clue twice": ("11" + EASY[2:] + "\n", "refuse"),
    "nothing blank": ("1" * 36 + "\n", "refuse"),
    "CSV without puzzle": ("id,grid\n1," + EASY + "\n", "refuse"),
    "a row without its column": ("id,puzzle\n1\n", "refuse"),
    "an enormous field": ("1" * 200_000 + "\n", "refuse"),
    "a NUL": (EASY[1:] + "\0\n", "refuse"), "JSON": ('{"question": "1"}\n', "refuse"),
}  # fmt: skip


def lines(lab, rng):
    """Puzzles for eval.py --file."""
    words = ("eval.py", *SYSTEM, "--out_dir={out}/run", "--reveal=18", "--file={out}/p.txt")
    for name, (content, must) in LINES.items():
        yield puzzle_file(lab, name, words, content.encode(), must)
    for name, content in (("Latin-1", b"\xe4\n"), ("binary", b"\x80\x00\xff\n")):
        yield puzzle_file(lab, name, words, content, "refuse")


def puzzle_file(lab, name, words, content, must):
    def arrange(folder):
        shutil.copytree(lab.trained, folder / "run")
        (folder / "p.txt").write_bytes(content)

    return Case(name, words, arrange, must=must, names="p.txt", after=result_left(must))


def result_left(must):
    def after(folder, ended):
        left = (folder / "run/eval.jsonl").exists() and (folder / "run/eval.jsonl").stat().st_size
        return "lost" if must == "refuse" and ended.status and left else None

    return after


PROMPTS = {
    EASY: "accept", EASY.replace("0", "."): "accept", " ".join(EASY): "accept", "1": "refuse",
    "0" * 35: "refuse", "0" * 37: "refuse", "7" + "0" * 35: "refuse", "x" + "0" * 35: "refuse",
    "11" + "0" * 34: "refuse", "123456" * 6: "refuse", " ": "refuse", "\n": "refuse",
    "\u0661" + "0" * 35: "refuse", "\ud800" + "0" * 35: "refuse", "-1" + "0" * 34: "refuse",
}  # fmt: skip


def prompts(lab, rng):
    for text, must in PROMPTS.items():
        words = ("sample.py", *SYSTEM, f"--out_dir={lab.trained}", f"--prompt={text}")
        yield Case(repr(text), words, result=printed, must=must)


def data_files(lab, rng):
    """A prepared file that a user gives to train.py."""
    words = ("train.py", *TINY, "--max_iters=2", "--data_file={out}/d.npy", "--out_dir={out}/new",
             "--box=(2,2)", "--test_examples=1")  # fmt: skip
    pair = np.array([[[*map(int, PUZZLE)], [*map(int, SOLUTION)]]], np.uint8)
    other = np.array([0, 2, 1, 3, 4], np.uint8)[pair]
    other[0, 0, 4] = 0  # another puzzle, not the same one renamed
    contents = {
        "no checksum": (npy(np.concatenate([pair, other])), "refuse"),
        "empty file": (b"", "refuse"), "no array": (b"hello", "refuse"),
        "a zip archive": (zipped(pair), "refuse"), "objects": (objects(pair), "refuse"),
        "half": (npy(pair)[:140], "refuse"), "no rows": (npy(pair[:0]), "refuse"),
        "int64": (npy(pair.astype(int)), "refuse"), "one row": (npy(pair), "refuse"),
        "a digit too large": (npy(pair + 3), "refuse"), "zeros": (npy(pair * 0), "refuse"),
        "another box": (npy(np.zeros((2, 2, 36), np.uint8)), "refuse"),
    }  # fmt: skip
    for name, (content, must) in contents.items():

        def arrange(folder, content=content):
            (folder / "d.npy").write_bytes(content)

        yield Case(name, words, arrange, must=must, names="d.npy")


GROUPS = {
    "cache": cache, "csv": csv_files, "steps": step_files, "lines": lines, "prompts": prompts,
    "data_file": data_files,
}  # fmt: skip
