"""Category codes: whether an expression lets the numbers show by which Polars holds categories.

They follow the order in which a process first meets the values, so where a model is served they are others than in
training. What Polars makes of categories otherwise depends on their texts; the codes of an Enum are fixed by its type.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, cast

import polars as pl

from spanwise.components.transform.analyzers import PreprocessingError
from spanwise.components.transform.expression_tree import Json, read_expression
from spanwise.components.transform.graph import type_of
from spanwise.components.transform.trace import format_expression

_OF_CODES = frozenset(
    {"ToPhysical", "Physical", "Max", "Min", "MaxHorizontal", "MinHorizontal", "PeakMax", "PeakMin", "Hash"}
)
"""How Polars calls, in its JSON form of an expression, what returns or compares codes; `Hash` does so within lists."""

_TypeOf: TypeAlias = "Callable[[Json], pl.DataType | None]"


def refuse_category_codes(who: str, expression: pl.Expr, types: Mapping[str, pl.DataType]) -> None:
    """Reads the expression over columns of these types, without data; it cannot see into functions of Python.

    Raises:
        PreprocessingError: it depends on codes of categories.
    """
    try:
        written = expression.meta.serialize(format="json")
    except pl.exceptions.PolarsError:
        return  # some functions of Python have no such form
    if not any(f'"{name}"' in written for name in _OF_CODES):
        return
    if any(_shows_codes(call, type_in) for call, type_in in _calls(json.loads(written), _typed_by(types))):
        raise PreprocessingError(
            f"{who} depends on the codes of categories, which differ from one process to the next: "
            f"{format_expression(expression)}. Number the values with vocabulary(…) or hash_buckets(…), give them a "
            "fixed order with cast(pl.Enum([…])), or cast them to text first: cast(pl.String)."
        )


def _shows_codes(call: Mapping[str, Json], type_in: _TypeOf) -> bool:
    name = _last_name(call["function"])
    if name not in _OF_CODES:
        return False
    types = [type_in(each) for each in cast("list[Json]", call["input"])]
    held = _holds_list_of_categories if name == "Hash" else _holds_categories
    return any(type_ is not None and held(type_) for type_ in types)


def _last_name(function: Json) -> str:
    """`Physical` of `{"Categorical": "Physical"}`, `Hash` of `{"Hash": 0}`."""
    if isinstance(function, dict) and function:
        key, value = next(iter(function.items()))
        return value if isinstance(value, str) else key
    return str(function)


def _holds_categories(type_: pl.DataType) -> bool:
    return isinstance(type_, pl.Categorical) or any(map(_holds_categories, _inner(type_)))


def _holds_list_of_categories(type_: pl.DataType) -> bool:
    if isinstance(type_, pl.List | pl.Array):
        return _holds_categories(type_)
    return any(map(_holds_list_of_categories, _inner(type_)))


def _inner(type_: pl.DataType) -> list[pl.DataType]:
    if isinstance(type_, pl.Struct):
        return [cast("pl.DataType", field.dtype) for field in type_.fields]
    return [cast("pl.DataType", type_.inner)] if isinstance(type_, pl.List | pl.Array) else []


def _calls(node: Json, type_in: _TypeOf) -> Iterator[tuple[Mapping[str, Json], _TypeOf]]:
    """The functions of an expression in JSON form, each with what tells the types of its inputs."""
    if isinstance(node, list):
        for each in node:
            yield from _calls(each, type_in)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "Function" and isinstance(value, dict) and "input" in value:
                yield value, type_in
            if key in _WITHIN and isinstance(value, dict):
                yield from _calls(value["expr"], type_in)
                yield from _calls(value["evaluation"], functools.partial(_WITHIN[key], type_in, value))
            elif key != "Literal":
                yield from _calls(value, type_in)


def _typed_by(types: Mapping[str, pl.DataType]) -> _TypeOf:
    def type_in(node: Json) -> pl.DataType | None:
        try:
            return type_of(read_expression(node), types, "")
        except PreprocessingError:
            return None  # made of what is not known yet

    return type_in


def _type_in_list(type_in: _TypeOf, evaluation: Mapping[str, Json], node: Json) -> pl.DataType | None:
    """The type of what stands in `list.eval(…)` or `arr.agg(…)`: of what the list holds if it stands there alone."""
    variant: Json = {"Array": {"as_list": True}} if "Array" in json.dumps(evaluation["variant"]) else "List"
    found = type_in({"Eval": {**evaluation, "evaluation": node, "variant": variant}})
    return cast("pl.DataType", found.inner) if isinstance(found, pl.List) else None


def _type_in_struct(type_in: _TypeOf, evaluation: Mapping[str, Json], node: Json) -> pl.DataType | None:
    """The type of what stands in `struct.with_fields(…)`: of a field that is made of it."""
    name = "\x1a"
    found = type_in({"StructEval": {**evaluation, "evaluation": [{"Alias": [node, name]}]}})
    fields = found.fields if isinstance(found, pl.Struct) else []
    return next((cast("pl.DataType", field.dtype) for field in fields if field.name == name), None)


_WITHIN = {"Eval": _type_in_list, "StructEval": _type_in_struct}
"""What computes expressions within lists and structs."""
