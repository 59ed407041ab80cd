"""The package beside a user's own modules of the same names: as a checkout, and as a wheel."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ONE_THREAD, ROOT

USER = """
import sys
import model, train, sample, block, tasks  # the user's own
import torch
import puma_mdm
from puma_mdm import BlockUnmasking, ChunkedObjective, ExampleQueue, Objective
from puma_mdm import ProgressiveUnmasking, RandomMasking, Sampler, Transformer, generate, policies

net = Transformer(vocab_size=6, mask_token=5, length=8, dim=16, layers=1, heads=2, mlp=16)
hidden = torch.ones(3, 8, dtype=torch.bool)
tokens, _, _ = generate(net, hidden.long(), hidden, Sampler(), block=4)  # imports block late
assert tokens.max() < 5 and policies.get("margin") is policies.margin
assert puma_mdm.tasks.get("arithmetic").__name__ == "puma_mdm.tasks.arithmetic"
from puma_mdm.data.wordproblems import prepare, templates

own = model, train, sample, block, tasks
assert all(module.MINE for module in own)
flat = {name for name in sys.modules if name.partition(".")[0] in puma_mdm.OWN}
assert flat == {module.__name__ for module in own}, flat
assert str(puma_mdm.ROOT) not in sys.path
print(puma_mdm.ROOT)
"""
CHECKOUT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("puma_mdm", {!r})
sys.modules["puma_mdm"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["puma_mdm"])
"""


def run_as_user(folder, start="", path=""):
    """What USER prints in a folder with modules of its own; `start`: code that comes first."""
    for name in ("model", "train", "sample", "block", "tasks"):
        (folder / f"{name}.py").write_text("MINE = True")
    (folder / "mine.py").write_text(start + USER)
    env = os.environ | ONE_THREAD | {"PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=folder, env=env, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_a_checkout(tmp_path):
    start = CHECKOUT.format(str(ROOT / "puma_mdm" / "__init__.py"))
    assert run_as_user(tmp_path, start) == str(ROOT)


@pytest.mark.slow
def test_a_wheel(tmp_path):
    pytest.importorskip("setuptools", minversion="77", reason="builds the wheel")
    source, site, user = (tmp_path / name for name in ("source", "site", "user"))
    unwanted = shutil.ignore_patterns(".*", "out", "results", "tests", "build", "*.npy", "*.npz")
    shutil.copytree(ROOT, source, ignore=unwanted)
    build = "import setuptools.build_meta as b; b.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    (wheel,) = source.glob("dist/*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    user.mkdir()
    assert run_as_user(user, path=site) == str(site / "puma_mdm" / "scripts")
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"puma_mdm"}
    here = {path.relative_to(ROOT) for path in python_files(ROOT)}
    assert here == {path.relative_to(site / "puma_mdm/scripts") for path in python_files(site)}
    word_problems = "data/wordproblems/templates.txt", "data/wordproblems/vocabulary.tiktoken"
    pages = (f"studies/{name}" for name in ("fake_cuda.cpp", "play.html", "view.html", "view.svg"))
    for name in "CITATION.bib", *pages, *word_problems:
        assert (site / "puma_mdm/scripts" / name).read_bytes() == (ROOT / name).read_bytes()


def python_files(folder):
    """Of the root and of its packages, wherever they lie."""
    root = folder / "puma_mdm/scripts" if folder.name == "site" else folder
    packages = {path.parent for path in root.glob("*/__init__.py")} - {root / "puma_mdm"}
    return [*root.glob("*.py"), *(file for folder in packages for file in folder.rglob("*.py"))]
