"""The shape of the repository: who imports whom, what training loads, how many lines there are.

Read from the source by `ast`, imports inside functions included. The root holds what a reader came
for; engine/ keeps a run going, imports nothing of the root, and does not know what a mask is.
"""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

import tasks
from configurator import read_fields, read_keys

ROOT = Path(__file__).parent.parent
PACKAGES = "data", "engine", "examples", "pretrained", "sandbox", "studies", "tasks"
FILES = sorted(
    path.relative_to(ROOT)
    for folder in (".", *PACKAGES)
    for path in (ROOT / folder).glob("*.py" if folder == "." else "**/*.py")
)
MODULES = {
    str(path.with_suffix("")).replace("/", ".").removesuffix(".__init__"): path for path in FILES
}
PRIMITIVES = "model", "policies", "puma", "block", "losses"
# A change that raises a budget says why in its commit.
ROOT_LINES, FILE_LINES, ENGINE_LINES = 2300, 350, 1300
LINES = {"train.py": 353, "puma.py": 275}
LOADED_LINES, CODE_LINES, TEST_LINES = 3500, 16_500, 11_000
SETTINGS = 55


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


def test_the_root_and_engine_stay_small():
    root = [path for path in FILES if path.parent == Path(".")]
    for path in root:
        assert lines([path]) <= LINES.get(path.name, FILE_LINES), path
    assert len(root) <= 11 and lines(root) <= ROOT_LINES
    assert lines(path for path in FILES if path.parts[0] == "engine") <= ENGINE_LINES


def test_the_whole_stays_small():
    tests = tracked("tests/*.py")
    code = [path for path in tracked("*.py") if path.parts[0] != "tests"]
    assert len(tests) > 20 and len(code) > 60
    assert lines(code) <= CODE_LINES and lines(tests) <= TEST_LINES


def test_training_sudoku_loads_little():
    modules = reached("train", tasks.TASKS["sudoku"])
    assert not [name for name in modules if name.startswith(("sandbox", "studies", "examples"))]
    assert lines(MODULES[module] for module in modules) <= LOADED_LINES, sorted(modules)


def test_train_has_few_settings():
    own = read_keys((ROOT / "train.py").read_text())
    assert len(own) <= SETTINGS
    for name in tasks.TASKS:
        if fields := tasks.settings(name):
            assert not own.keys() & read_fields(fields).keys()


def test_engine_imports_nothing_of_the_root_and_knows_no_masks():
    for module, path in MODULES.items():
        if path.parts[0] == "engine":
            assert all(name.startswith("engine") for name in imports(module, True)), module
            assert not re.search(r"\bmask|unmask", (ROOT / path).read_text()), module


@pytest.mark.parametrize("module", PRIMITIVES)
def test_primitives_import_primitives_alone(module):
    """Chain, policies and losses take tensors: a lookup table can stand in for the model."""
    allowed = {*PRIMITIVES, "engine.head", "engine", "studies.papl", "studies"}
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
    assert not [p for p, size in sizes.items() if size > 1 << 20 and p.parts[0] != "weights"]
