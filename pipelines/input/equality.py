"""Equality: what Python's `==` takes for one although it is not."""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable
from typing import Final

_AGAIN: Final = object()


def equal_key(value: Hashable) -> Hashable:
    """A key that two values share if they are equal, unless they are two moments that a clock shows alike.

    When summer time ends, an hour comes twice: in one zone, Python's `==` overlooks `fold`, which tells them apart.
    """
    if isinstance(value, dt.datetime) and value.fold and value.utcoffset() != value.replace(fold=0).utcoffset():
        return value, _AGAIN
    return tuple(map(equal_key, value)) if isinstance(value, tuple) else value
