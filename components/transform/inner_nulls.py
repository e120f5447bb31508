"""Inner nulls: sums and means of lists that give each row the same bits, whatever rows come with it.

Polars adds the numbers of a list in another order when any list of the frame has a null inside, so a row that is served
alone would differ in its last bits from training, and features would change with the size of row groups. Without the
nulls, which neither a sum nor a mean counts, there is one order.
"""

from __future__ import annotations

import io
import json
import re
from typing import TypeAlias

from spanwise.components.deferred_polars import pl

Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"

_MENTIONED = re.compile(r"\.(?:list|arr)\.(?:sum|mean)\(")
_ADDING = ({"ListExpr": "Sum"}, {"ListExpr": "Mean"}, {"ArrayExpr": "Sum"}, {"ArrayExpr": "Mean"})


def drop_inner_nulls(expression: pl.Expr) -> pl.Expr:
    """The expression, with the nulls inside of lists dropped before their numbers are added."""
    if not _MENTIONED.search(str(expression)):
        return expression
    written = expression.meta.serialize(format="json")
    return pl.Expr.deserialize(io.StringIO(json.dumps(_rewrite(json.loads(written)))), format="json")


def _rewrite(node: Json) -> Json:
    if isinstance(node, list):
        return [_rewrite(each) for each in node]
    if not isinstance(node, dict):
        return node
    if "Literal" in node:
        return node
    found = {key: _rewrite(value) for key, value in node.items()}
    call = found.get("Function")
    if isinstance(call, dict) and call["function"] in _ADDING:
        assert isinstance(call["function"], dict), "as listed"
        ((family, name),) = call["function"].items()
        lists = call["input"] if family == "ListExpr" else [_call(call["input"], "ArrayExpr", "ToList")]
        return _call([_call(lists, "ListExpr", "DropNulls")], "ListExpr", name)
    return found


def _call(inputs: Json, family: str, name: Json) -> Json:
    function: Json = {family: name}
    return {"Function": {"input": inputs, "function": function}}
