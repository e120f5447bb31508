"""Expression trees: Polars expressions as JSON, changed node by node. It does not know what is changed, nor why."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import TypeAlias

from spanwise.components.deferred_polars import pl

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"


def rewrite(expression: pl.Expr, change: Callable[[dict[str, Json]], Json]) -> pl.Expr:
    """The expression, with what `change` makes of each node, the inner ones first; literals are left as they are."""

    def walk(node: Json) -> Json:
        if isinstance(node, list):
            return [walk(each) for each in node]
        if not isinstance(node, dict) or "Literal" in node:
            return node
        return change({key: walk(value) for key, value in node.items()})

    written = expression.meta.serialize(format="json")
    return read_expression(walk(json.loads(written)))


def read_expression(node: Json) -> pl.Expr:
    """The expression of a node."""
    return pl.Expr.deserialize(io.StringIO(json.dumps(node)), format="json")
