"""Names: no two classes of the package share one, since one name has one meaning."""

import ast
from collections import defaultdict
from pathlib import Path

PROJECT = Path(__file__).parents[1]
FOLDERS = ["components", "orchestrator", "pipelines", "resolvers", "scheduler"]


def test_no_two_classes_share_a_name() -> None:
    """Private ones included: who searches for a name finds one class."""
    homes: dict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((PROJECT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    homes[node.name.lstrip("_")].append(str(path.relative_to(PROJECT)))

    assert {name: places for name, places in homes.items() if len(places) > 1} == {}
