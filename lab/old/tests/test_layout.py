"""The shape of the repository: who imports whom, what training loads, how many lines there are.

Read from the source by `ast`, imports inside functions included. The root holds what a reader came
for; engine/ keeps a run going, imports nothing of the root, and names no setting and no method.

Limits are 3 % above what stands. If your change passes one, first look for lines that nobody would
miss; raise the limit in a commit that says why. If lines leave, lower it.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from functools import cache
from pathlib import Path

import pytest
from conftest import TINY

import tasks
from configurator import read_fields, read_keys

ROOT = Path(__file__).parent.parent
PACKAGES = "data", "engine", "examples", "pretrained", "runs", "sandbox", "studies", "tasks"
FILES = sorted(
    path.relative_to(ROOT)
    for folder in (".", *PACKAGES)
    for path in (ROOT / folder).glob("*.py" if folder == "." else "**/*.py")
)
MODULES = {
    str(path.with_suffix("")).replace("/", ".").removesuffix(".__init__"): path for path in FILES
}
PRIMITIVES = "model", "policies", "puma", "block", "losses"
LIMITS = {  # lines
    "the root": 2740, "engine/": 1330, "train.py": 366, "puma.py": 328,
    "another file of the root": 310, "all code": 15_900, "all tests": 10_400,
    "a run of Sudoku": 4750,
}  # fmt: skip
SETTINGS = 55
PACKED = 2.5  # `a, b = c, d` in 100 lines of code
# Words that settings share with PyTorch, or that engine/ takes as arguments of the same name.
SHARED_WORDS = {
    "name", "seed", "device", "dtype", "compile", "shard", "dim", "layers", "ema", "lr",
    "weight_decay", "buffer", "policy",
}  # fmt: skip
LOADED = """
import runpy, sys
from pathlib import Path
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
root = Path.cwd()
files = {Path(m.__file__) for m in [*sys.modules.values()] if getattr(m, "__file__", None)}
files = {path for path in files if root in path.parents and path.suffix == ".py"}
files = {path for path in files if ".venv" not in path.parts}
own = files | {root / "train.py"}
print("LOADED", sum(len(path.read_text().splitlines()) for path in own))
print("LOADED", *sorted(str(path.relative_to(root)) for path in own))
"""


def lines(paths):
    return sum(len((ROOT / path).read_text().splitlines()) for path in paths)


def tracked(pattern):
    command = ["git", "ls-files", "-z", "--", pattern]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


@cache
def imports(module, lazily):
    """The project's modules that a module imports: when it is loaded, or also inside functions."""
    tree = ast.parse((ROOT / MODULES[module]).read_text())
    names = []
    for node in ast.walk(tree) if lazily else tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return {name for name in names if name in MODULES} - {module}


def reached(*modules, lazily=False):
    """All modules that are loaded once these are."""
    known, new = set(), set(modules)
    while new:
        known |= new
        new = set().union(*(imports(module, lazily) for module in new)) - known
    return known


def check(what, found):
    limit = LIMITS[what]
    assert found <= limit, f"{what}: {found} lines, the limit is {limit}; see the top of this file"


def test_the_root_and_engine_stay_small():
    root = [path for path in FILES if path.parent == Path(".")]
    for path in root:
        check(path.name if path.name in LIMITS else "another file of the root", lines([path]))
    assert len(root) <= 12
    check("the root", lines(root))
    check("engine/", lines(path for path in FILES if path.parts[0] == "engine"))


def test_the_whole_stays_small():
    tests = tracked("tests/*.py")
    code = [path for path in tracked("*.py") if path.parts[0] != "tests"]
    assert len(tests) > 20 and len(code) > 60
    check("all code", lines(code))
    check("all tests", lines(tests))


def code_lines(source):
    """Lines without blank ones, comments and docstrings."""
    blank = tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*blank, tokenize.ENDMARKER):
            found |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found -= {*range(node.lineno, node.end_lineno + 1)}
    return len(found)


