"""Row-wise: whether an expression gives each row the same value each time, whatever rows come with it.

Rows are transformed in pieces, and one by one where a model is served. An expression such as `x - x.mean()` would be
computed over whatever piece comes along: in its place belongs an analyzer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import polars as pl

from spanwise.components.transform.analyzers import PreprocessingError
from spanwise.components.transform.expression_tree import Json, read_expression
from spanwise.components.transform.graph import evaluate, feature_label, type_of
from spanwise.components.transform.trace import format_expression

_AGGREGATIONS = frozenset({"Agg", "Len", "Over", "Rolling", "Slice", "Filter", "Sort", "SortBy", "Gather", "Explode"})
"""How Polars calls, in its JSON form of an expression, what looks at several rows."""

_INSTEAD = (
    "Rows are transformed in pieces and served one by one, so a value may depend on its own row alone; what is to be "
    "learned from all rows belongs in an analyzer: mean(…), quantile(…), scale_to_z_score(…), or one of your own."
)


def refuse_unless_row_wise(who: str, expression: pl.Expr, types: Mapping[str, pl.DataType]) -> None:
    """Reads the expression over columns of these types, without data; it cannot see into functions of Python.

    Raises:
        PreprocessingError: it looks at several rows at once, or has another value each time.
    """
    try:
        written = json.loads(expression.meta.serialize(format="json"))
    except pl.exceptions.PolarsError:
        return  # some functions of Python have no such form; `probe` looks at what they do
    for name, way_out in _changing(written):
        raise PreprocessingError(
            f"{who} has other values each time that it is computed ({name}), so those served would not be those "
            f"of training: {format_expression(expression)}. {way_out}"
        )
    names = set(_names(written))
    aggregations = names & _AGGREGATIONS
    whole = "SearchSorted" in names or _is_separable(expression)
    if aggregations or not whole or not all(_takes_row_by_row(call, types) for call in _calls(written)):
        what = f" ({', '.join(sorted(aggregations))})" if aggregations else ""
        raise PreprocessingError(
            f"{who} looks at several rows at once{what}: {format_expression(expression)}. {_INSTEAD}"
        )


def probe(
    named: Mapping[str, pl.Expr],
    frame: pl.DataFrame,
    parts: Sequence[pl.DataFrame],
    label: Callable[[str], str] = feature_label,
) -> None:
    """Computes the expressions over rows at once, and over the first of them in parts.

    Raises:
        PreprocessingError: the values differ; or an expression fails.
    """
    apart = pl.concat([evaluate(named, part, label) for part in parts])
    together = evaluate(named, frame, label).head(len(apart))
    for name, one, other in zip(named, together.get_columns(), apart.get_columns(), strict=True):
        if not one.equals(other, null_equal=True):
            raise PreprocessingError(
                f"{label(name)} has other values when its rows come in parts: {format_expression(named[name])}. "
                f"{_INSTEAD}"
            )


def probe_halves(
    named: Mapping[str, pl.Expr], frame: pl.DataFrame, label: Callable[[str], str] = feature_label
) -> None:
    """Probes the expressions with the rows in two parts."""
    half = len(frame) // 2
    if half and named:
        probe(named, frame, (frame.head(half), frame.tail(len(frame) - half)), label)


def calls_python(expression: pl.Expr) -> bool:
    """Whether it calls a function of Python: what that looks at cannot be read."""
    try:
        written = expression.meta.serialize(format="json")
    except pl.exceptions.PolarsError:
        return True
    return any(f'"{name}":' in written for name in ("AnonymousFunction", "PipeWithDtype", "callback"))


def _is_separable(expression: pl.Expr) -> bool:
    meta = expression.meta
    try:
        if meta.is_scalar():
            return not meta.root_names()  # a constant is as good as any
        return meta.is_row_separable() and meta.is_length_preserving()
    except pl.exceptions.PolarsError:
        return True  # it cannot tell without the types of the columns


def _changing(node: Json) -> Iterator[tuple[str, str]]:
    """The functions, also within lists, that draw without a seed or order their values at random; and the way out."""
    if isinstance(node, list):
        for each in node:
            yield from _changing(each)
    elif isinstance(node, dict):
        for name, given in node.items():
            if name == "Literal":
                continue
            match given:
                case {"maintain_order": False} if name == "Mode":
                    yield name, "Keep the order of the values: mode(maintain_order=True)."
                case {"sort": False} if name == "ValueCounts":
                    yield name, "Sort the values by their counts: value_counts(sort=True)."
                case {"seed": None} if name != "Rank" or "Random" in _names(given):
                    yield name, "Give it a seed: seed=1."
            yield from _changing(given)


_WHOLE = {"IsIn": (1,), "Replace": (1, 2), "ReplaceStrict": (1, 2), "SearchSorted": (0,)}
"""Which inputs of a function are taken as a whole, not row by row: values to look in or up, boundaries."""


_MISJUDGED = frozenset({"ApproxQuantile", "Bin", "Cumulative"})
"""Functions of which Polars says that they are row-wise; the bins of one are, where their bounds are given."""


def _takes_row_by_row(call: Mapping[str, Json], types: Mapping[str, pl.DataType]) -> bool:
    """Whether a function by itself, whatever its inputs are made of, gives each row a value of its own.

    Polars says of an expression that it does also where only a part of it does not, such as `x - x.quantile(0.5)`.
    """
    inputs = cast("list[Json]", call["input"])
    name = _function_name(call["function"])
    for place in _WHOLE.get(name, ()):
        if place < len(inputs) and _has_column(inputs[place]):
            return name == "IsIn" and _is_list(inputs[place], types)
    if name in _MISJUDGED:
        return _bins_by_given_bounds(call["function"])
    if name == "SearchSorted":
        return True
    alone = [{"Column": "\x1a"} if _has_column(each) else each for each in inputs]
    return _is_separable(read_expression({"Function": {**call, "input": cast("Json", alone)}}))


def _bins_by_given_bounds(function: Json) -> bool:
    bins = function.get("Bin") if isinstance(function, dict) else None
    return isinstance(bins, dict) and "Breaks" in _names(bins["method"])


def _function_name(function: Json) -> str:
    if isinstance(function, dict) and "Boolean" in function:
        function = function["Boolean"]
    return next(iter(function), "") if isinstance(function, dict) else str(function)


def _is_list(node: Json, types: Mapping[str, pl.DataType]) -> bool:
    try:
        return isinstance(type_of(read_expression(node), types, ""), pl.List | pl.Array)
    except PreprocessingError:
        return True  # made of what is not known yet


def _has_column(node: Json) -> bool:
    return any(name in ("Column", "Field") for name in _names(node))


def _calls(node: Json) -> Iterator[Mapping[str, Json]]:
    """The functions of an expression in JSON form, with their inputs; not those that are evaluated within lists.

    `cumulative_eval` counts as one: it evaluates over the rows so far.
    """
    if isinstance(node, list):
        for each in node:
            yield from _calls(each)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "Function" and isinstance(value, dict) and "input" in value:
                yield value
            if key == "Eval" and isinstance(value, dict):
                yield from _calls(value["expr"])
                if "Cumulative" in _names(value["variant"]):
                    yield {"function": "Cumulative", "input": [value["expr"]]}
            elif key != "Literal":
                yield from _calls(value)


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
