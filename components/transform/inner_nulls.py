"""Inner nulls: sums and means of lists that give each row the same bits, whatever rows come with it.

Polars adds the numbers of a list in another order when any list of the frame has a null inside, so a row that is served
alone would differ in its last bits from training, and features would change with the size of row groups. Without the
nulls, which neither a sum nor a mean counts, there is one order.
"""

from __future__ import annotations

import re

from spanwise.components.deferred_polars import pl
from spanwise.components.transform.expression_tree import Json, rewrite

_MENTIONED = re.compile(r"\.(?:list|arr)\.(?:sum|mean)\(")
_ADDING = ({"ListExpr": "Sum"}, {"ListExpr": "Mean"}, {"ArrayExpr": "Sum"}, {"ArrayExpr": "Mean"})


def drop_inner_nulls(expression: pl.Expr) -> pl.Expr:
    """The expression, with the nulls inside of lists dropped before their numbers are added."""
    if not _MENTIONED.search(str(expression)):
        return expression
    return rewrite(expression, _drop)


def _drop(node: dict[str, Json]) -> Json:
    call = node.get("Function")
    if isinstance(call, dict) and call["function"] in _ADDING:
        assert isinstance(call["function"], dict), "as listed"
        ((family, name),) = call["function"].items()
        lists = call["input"] if family == "ListExpr" else [_call(call["input"], "ArrayExpr", "ToList")]
        return _call([_call(lists, "ListExpr", "DropNulls")], "ListExpr", name)
    return node


def _call(inputs: Json, family: str, name: Json) -> Json:
    function: Json = {family: name}
    return {"Function": {"input": inputs, "function": function}}
