"""Row-wise: whether an expression gives each row the same value, whatever rows come with it.

Rows are transformed in pieces, and one by one where a model is served. An expression such as `x - x.mean()` would be
computed over whatever piece comes along: in its place belongs an analyzer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import polars as pl

from spanwise.components.transform.analyzers import PreprocessingError
from spanwise.components.transform.graph import evaluate, feature_label
from spanwise.components.transform.trace import format_expression

_AGGREGATIONS = frozenset({"Agg", "Len", "Over", "Rolling", "Slice", "Filter", "Sort", "SortBy", "Gather", "Explode"})
"""How Polars calls, in its JSON form of an expression, what looks at several rows."""

_INSTEAD = (
    "Rows are transformed in pieces and served one by one, so a value may depend on its own row alone; what is to be "
    "learned from all rows belongs in an analyzer: mean(…), quantile(…), scale_to_z_score(…), or one of your own."
)


def refuse_unless_row_wise(who: str, expression: pl.Expr) -> None:
    """Reads the expression, without data; it cannot see into functions of Python.

    Raises:
        PreprocessingError: it looks at several rows at once.
    """
    try:
        written = expression.meta.serialize(format="json")
    except pl.exceptions.PolarsError:
        return  # some functions of Python have no such form; `probe` looks at what they do
    names = set(_names(json.loads(written)))
    aggregations = names & _AGGREGATIONS
    if aggregations or not (_is_separable(expression) or "SearchSorted" in names):
        what = f" ({', '.join(sorted(aggregations))})" if aggregations else ""
        raise PreprocessingError(
            f"{who} looks at several rows at once{what}: {format_expression(expression)}. {_INSTEAD}"
        )


def probe(named: Mapping[str, pl.Expr], frame: pl.DataFrame, label: Callable[[str], str] = feature_label) -> None:
    """Computes the expressions over a few rows at once and in two parts.

    Raises:
        PreprocessingError: the values differ; or an expression fails.
    """
    half = len(frame) // 2
    if not half or not named:
        return
    whole = evaluate(named, frame, label)
    parts = pl.concat([evaluate(named, piece, label) for piece in (frame.head(half), frame.tail(len(frame) - half))])
    for name, one, other in zip(named, whole.get_columns(), parts.get_columns(), strict=True):
        if not one.equals(other, null_equal=True):
            raise PreprocessingError(
                f"{label(name)} has other values when its rows come in two parts: {format_expression(named[name])}. "
                f"{_INSTEAD}"
            )


def _is_separable(expression: pl.Expr) -> bool:
    meta = expression.meta
    try:
        # a constant is neither, and as good as any
        return (meta.is_row_separable() and meta.is_length_preserving()) or meta.is_scalar()
    except pl.exceptions.PolarsError:
        return True  # it cannot tell without the types of the columns


def _names(node: object) -> Iterator[str]:
    """The names of all parts of an expression in JSON form, but not what literals hold."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield key
            if key not in ("Literal", "Column", "Alias"):
                yield from _names(value)
            elif key == "Alias":
                yield from _names(value[0])
    elif isinstance(node, list):
        for each in node:
            yield from _names(each)
    elif isinstance(node, str):
        yield node
