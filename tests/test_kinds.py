"""Kinds of artifacts: what a project's kind extends it also is, so no code compares the names of the product's own."""

import ast
from pathlib import Path

from spanwise.orchestrator import artifact

PROJECT = Path(__file__).parents[1]
FOLDERS = ["components", "orchestrator", "pipelines", "resolvers", "scheduler"]

CLASSES = {name: each for name, each in vars(artifact).items() if isinstance(each, type)}
KINDS = {name: each for name, each in CLASSES.items() if issubclass(each, artifact.Artifact) and name != "Artifact"}
NAMES = {*KINDS, *(each.kind for each in KINDS.values())}


def compares_names(node: ast.AST) -> bool:
    """`Model.kind`, wherever it stands; `artifact.kind == "Model"`; `channel.kind is Model`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "kind" and isinstance(node.value, ast.Name) and node.value.id in KINDS
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    items = [item for side in sides for item in getattr(side, "elts", [side])]
    names = {item.value if isinstance(item, ast.Constant) else getattr(item, "id", None) for item in items}
    asks = any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides)
    return asks and not NAMES.isdisjoint(names)


def test_no_code_compares_the_name_of_a_kind() -> None:
    """`artifact.is_a(Model)` holds for what extends Model too, and `issubclass` does of a class."""
    found = [
        f"{path.relative_to(PROJECT)}:{node.lineno}"  # type: ignore[attr-defined]  # those nodes have one
        for folder in FOLDERS
        for path in sorted((PROJECT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if compares_names(node)
    ]

    assert found == []


def test_a_comparison_of_names_is_recognized() -> None:
    """Every form in which the tree had one."""
    forms = [
        "a.kind == Model.kind",
        "a.kind in (Evaluation.kind, Blessing.kind)",
        "{Examples.kind: 'accepted'}",
        "record.kind not in ('Examples', 'InferenceResult')",
        "record.kind == 'ModelBlessing'",
        "c.kind is PushedModel",
    ]
    fine = ["a.is_a(Model)", "issubclass(c.kind, Model)", "kind is Schema", "a.kind == wanted"]

    found = [form for form in (*forms, *fine) if any(map(compares_names, ast.walk(ast.parse(form))))]

    assert found == forms
