"""What the documents name is there: files that they link to, functions and classes of the tour."""

import ast
import re
import sys

import pytest
from conftest import ROOT, metrics, train

import tasks

FOLDERS = "docs", "results", "theory", "data", "pretrained"
PAGES = [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]


def names_in(path):
    """Functions, classes, methods as Class.method, and constants of a file."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (part for part in node.body if isinstance(part, ast.FunctionDef))
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


def test_every_name_in_the_tour_exists():
    tour = ROOT / "docs" / "tour.md"
    links = re.findall(r"\[`([\w.]+)`\]\(([\w./]+)\)", tour.read_text())
    assert len(links) > 20
    assert not [(name, file) for name, file in links if name not in names_in(tour.parent / file)]


@pytest.fixture
def learn(tmp_path, monkeypatch):
    """Train on the task of CONTRIBUTING.md, with a change."""
    code = (ROOT / "CONTRIBUTING.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path)])
    monkeypatch.setitem(tasks.TASKS, "reverse", "tasks.reverse")

    def learn(right="", wrong=""):
        assert right in code
        (tmp_path / "reverse.py").write_text(code.replace(right, wrong) if right else code)
        sys.modules.pop("tasks.reverse", None)
        train(tmp_path, "--dataset=reverse", "--digits=2", "--max_iters=300", "--lr=1e-2")

    return learn


def test_the_task_of_contributing_learns(learn, tmp_path):
    learn()
    assert metrics(tmp_path)[-1]["accuracy"]["top_k"] > 0.1  # guessing: 0.01


@pytest.mark.parametrize(
    "right, wrong, message",
    [
        (
            "digits, MASK + 1, MASK",
            "digits, 5, 4",
            "train: int64 0 to 9.*expected ids and mask 0 to 4",
        ),
        (
            "2 * digits, MASK +",
            "3 * digits, MASK +",
            r"expected ids and mask 0 to 10, .*\(rows, 6\)",
        ),
        ("], self.prompt[indices]", "], 1 * self.prompt[indices]", r"int64 \(200, 4\): expected"),
        ('"correct" if ok else "wrong"', "bool(ok)", "{'kind': True}, .*expected a word as kind"),
        ('(place, "0123456789_"[token])', "(place, int(token))", r"texts \[\d, .*expected a word"),
        ('{"kind": "correct" if ok else "wrong"}', "ok", "describes it: .*TypeError"),
        ("def load(", "def lode(", "has no function load"),
    ],
)
def test_a_task_of_another_form_is_named(right, wrong, message, learn, refused):
    assert re.search(message, refused(learn, right, wrong))


def test_every_link_leads_somewhere():
    links = [
        (str(page.relative_to(ROOT)), link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text())
        if not re.match("[a-z]+:", link)
    ]
    assert len(links) > 50
    assert not [(page, link) for page, link in links if not ((ROOT / page).parent / link).exists()]
