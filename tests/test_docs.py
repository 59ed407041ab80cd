"""What the documents name is there: files that they link to, functions and classes of the tour."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(p for folder in ("docs", "results", "theory", "data", "pretrained")
                           for p in (ROOT / folder).rglob("*.md"))]
)  # fmt: skip


def names_in(path):
    """Functions, classes, methods as Class.method, and constants of a file."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (part for part in node.body if isinstance(part, ast.FunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_every_name_in_the_tour_exists():
    tour = ROOT / "docs" / "tour.md"
    named = re.findall(r"\[`([\w.]+)`\]\(([\w./]+)\)", tour.read_text())
    assert len(named) > 60
    files = {link: names_in(tour.parent / link) for _, link in named}
    assert not [(name, link) for name, link in named if name not in files[link]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text())
    inside = [link for link in links if not re.match("[a-z]+:", link)]
    assert not [link for link in inside if not (page.parent / link).exists()]
