"""The shape of the repository: who imports whom, what training loads, how long a function may be.

Read from the source by `ast`; imports at the top of a file are those that loading it costs.
"""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

import tasks
from configurator import read_fields, read_keys
from sample import Sampler

ROOT = Path(__file__).parent.parent
FILES = sorted(
    path.relative_to(ROOT)
    for folder in (".", "data", "examples", "pretrained", "sandbox", "studies", "tasks")
    for path in (ROOT / folder).glob("*.py" if folder == "." else "**/*.py")
)
MODULES = {str(path.with_suffix("")).replace("/", ".").removesuffix(".__init__") for path in FILES}
PRIMITIVES = "model", "policies", "puma", "block", "cache", "losses", "example_queue", "muon"
SCRIPTS = [file for file in FILES if "configure(globals()" in (ROOT / file).read_text()]


def path_of(module):
    folder = ROOT / module.replace(".", "/")
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


@cache
def imports(module):
    """The project's modules that loading this one loads first."""
    names = []
    for node in ast.parse(path_of(module).read_text()).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    parents = [name.rpartition(".")[0] for name in names]
    return {name for name in [*names, *parents] if name in MODULES} - {module}


def loaded(*modules):
    """All modules that are loaded once these are."""
    known, new = set(), set(modules)
    while new:
        known |= new
        new = set().union(*map(imports, new)) - known
    return known


def test_training_sudoku_loads_little():
    modules = loaded("train", tasks.TASKS["sudoku"])
    assert len(modules) <= 20, modules
    unwanted = "sandbox", "pretrained", "studies", "data.wordproblems"
    assert not [name for name in modules if name.startswith(unwanted)]


@pytest.mark.parametrize("module", PRIMITIVES)
def test_primitives_import_primitives_alone(module):
    """Chain, policies and losses take tensors: a lookup table can stand in for the model."""
    assert imports(module) <= {*PRIMITIVES}
    assert "model" not in loaded(module) or module in ("model", "cache")


def test_no_circle_of_imports():
    for module in MODULES:
        assert module not in loaded(*imports(module)), module


def test_functions_fit_on_a_screen():
    long = [
        f"{path}:{node.name}"
        for path in FILES
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 40
    ]
    assert not long


def test_the_root_holds_the_concepts():
    files = sorted(path.name for path in ROOT.glob("*.py"))
    assert len(files) <= 19, f"tasks, studies and data have folders of their own: {files}"


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_every_setting_is_read(script):
    """By the script itself, or, as config["key"], by a task."""
    sources = {path: (ROOT / path).read_text() for path in FILES}
    tree = ast.parse(sources[script])
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)}  # fmt: skip
    for key in read_keys(sources[script]):
        assert key in read or any(f'config["{key}"]' in text for text in sources.values()), key


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_every_number_has_a_limit(script):
    """Of the script's settings, and of a sampler's."""
    source = (ROOT / script).read_text()
    ruled = set(re.findall(r"\w+", "".join(re.findall('LIMITS = """(.*?)"""', source, re.DOTALL))))
    for name, key in (read_keys(source) | read_fields(Sampler, lists=False)).items():
        if {int, float} & {*key.kinds, *key.elements}:
            assert name in ruled or (name in Sampler._fields and name in Sampler.LIMITS), name


@pytest.mark.parametrize("name", tasks.TASKS)
def test_a_task_is_a_module_with_load(name):
    assert callable(tasks.get(name).load)


def test_nothing_tracked_is_large():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert not [file for file in files if file.is_file() and file.stat().st_size > 1 << 20]
