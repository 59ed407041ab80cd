"""The scripts as a package: what `pip install` of this repository makes importable.

    from puma_mdm import ProgressiveUnmasking, Sampler, Transformer, generate
    from puma_mdm import policies, tasks                any module or folder of the root
    python -m puma_mdm.sample --out_dir=RUN             any script

Files of the root import each other by plain names (`model`, `train`), which a user's files may
share. As modules of this package they are loaded from the same files, but the names in their
imports are prefixed as a file is read: `from model import x` becomes `from puma_mdm.model import
x`. So nothing is put on sys.path, and a checkout, an editable install and a wheel (with the files
in `scripts`) differ only in place. The price: they are compiled at each start (a second).
"""

import ast
import importlib
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE / "scripts" if (HERE / "scripts").is_dir() else HERE.parent
__path__ = [str(ROOT)]
OWN = {path.stem for path in ROOT.glob("*.py")}
OWN |= {path.parent.name for path in ROOT.glob("*/__init__.py")} - {__name__}
EXPORTS = {
    "Transformer": "model", "Logits": "model", "ProgressiveUnmasking": "puma",
    "RandomMasking": "puma", "MasksThenChains": "puma", "BlockUnmasking": "block",
    "ExampleQueue": "engine.queue", "Objective": "losses", "ChunkedObjective": "losses",
    "Sampler": "sample", "generate": "sample",
}  # fmt: skip
__all__ = [*EXPORTS, "policies"]


def __getattr__(name):
    """An export, or a module of the root, imported when it is asked for."""
    if name in EXPORTS:
        return getattr(importlib.import_module(f"{__name__}.{EXPORTS[name]}"), name)
    if name in OWN:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Prefix(ast.NodeTransformer):
    """Puts the package before names of the root in import statements, wherever they stand."""

    def visit_Import(self, node):
        for alias in node.names:
            if alias.name.partition(".")[0] in OWN:
                if "." in alias.name and not alias.asname:
                    raise ImportError(f"import {alias.name}: write `from ... import`, or `as`")
                alias.asname = alias.asname or alias.name
                alias.name = f"{__name__}.{alias.name}"
        return node

    def visit_ImportFrom(self, node):
        if not node.level and node.module.partition(".")[0] in OWN:
            node.module = f"{__name__}.{node.module}"
        return node


class Loader(SourceFileLoader):
    def get_code(self, name):
        path = self.get_filename(name)  # not the .pyc beside it: that is the script's own
        tree = Prefix().visit(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path) if name.startswith(f"{__name__}.") else None
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader, spec.cached = Loader(spec.loader.name, spec.loader.path), None
        return spec


sys.meta_path.insert(0, Finder)
