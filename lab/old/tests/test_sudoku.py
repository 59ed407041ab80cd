"""Sudoku rules, files and generator against slow loops, search and published puzzles."""

import functools
import itertools
import re
import zlib

import numpy as np
import pytest
from conftest import HOUSE, run_main, run_script
from toys import contents, flipped

import prepare_sudoku as prepare
import sudoku
from data.sudoku import generate as generator
from data.sudoku import held_out
from data.sudoku.generated import first_puzzles

DATA = HOUSE.parent / "shared" / "data" / "sudoku"
BOX = (3, 3)
PUZZLE = "530070000600195000098000060800060003400803001700020006060000280000419005000080079"
SOLUTION = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def units_of(box):
    """Rows, columns and boxes by the book, as lists of cells."""
    n, units = box[0] * box[1], {}
    for r, c in itertools.product(range(n), repeat=2):
        for name in ("row", r), ("column", c), ("box", r // box[0], c // box[1]):
            units.setdefault(name, []).append(r * n + c)
    return list(units.values())


@functools.cache
def peers_of(box):
    cells = range((box[0] * box[1]) ** 2)
    return [{p for u in units_of(box) if c in u for p in u} - {c} for c in cells]


def candidates(grid, box):
    """{blank cell: the digits that none of its peers has}"""
    digits, peers = set(range(1, box[0] * box[1] + 1)), peers_of(box)
    return {c: digits - {grid[p] for p in peers[c]} for c, digit in enumerate(grid) if not digit}


def slow_singles(puzzle, box):
    """What naked and hidden singles find, one cell at a time."""
    grid, units = list(map(int, puzzle)), units_of(box)
    while True:
        options = candidates(grid, box)
        found = [(c, *left) for c, left in options.items() if len(left) == 1]
        for unit in units:
            for digit in range(1, box[0] * box[1] + 1):
                places = [c for c in unit if digit in options.get(c, ())]
                if len(places) == 1 and all(grid[c] != digit for c in unit):
                    found.append((places[0], digit))
        if not found:
            return grid
        for cell, digit in found:
            grid[cell] = digit


def count_solutions(puzzle, box, limit=2):
    """Up to `limit` solutions, by search with fewest candidates first."""
    grid = list(map(int, puzzle))

    def solutions():
        options = candidates(grid, box)
        if not options:
            yield 1
            return
        cell = min(options, key=lambda c: len(options[c]))
        for digit in options[cell]:
            grid[cell] = digit
            yield from solutions()
        grid[cell] = 0

    return sum(itertools.islice(solutions(), limit))


def slow_check(grid, puzzle, box):
    digits = set(range(1, box[0] * box[1] + 1))
    kept = all(p in (0, g) for g, p in zip(grid, puzzle, strict=True))
    return kept and all({int(grid[c]) for c in unit} == digits for unit in units_of(box))


def relabelled(rng, puzzles, solutions):
    """Each puzzle under its own random renaming of the digits."""
    n = round(puzzles.shape[1] ** 0.5)
    names = rng.permuted(np.tile(np.arange(1, n + 1, dtype=np.uint8), (len(puzzles), 1)), axis=1)
    names = np.concatenate([np.zeros((len(puzzles), 1), np.uint8), names], 1)
    return np.take_along_axis(names, puzzles, 1), np.take_along_axis(names, solutions, 1)


@pytest.fixture(scope="module")
def minimal():
    return generator.make_puzzles(256, BOX, seed=1)


def generated(box, clues, train, test, folder, seed=0):
    return sudoku.Sudoku(box, *first_puzzles(folder, box, clues, seed, train, test, workers=1))


def from_file(path, box, test):
    return sudoku.load(dict(data_file=path, box=box, train_examples=1, test_examples=test))


def same(arrays, others):
    return all((a == b).all() for a, b in zip(arrays, others, strict=True))


# -- rules ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("box", [(2, 3), (3, 2), (3, 3)])
def test_solves_agrees_with_the_slow_check(box):
    """One cell changed, two cells exchanged, or digits renamed: these break the clues alone."""
    rng = np.random.default_rng(0)
    puzzles, solutions = generator.make_puzzles(64, box, seed=2)
    assert sudoku.solves(solutions, puzzles, box).all()
    renamed = relabelled(rng, puzzles, solutions)[1][:32]
    grids = np.concatenate([solutions, renamed])
    puzzles = np.concatenate([puzzles, puzzles[:32]])
    cells = rng.integers(0, grids.shape[1], (2, 32))
    grids[:32][np.arange(32), cells[0]] = rng.integers(0, 256, 32)
    two = np.arange(32)[:, None], cells.T
    grids[32:64][two] = grids[32:64][two][:, ::-1]
    expected = [slow_check(g, p, box) for g, p in zip(grids, puzzles, strict=True)]
    assert sudoku.solves(grids, puzzles, box).tolist() == expected
    assert 0 < sum(expected[:64]) < 32 and not any(expected[64:])


def test_validate_names_row_and_fault():
    puzzle, solution = sudoku.decode([PUZZLE, SOLUTION], BOX, str)[:, None]
    far = sudoku.SLAB + 3  # in the second part of the rows

    def faulty(cell, digit):
        puzzles = np.repeat(puzzle, far + 2, 0)
        puzzles[far, cell] = digit
        return puzzles, np.repeat(solution, far + 2, 0)

    sudoku.validate(puzzle, BOX, solution)
    for grids, message in (
        (faulty(2, 10), f"row {far}: digits must be 0 (blank) to 9"),
        (faulty(2, 5), f"row {far}: the same clue twice in a row, column or box"),
        (faulty(2, 1), f"row {far}: the solution disagrees with the clues"),
        ((puzzle, puzzle), "row 0: the solution breaks the rules"),
        ((puzzle[:, :80], solution), "puzzles of shape (1, 80): must be (1, 81)"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            sudoku.validate(grids[0], BOX, grids[1])


# -- text ----------------------------------------------------------------------------------------
def test_grids_as_text():
    grid = sudoku.parse(PUZZLE.replace("0", "."), BOX)
    assert sudoku.to_text(grid) == PUZZLE
    rendered = sudoku.render(grid, BOX).translate(dict.fromkeys(b"|+-"))
    assert sudoku.to_text(sudoku.parse(rendered, BOX)) == PUZZLE
    assert sudoku.parse("gG0." * 64, (4, 4)).tolist() == [16, 16, 0, 0] * 64
    lines = sudoku.render(sudoku.parse("0123" * 9, (2, 3)), (2, 3)).splitlines()
    assert lines[:3] == [". 1 2 | 3 . 1", "2 3 . | 1 2 3", "------+------"]
    with pytest.raises(ValueError, match="puzzle: 80 characters, must be 81"):
        sudoku.parse(PUZZLE[1:], BOX)
    with pytest.raises(ValueError, match=r"'7' at cell 3 is neither a digit up to 6 nor a blank"):
        sudoku.parse("1237" * 9, (2, 3))


# -- generator -----------------------------------------------------------------------------------
@pytest.mark.parametrize(("box", "clues"), [((2, 2), None), ((3, 2), 14), (BOX, None), (BOX, 33)])
def test_singles_solve_every_puzzle(box, clues):
    puzzles, solutions = generator.make_puzzles(8, box, clues, seed=3)
    sudoku.validate(puzzles, box, solutions)
    for puzzle, solution in zip(puzzles, solutions, strict=True):
        assert slow_singles(puzzle, box) == solution.tolist()
        assert count_solutions(puzzle, box) == 1
    assert puzzles.dtype == solutions.dtype == np.uint8
    if clues:
        assert set((puzzles > 0).sum(1)) == {clues}


def dug_for_uniqueness(solution, order, box):
    puzzle = solution.copy()
    for cell in order:
        clue, puzzle[cell] = puzzle[cell], 0
        if count_solutions(puzzle, box) > 1:
            puzzle[cell] = clue
    return puzzle


@pytest.mark.parametrize(
    ("box", "count"), [((2, 3), 16), pytest.param(BOX, 6, marks=pytest.mark.slow)]
)
def test_the_same_law_as_digging_for_uniqueness(box, count):
    rng = np.random.default_rng(5)
    grids = generator.fill(rng, 1024, box)[:64]
    order = rng.random(grids.shape).argsort(1)
    given = generator.dig(grids, order, 0, box)
    keep = generator.irreplaceable(grids, given, order, box)
    expected = []
    for row in range(count):
        puzzle = dug_for_uniqueness(grids[row] + 1, order[row], box)
        solved = slow_singles(puzzle, box) == (grids[row] + 1).tolist()
        expected.append(solved)
        if solved:
            assert (puzzle > 0).tolist() == given[row].tolist()
    assert keep[:count].tolist() == expected
    assert 0 < sum(expected) < count


def test_the_result_depends_on_the_seed_and_the_version_only(minimal):
    """If these puzzles have changed on purpose, raise VERSION in data/sudoku/generated.py."""
    some = [minimal, generator.make_puzzles(64, BOX, clues=33)]
    assert [zlib.crc32(np.stack(each)) for each in some] == [0x8E0C42B5, 0x743586CC]
    first = generator.make_puzzles(150, (2, 3), seed=4)
    assert same(first, generator.make_puzzles(150, (2, 3), seed=4, workers=2))
    assert not same(first, generator.make_puzzles(150, (2, 3), seed=5))
    assert len(np.unique(first[1][:64], axis=0)) == 64  # no chunk or lane repeats another


def test_generate_refuses():
    for arguments, message in (
        (dict(box=(4, 4)), r"box \(4, 4\): \(rows, columns\) must be one of"),
        (dict(clues=81), "clues=81: must be None"),
        (dict(count=0), "count=0, workers=1: must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            generator.make_puzzles(**{"count": 1, **arguments})


# -- equality up to renaming ---------------------------------------------------------------------
def slow_key(puzzle, solution):
    """As splitmix64 and the docstrings have it, in Python's integers."""

    def mix(x):
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    names = {0: 0} | {digit: name for name, digit in enumerate(solution[:9], start=1)}
    digits = [names[digit] for digit in [*puzzle, *solution]]
    return mix(sum(mix(i) * digit for i, digit in enumerate(digits, start=1)) % 2**64)


def test_keys_are_those_of_a_slow_loop(minimal):
    keys = held_out.renaming_keys(*minimal).tolist()
    assert keys == [slow_key(*pair) for pair in zip(*(m.tolist() for m in minimal), strict=True)]
    renamed = relabelled(np.random.default_rng(0), *minimal)
    assert keys == held_out.renaming_keys(*renamed).tolist()
    assert same(held_out.canonical(*renamed), held_out.canonical(*minimal))


# -- files ---------------------------------------------------------------------------------------
def write_table(path, header, rows):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def read_all(*arguments):
    """Puzzles and solutions."""
    return tuple(np.concatenate(part) for part in zip(*prepare.read(*arguments), strict=True))


def test_csv_with_ratings(tmp_path, minimal, prepared, monkeypatch):
    monkeypatch.setattr(sudoku, "SLAB", 64)
    text = [[sudoku.to_text(grid) for grid in part] for part in minimal]
    pairs = enumerate(zip(*text, strict=True))
    rows = [(i, p.replace("0", "."), s, 24, i % 2 * 1.5) for i, (p, s) in pairs]
    path = write_table(tmp_path / "a.csv", "id,puzzle,solution,clues,difficulty", rows)
    assert same(read_all(path, BOX), minimal)
    assert same(read_all(path, BOX, 0.0), [part[::2] for part in minimal])
    extreme = write_table(tmp_path / "b.csv", "source,question,answer,clues,rating", rows)
    assert same(read_all(extreme, BOX, 0.0), [part[::2] for part in minimal])
    assert (sudoku.read_puzzles(extreme, BOX) == minimal[0]).all()
    made = np.load(prepared(source=str(path), test_source=str(path), max_rating=0.0))
    assert (made == np.tile(np.stack(minimal, 1)[::2], (2, 1, 1))).all()


def steps(puzzles, solutions, base=0):
    """The rows of the .npy format by a loop: clues first, then the others backwards."""
    rows = []
    for puzzle, solution in zip(puzzles, solutions, strict=True):
        order = [*np.flatnonzero(puzzle), *np.flatnonzero(puzzle == 0)[::-1]]
        cells = [(c // 9 + base, c % 9 + base, solution[c], 3 * (not puzzle[c])) for c in order]
        rows.append([(puzzle > 0).sum(), *itertools.chain(*cells)])
    return np.array(rows, np.int64)


def test_npy_of_steps(tmp_path, minimal):
    """Numbered from 0 or 1, in any order in memory and of any type of numbers."""
    from_0, from_1 = steps(*minimal), steps(*minimal, base=1)
    forms = from_0.astype(np.float32), np.asfortranarray(from_0), from_0.astype(">i4")
    for table in (from_0, from_1.astype(np.uint8), *forms):
        np.save(tmp_path / "a.npy", table)
        assert same(read_all(tmp_path / "a.npy", BOX), minimal)


def test_faults_of_a_file_are_named(tmp_path, minimal):
    def faulty(columns, value, width=325):
        table = steps(*minimal)[:4, :width].astype(np.float64)
        table[2, columns] = value
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.npy"
        np.save(path, table)
        return path

    unrated = write_table(tmp_path / "a.csv", "puzzle,solution", [(PUZZLE, SOLUTION)])
    nan = write_table(tmp_path / "b.csv", "puzzle,solution,rating", [(PUZZLE, SOLUTION, "nan")])
    for path, rating, message in (
        (unrated, 0.0, "no difficulty or rating column"),
        (nan, 0.0, "line 2: not a puzzle, solution and rating"),
        (tmp_path / "c.txt", None, r"must end in \.csv or \.npy"),
        (faulty(0, 0, width=81), None, r"shape \(4, 81\), must be \(N, 325\)"),
        (faulty(0, 0), 0.0, "steps has no ratings"),
        (faulty(0, 81), None, "row 2: the number of clues is out of range"),
        (faulty(2, -1), None, r"row 2: a row or column is not in 0\.\.8"),
        (faulty(5, np.nan), None, "row 2: not whole numbers"),
        (faulty(slice(5, 7), steps(*minimal)[2, 1:3]), None, "row 2: a cell occurs twice"),
    ):
        with pytest.raises(ValueError, match=f"{path}.*{message}"):
            read_all(path, BOX, rating)


def test_tables_that_are_none(tmp_path):
    """Read as puzzles to train on, and as puzzles to solve: one line that names the file."""
    path, head = tmp_path / "a.csv", b"puzzle,solution\n"
    for content in (b"", head + b"1" * 200_000 + b",1\n", head + b"\xff\xfe,1\n"):
        path.write_bytes(content)
        for read in (read_all, sudoku.read_puzzles):
            with pytest.raises(ValueError, match=r"a\.csv") as error:
                read(path, BOX)
            assert len(str(error.value)) < 500 and "\n" not in str(error.value)


# -- data set ------------------------------------------------------------------------------------
def test_generated_set(tmp_path):
    task = generated((2, 3), None, 60, 20, tmp_path)
    assert (task.vocab_size, task.mask, task.length) == (7, 6, 36)
    assert (len(task.train), len(task.test)) == (60, 20)
    x0, prompt = task.validation[:]
    assert x0.dtype == np.uint8 and prompt.dtype == bool
    assert (np.where(prompt, x0 + 1, 0) == task.test.puzzles).all()
    x, hidden = task.test[:]
    assert (hidden == ~prompt).all() and (x == np.where(prompt, x0, task.mask)).all()

    def kinds(tokens):
        return [record["kind"] for record in task.test.judge(tokens, np.arange(20))]

    assert kinds(x0) == ["correct"] * 20
    assert kinds(x0[::-1]) == kinds(x) == ["wrong"] * 20
    x0[3, 7] = (x0[3, 7] + 1) % 6
    assert np.flatnonzero(np.array(kinds(x0)) == "wrong").tolist() == [3]


def test_each_chunk_is_made_once(tmp_path, monkeypatch):
    """A smaller set begins a larger one, which is the same to the byte however it has grown."""
    made, chunk, chunks = [], generator.make_chunk, generator.chunks
    monkeypatch.setattr(generator, "make_chunk", lambda task: made.append(task[1]) or chunk(task))
    sizes = (60, 2), (60, 20), (1000, 20), (60, 30)
    grown = [generated((2, 3), None, *size, tmp_path / "grown") for size in sizes]
    assert made == [*range(len(made))] and len(made) >= 3
    for small in grown:
        for part, large in ("train", grown[2]), ("validation", grown[3]):
            rows = getattr(small, part)[:][0]
            assert (rows == getattr(large, part)[:][0][: len(rows)]).all()
    generated((2, 3), None, 1000, 20, tmp_path / "whole")

    def interrupted(*arguments):
        yield from itertools.islice(chunks(*arguments), 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(generator, "chunks", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            generated((2, 3), None, 1000, 20, tmp_path / "parts")
    monkeypatch.setattr(generator, "chunks", chunks)
    generated((2, 3), None, 1000, 20, tmp_path / "parts")
    parts, grown, whole = (contents(tmp_path / name) for name in ("parts", "grown", "whole"))
    assert len(whole) == 1 and parts == grown == whole


def names_of(examples):
    """What tells puzzles apart up to renaming, without their keys."""
    pairs = examples.pairs[examples.rows]
    return [puzzle.tobytes() for puzzle in held_out.canonical(pairs[:, 0], pairs[:, 1])[0]]


def test_no_run_trains_on_the_test_puzzles_of_another(tmp_path, prepared):
    """Sets of any size, seed and source: the first two have many puzzles in common."""
    others = write_puzzles(tmp_path / "a.csv", generator.make_puzzles(3000, (2, 2), seed=5))
    path = prepared(source=str(others), box=(2, 2))
    sizes = [(2000, 40, 0), (2000, 20, 0), (1000, 40, 0), (1500, 30, 1)]
    tasks = [generated((2, 2), None, *size[:2], tmp_path, size[2]) for size in sizes]
    tasks.append(from_file(path, (2, 2), 30))
    train = [set(names_of(task.train)) for task in tasks]
    test = [set(names_of(task.validation)) for task in tasks]
    assert [len(part) for part in train][:4] == [2000, 2000, 1000, 1500]
    assert [len(part) for part in test] == [40, 20, 40, 30, 30]
    for ours in test:
        assert not [theirs for theirs in train if ours & theirs]
    assert test[1] < test[0] == test[2], "fewer are the first of more"
    assert len(train[0] & train[3]) > 500 and len(train[0] & train[4]) > 500
    assert len(test[0] & test[3]) > 5 and len(test[0] & test[4]) > 5


def test_a_damaged_or_another_set_is_refused(tmp_path):
    def make(clues=None):
        generated((2, 2), clues, 60, 2, tmp_path)
        return next(tmp_path.glob("2x2-clues*" if clues else "2x2-minimal*"))

    path, other = make(), make(clues=8)
    whole = path.read_bytes()
    damaged = [flipped(whole, at) for at in (0, 40, 200, len(whole) - 3)]
    for content in (*damaged, whole[:-2], whole + whole, other.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{path}.*delete it to make it again") as error:
            make()
        assert "\n" not in str(error.value)
    path.unlink()
    assert make().read_bytes() == whole


def test_too_few_different_puzzles(tmp_path):
    with pytest.raises(ValueError, match=r"300 \+ 5 puzzles: only 192 are different, and 10 of"):
        generated((2, 2), 15, 300, 5, tmp_path)  # 12 grids, 16 blanks each


def write_puzzles(path, *parts):
    """A CSV file of pairs of puzzles and solutions (N, L)."""
    rows = [map(sudoku.to_text, pair) for part in parts for pair in zip(*part, strict=True)]
    return write_table(path, "puzzle,solution", rows)


@pytest.fixture
def prepared(tmp_path):
    """Run prepare_sudoku.py with these settings; the file it wrote."""

    def prepared(**settings):
        defaults = {"source": "", "test_source": "", "max_rating": None, "box": BOX}
        defaults |= {"out": str(tmp_path / "out" / "a.npy")}
        return run_main(prepare, **defaults | settings)

    return prepared


def test_set_from_a_file_is_memory_mapped(tmp_path, minimal, monkeypatch):
    monkeypatch.setattr(sudoku, "SLAB", 64)  # written in four parts
    source, path = write_puzzles(tmp_path / "a.csv", minimal), tmp_path / "a.npy"
    said = run_script("prepare_sudoku.py", f"--source={source}", f"--out={path}")
    assert f"{source}: 256 puzzles, 2" in said
    assert (np.load(path) == np.stack(minimal, 1)).all()
    assert held_out.is_held_out(held_out.renaming_keys(*minimal)).sum() == 7
    task = from_file(path, BOX, 7)
    assert (len(task.train), len(task.test)) == (249, 7)
    assert isinstance(task.train.pairs, np.memmap)
    for part in (task.train, task.validation):
        x0, prompt = part[:]
        assert (x0 + 1 == minimal[1][part.rows]).all()
        assert (np.where(prompt, x0 + 1, 0) == minimal[0][part.rows]).all()
    fewer = from_file(path, BOX, 3)
    assert len(fewer.train) == 249
    assert fewer.validation.rows.tolist() == task.validation.rows[:3].tolist()
    with pytest.raises(ValueError, match=r"holds puzzles with box \[3, 3\], not \(2, 3\)"):
        from_file(path, (2, 3), 3)


def test_a_faulty_source_leaves_the_prepared_file_as_it_is(tmp_path, prepared, minimal):
    whole = str(write_puzzles(tmp_path / "a.csv", minimal))
    path = prepared(source=whole, test_source=whole)
    before = contents(path.parent)
    faulty = write_table(tmp_path / "c.csv", "puzzle,solution", [(PUZZLE, PUZZLE)])
    empty = write_table(tmp_path / "d.csv", "puzzle,solution", [])
    for source, message in (faulty, "breaks the rules"), (empty, "no puzzle"), ("gone.csv", "gone"):
        for name in "source", "test_source":
            with pytest.raises((ValueError, FileNotFoundError), match=message):
                prepared(**{"source": whole, name: str(source)})
            assert contents(path.parent) == before and set(before) == {"a.npy"}
    with pytest.raises(ValueError, match=r"expected FILE\.npy"):
        prepared(source=whole, out=str(tmp_path / "a.csv"))


def test_the_puzzles_of_the_test_file_are_held_out_and_no_others(tmp_path, minimal, prepared):
    renamed = relabelled(np.random.default_rng(0), *minimal)
    train = write_puzzles(tmp_path / "train.csv", minimal, [part[:30] for part in renamed])
    others = write_puzzles(tmp_path / "test.csv", [part[200:] for part in renamed])
    path = prepared(source=str(train), test_source=str(others))
    for test in (56, 40):
        task = from_file(path, BOX, test)
        assert (len(task.train), len(task.test)) == (200, test)
        assert set(task.validation.rows.tolist()) <= set(range(56))
    assert len({*names_of(task.train), *names_of(task.validation)}) == 240  # none twice
    with pytest.raises(ValueError, match=r"57: .* has 256 different puzzles, 56 held"):
        from_file(path, BOX, 57)


def test_a_file_that_is_not_prepared_names_the_command(tmp_path, minimal):
    np.save(tmp_path / "a.npy", steps(*minimal))
    np.save(tmp_path / "b.npy", np.zeros((9, 2, 81), np.uint8))
    write_puzzles(tmp_path / "a.csv", minimal)
    generated((2, 2), None, 60, 2, tmp_path)  # a file with a checksum, but another one
    for path in [*tmp_path.iterdir()]:
        with pytest.raises(ValueError) as error:
            from_file(path, BOX, 10)
        command = f'python prepare_sudoku.py --source={path} --box="(3,3)" --out='
        assert command in str(error.value) and "\n" not in str(error.value)
