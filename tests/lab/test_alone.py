"""puma.py, policies.py, loss.py in a folder of their own: lab/own_loop.py trains with no more."""

import ast
import re
import shutil
import subprocess
import sys

from conftest import ENV, ROOT

FILES = ["puma.py", "policies.py", "loss.py", "lab/own_loop.py"]


def test_the_three_files_need_torch_and_numpy_alone():
    allowed = {"torch", "numpy", "loss", "policies", "puma", *sys.stdlib_module_names}
    for file in FILES:
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, file


def test_they_train_a_model_in_an_empty_folder(tmp_path):
    folder = tmp_path / "below" / "own"
    folder.mkdir(parents=True)
    for file in FILES:
        shutil.copy(ROOT / file, folder)
    alone = {k: v for k, v in ENV.items() if k != "PYTHONPATH"}
    command = [sys.executable, "own_loop.py"]
    done = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]
    assert losses[0] > 2 and losses[-1] < 0.1  # at first about log 12 = 2.5
    assert int(re.search(r"(\d+)% of new rows solved", done.stdout)[1]) > 95
