"""Every promise of the README has tests, and `docs/reference/promises.md` names them."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = re.sub(r"\*\*|\[([^]]*)\]\([^)]*\)", r"\1", (ROOT / "README.md").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "reference" / "promises.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (.*?) \| (`tests/.*`) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE)
README_ROWS = ROW.findall(PAGE.partition("\n## ")[0])


def promised():
    """The sentences of the section."""
    section = README.partition("## What you can rely on\n")[2].partition("\n## ")[0]
    points = [" ".join(point.split()) for point in section.split("\n- ")]
    return [sentence for point in points for sentence in re.findall(r"\S.*?[.](?= |$)", point.removeprefix("- "))]


@functools.cache
def names_in(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_promise_of_the_readme_has_a_row():
    """None is missing; none stands there that the README no longer makes."""
    rows = [promise for promise, _ in README_ROWS]

    assert len(promised()) > 15
    assert [sentence for sentence in promised() if sentence not in rows] == []
    assert [row for row in rows if row not in " ".join(README.split())] == []


@pytest.mark.parametrize("named", sorted({name for _, tests in ROWS for name in re.findall(r"`(.*?)`", tests)}))
def test_the_tests_of_a_promise_are_there(named):
    """Each name leads to a test."""
    path, _, name = named.partition("::")

    assert name.startswith("test_")
    assert name in names_in(path)
