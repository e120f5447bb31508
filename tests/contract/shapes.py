"""Structures of elements. Imports next to nothing: worker processes load it."""

from dataclasses import dataclass
from typing import NamedTuple


class Pair(NamedTuple):
    left: object
    right: object


@dataclass(frozen=True)
class Ride:
    fare: object
    zone: object


class Whole(NamedTuple):
    value: object


def whole(*element):
    """In a tuple of its own, so that nothing is taken apart."""
    return Whole(element[0] if len(element) == 1 else element)
