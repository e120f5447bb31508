"""Feature types: Arrow's names of them, as statistics and schemas have them, and what two of them say together."""

from __future__ import annotations

from spanwise.pipelines.input import known_types
from spanwise.pipelines.input.readers.stored_types import parse_type

NULL = "null"
"""The type of what has no value. It says nothing, also in a list or a struct, such as in lists that were all empty."""


def agree(one: str, other: str) -> str | None:
    """The type of both, as far as either says something; None where they contradict each other.

    What a list calls its elements does not count.
    """
    if other in (one, NULL):
        return one
    if one == NULL:
        return other
    if "<" not in one or "<" not in other:
        return None  # only nested types may be alike under two names
    parsed, parsed_other = parse_type(one), parse_type(other)
    if parsed is None or parsed_other is None:
        return None
    both = known_types.agree(parsed, parsed_other)
    names = {parsed_other: other, parsed: one}
    return None if both is None else names.get(both, str(both))
