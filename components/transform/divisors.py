"""Divisors: quotients that give each row the same bits, whatever rows come with it.

Polars divides by the values of a column, but multiplies by the inverse of a constant. What a condition chooses is a
constant where it is the same for all rows of a piece, as it is for a row that is served alone, and a column elsewhere.
"""

from __future__ import annotations

import json
import re
from typing import cast

from spanwise.components.deferred_polars import pl
from spanwise.components.transform.expression_tree import Json, rewrite

_MENTIONED = re.compile(r" / \(.*(?:when|coalesce)\(", re.DOTALL)


def spread_divisors(expression: pl.Expr) -> pl.Expr:
    """The expression, with each divisor that a condition chooses multiplied by a column of ones."""
    if not _MENTIONED.search(str(expression)):
        return expression
    return rewrite(expression, _spread)


def _spread(node: dict[str, Json]) -> Json:
    call = node.get("BinaryExpr")
    if isinstance(call, dict) and call["op"] == "TrueDivide" and _is_chosen(call["right"]):
        leaf = _find_leaf(call["right"])
        if leaf is not None:
            right: Json = {"op": "Multiply", "left": call["right"], "right": _make_ones(leaf)}
            node["BinaryExpr"] = {**call, "right": {"BinaryExpr": right}}
    return node


def _is_chosen(node: Json) -> bool:
    """Whether a condition chooses the value, or a part of it."""
    if isinstance(node, list):
        return any(map(_is_chosen, node))
    if not isinstance(node, dict) or "Literal" in node:
        return False
    call = node.get("Function")
    chosen = "Ternary" in node or (isinstance(call, dict) and call["function"] == "Coalesce")
    return chosen or any(map(_is_chosen, node.values()))


def _find_leaf(node: Json) -> Json:
    """A column, or an element of a list, that the value is made of; None of a constant."""
    if node == "Element" or (isinstance(node, dict) and ("Column" in node or "Field" in node)):
        return node
    if isinstance(node, dict):
        node = [] if "Literal" in node else list(node.values())
    found = map(_find_leaf, node) if isinstance(node, list) else iter(())
    return next((leaf for leaf in found if leaf is not None), None)


def _make_ones(leaf: Json) -> Json:
    """A whole number for each row, which is 1, and no constant for Polars."""
    column = pl.col("_")
    ones = (column.is_null() | column.is_not_null()).cast(pl.UInt8)
    written = ones.meta.serialize(format="json")
    return cast("Json", json.loads(written.replace(column.meta.serialize(format="json"), json.dumps(leaf))))
