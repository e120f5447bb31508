"""Which statements at the top of a module may change something elsewhere."""

import ast

import pytest

from spanwise.orchestrator.statements import find_statements
from spanwise.orchestrator.user_code import NameUse


def found(text):
    return [(each.target.name, *each.target.attributes) for each in find_statements(ast.parse(text))]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("a.b.seed(1)", "a.b.seed"),
        ("a().b = 1", "a"),
        ("a.b['c'] = 1", "a.b"),
        ("a.b += 1", "a.b"),
        ("a.b: int = 1", "a.b"),
        ("del a.b", "a.b"),
        ("a.b, [*c.d] = 1, 2", "a.b c.d"),
        ("_ = a.seed(1)", "a.seed"),
        ("setattr(a.b, 'c', 1)", "a.b"),
        ("vars(a)['c'] = 1", "a"),
        ("if a: b.seed(1)\nelif c: d.seed(2)\nelse: e.seed(3)", "b.seed d.seed e.seed"),
        ("try: a.seed(1)\nexcept E: b.seed(2)\nfinally: c.seed(3)", "a.seed b.seed c.seed"),
        ("for a in b:\n    with c: d.seed(a)", "d.seed"),
        ("match a:\n    case 1: b.seed(1)", "b.seed"),
        ("@a.register\ndef b(): c.seed(1)", "a.register"),
    ],
)
def test_what_may_change_something_elsewhere_is_found(text, target):
    """Calls for their effect, assignments to attributes and items, and decorators that register, wherever they stand."""
    assert [".".join(each) for each in found(text)] == target.split()


@pytest.mark.parametrize(
    "text",
    [
        "a = b.seed(1)",
        "a += 1",
        "a: int = 1",
        "def a(): b.seed(1)",
        "class A:\n    b.seed(1)",
        "@a.cache\ndef b(): pass",
        "if __name__ == '__main__':\n    a.seed(1)",
        "import a",
        "'text'",
    ],
)
def test_what_only_binds_names_is_not_found(text):
    """What a name of the module means is for those to ask that use it."""
    assert found(text) == []


def test_a_statement_names_what_it_takes():
    """The values are those of its arguments and of the conditions around it, but not what a loop sets."""
    (statement,) = find_statements(ast.parse("if FAST:\n    for name in ALL:\n        a.set(name, b.C, d[E])"))

    assert [(use.name, *use.attributes) for use in statement.uses] == [
        ("FAST",), ("ALL",), ("a", "set"), ("b", "C"), ("d",), ("E",),
    ]  # fmt: skip
    assert statement.text == "FAST\nname\nALL\na.set(name, b.C, d[E])"
    assert statement.target == NameUse("a", ("set",), is_global=True)
