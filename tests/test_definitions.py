"""Each definition on the reference pages has a source, a bound of error, and a test that compares it with a peer."""

import ast

import pytest

from spanwise.components.evaluation.metric import KNOWN
from tests.definitions import DEFINITIONS, PAGE, PEERS, ROOT, page

CHECKS = [(file, test, peer) for f in DEFINITIONS.values() for c in f.values() for peer, (file, test) in c.items()]

TABLES = {"statistics.md": "| figure |", "transform.md": "| function | definition |", "components.md": "| metric |"}


def rows(name):
    """The rows of the table of definitions on a page."""
    lines = (ROOT / "docs/reference" / name).read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(TABLES[name]))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return found
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_the_page_lists_the_checks():
    """If not, write it anew: python -m tests.definitions"""
    text = PAGE.read_text()

    assert page(text) == text


@pytest.mark.parametrize("name", TABLES)
def test_no_definition_lacks_a_check(name):
    """The tables on the pages and the table of checks have the same figures, beside the weighted ones."""
    named = [cells[0] for cells in rows(name)]

    more = [each for each in DEFINITIONS[name] if each not in named]
    assert [each for each in named if each not in DEFINITIONS[name]] == []
    assert all(each.startswith(("weighted ", "with ", "beyond ")) for each in more), more


@pytest.mark.parametrize("name", ["statistics.md", "transform.md"])
def test_no_definition_lacks_a_formula_or_an_error(name):
    """Nobody has to guess what is computed, or how exactly."""
    assert [cells[0] for cells in rows(name) if not cells[1] or not cells[2]] == []


def test_every_metric_is_on_the_page():
    """By its name, with what it means."""
    cells = rows("components.md")

    assert {name for first, *_ in cells for name in first.replace("`", "").split(", ")} == set(KNOWN)
    assert all(row[2] for row in cells)


@pytest.mark.parametrize("file", sorted({file for file, _, _ in CHECKS}))
def test_the_checks_exist(file):
    """Each test is there, and its module compares with the peer that the table names."""
    text = (ROOT / file).read_text()
    tests = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}

    assert {test for at, test, _ in CHECKS if at == file} <= tests
    assert [peer for at, _, peer in CHECKS if at == file and PEERS[peer] not in text] == []