def packed(source):
    """The assignments `a, b = c, d`."""
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assign))
    return [
        n for n in found if isinstance(n.targets[0], ast.Tuple) and isinstance(n.value, ast.Tuple)
    ]


@pytest.mark.parametrize("folder", [".", ""])
def test_lines_are_not_packed(folder):
    """In the root, and in all."""
    paths = [path for path in tracked("*.py") if path.parts[0] != "tests"]
    sources = [(ROOT / p).read_text() for p in paths if not folder or p.parent == Path(folder)]
    share = 100 * sum(len(packed(s)) for s in sources) / sum(map(code_lines, sources))
    assert share <= PACKED, f"{share:.2f} packed assignments in 100 lines: give each its own line"


def test_training_sudoku_loads_little(tmp_path):
    """Counted in a run of two updates, imports inside functions included."""
    flags = "config/sudoku_tiny.py", *TINY, "--max_iters=2", f"--out_dir={tmp_path}/run"
    command = [sys.executable, "-c", LOADED, "train.py", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    count, names = re.findall("^LOADED (.*)", done.stdout, re.M)
    assert "data/sudoku/generate.py" in names  # what a run imports late is counted
    assert not re.search("sandbox|studies|examples|theory", names)
    check("a run of Sudoku", int(count))


def test_train_has_few_settings():
    own = read_keys((ROOT / "train.py").read_text())
    assert len(own) <= SETTINGS
    for name in tasks.TASKS:
        if fields := tasks.settings(name):
            assert not own.keys() & read_fields(fields).keys()


def test_engine_imports_nothing_of_the_root_and_names_no_setting_or_method():
    """What a run must keep and may change is handed in (runs/start.py)."""
    settings = read_keys((ROOT / "train.py").read_text()).keys()
    words = "|".join([*(settings - SHARED_WORDS), "puma", "mdm", "ar"])
    named = re.compile(rf"\b({words})\b|--({'|'.join(settings)})\b")
    for module, path in MODULES.items():
        if path.parts[0] == "engine":
            assert all(name.startswith("engine") for name in imports(module, True)), module
            assert not (found := named.search((ROOT / path).read_text())), (module, found)


def test_the_product_imports_no_study():
    for module, path in MODULES.items():
        if path.parts[0] not in ("studies", "examples"):
            assert not [n for n in imports(module, True) if n.startswith("studies")], module


@pytest.mark.parametrize("module", PRIMITIVES)
def test_primitives_import_primitives_alone(module):
    """Chain, policies and losses take tensors: a lookup table can stand in for the model."""
    allowed = {*PRIMITIVES, "engine.head", "engine"}
    assert imports(module, True) <= allowed
    assert "model" not in imports(module, True) or module == "block"


def test_the_chain_needs_one_other_file():
    assert reached("puma", lazily=True) == {"puma", "policies"}


def test_no_circle_of_imports():
    for module in MODULES:
        assert module not in reached(*imports(module, True), lazily=True), module


def test_functions_fit_on_a_screen():
    long = [
        f"{path}:{node.name}"
        for path in FILES
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 40
    ]
    assert not long


def test_every_setting_is_read():
    """By the script itself, or, as config["key"], by a task."""
    sources = {path: (ROOT / path).read_text() for path in FILES}
    unread = []
    for script, source in sources.items():
        if "configure(globals()" not in source:
            continue
        names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
        read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        by_tasks = {
            key for text in sources.values() for key in re.findall(r'config\["(\w+)"\]', text)
        }
        unread += [(script, key) for key in read_keys(source) if key not in read | by_tasks]
    assert not unread


@pytest.mark.parametrize("name", tasks.TASKS)
def test_a_task_is_a_module_with_load(name):
    assert callable(tasks.get(name).load)


def test_nothing_tracked_is_large():
    sizes = {path: (ROOT / path).stat().st_size for path in tracked("*")}
    assert sum(size for path, size in sizes.items() if path.parts[0] == "weights") < 6 << 20
    sizes.pop(Path("results/play.html"))  # holds the weights of three models
    assert not [p for p, size in sizes.items() if size > 1 << 20 and p.parts[0] != "weights"]
