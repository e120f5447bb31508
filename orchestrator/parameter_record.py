"""Records of parameters: the JSON text by which the metadata knows a parameter of an execution. Pure.

Records of earlier versions of spanwise have a blank behind each comma and colon, and dicts in the order of their keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from types import NoneType

from spanwise.orchestrator.code_digest import strip_addresses


def encode_parameter(value: object) -> str:
    """A parameter as JSON; functions and classes by name, dicts whose keys JSON would confuse as pairs.

    As in the cache key, dicts are in their order.
    Nothing in it says where an object is in memory: equal parameters are equal text in every run.
    """
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def is_same_parameter(one: str | None, other: str | None) -> bool:
    """Whether two records are of the same value, if of any.

    A record of an earlier version does not say in which order its dicts were.
    """
    if one is None or other is None or _is_sorted(one) == _is_sorted(other):
        return one == other
    return _sort(json.loads(one)) == _sort(json.loads(other))


def _is_sorted(record: str) -> bool:
    """Whether it is of an earlier version, which sorted keys."""
    return record == json.dumps(json.loads(record), ensure_ascii=False)


def _sort(value: object) -> str:
    if isinstance(value, list):
        texts = [_sort(each) for each in value]
        are_pairs = all(isinstance(each, list) and len(each) == 2 for each in value)  # noqa: PLR2004
        return str(sorted(texts) if are_pairs else texts)
    if isinstance(value, dict):
        return str(sorted((name, _sort(each)) for name, each in value.items()))
    return json.dumps(value)


def _plain(value: object) -> object:  # noqa: PLR0911  a table of kinds
    """What JSON can hold instead of a value."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(mode="json"))
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, set | frozenset):
        return [_plain(each) for each in sorted(value, key=repr)]
    return _text(value)


def _plain_mapping(value: Mapping[object, object]) -> object:
    pairs = [(key, _plain(each)) for key, each in value.items()]
    kinds = {type(key) for key in value}
    if len(kinds) <= 1 and all(issubclass(kind, int | float | str | NoneType) for kind in kinds):
        return dict(pairs)
    return [[_plain(key), each] for key, each in pairs]


def _text(value: object) -> str:
    """An object by its own text; one that has none by its class and the numbers in it: texts may be secrets."""
    kind = type(value)
    if kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__:
        return strip_addresses(str(value))
    given = (f"{n}={v!r}" for n, v in getattr(value, "__dict__", {}).items() if isinstance(v, int | float))
    return f"{kind.__module__}:{kind.__qualname__}({', '.join(given)})"
