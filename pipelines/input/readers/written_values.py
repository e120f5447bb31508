"""Written values: what texts say as values of a type, by one rule for CSV, strings of JSON and columns of text.

pyarrow converts them. What it converts otherwise than it is written is found here: hexadecimal numbers, numbers too
large for their type, whole numbers that a floating-point type would round, and numbers that it takes for booleans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from spanwise.pipelines.input.readers.column import exact_below, is_exact

if TYPE_CHECKING:
    from typing import TypeAlias

    Values: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"

TRUE = ("true", "True", "TRUE")
FALSE = ("false", "False", "FALSE")
_FLAG = f"^({'|'.join(TRUE + FALSE)})$"
#: What is written like a number, and read by pyarrow as one: IDs and addresses.
_HEX = r"^\s*[+-]?0[xX]"
_WHOLE = r"^\s*[+-]?\d+\s*$"
_INFINITE = r"(?i)^\s*[+-]?inf(inity)?\s*$"
_TIME = r"^\d{2}:\d{2}"


def read_texts(texts: Values, wanted: pa.DataType) -> Values:
    """The values that texts say. Fractions are rounded to the nearest of their type, whole numbers never.

    Raises:
        pa.ArrowInvalid: a text says no value of the type.
        pa.ArrowNotImplementedError: texts say none.
    """
    types = pa.types
    if types.is_time(wanted):
        return _read_times(texts, wanted)
    if types.is_boolean(wanted) and not _all_match(texts, _FLAG):
        raise pa.ArrowInvalid("neither true nor false")
    if types.is_integer(wanted) and has_hex(texts):
        raise pa.ArrowInvalid("a hexadecimal number")
    values: Values = pc.cast(cast("Any", texts), wanted, safe=True)
    if may_have_lost(values):
        refuse_loss(texts, values)
    return values


def _read_times(texts: Values, wanted: Any) -> Values:
    """Times of day, for which Arrow has no cast from text; hours and minutes at least."""
    if not _all_match(texts, _TIME):
        raise pa.ArrowInvalid("no time of day")
    instants = pc.cast(cast("Any", pc).binary_join_element_wise("1970-01-01T", texts, ""), pa.timestamp(wanted.unit))
    return cast("Values", pc.cast(instants, wanted))


def has_hex(texts: Values) -> bool:
    """Whether a number is written in hexadecimal."""
    return bool(pc.any(pc.match_substring_regex(cast("Any", texts), _HEX)).as_py())


def may_have_lost(numbers: Values) -> bool:
    """Whether numbers are so large that they may be others than are written: a reason to look at the texts."""
    return pa.types.is_floating(numbers.type) and largest(pc.cast(numbers, pa.float64())) >= exact_below(numbers.type)


def refuse_loss(texts: Values, numbers: Values) -> None:
    """Refuses floating-point numbers that are others than their texts say.

    Raises:
        pa.ArrowInvalid: one is infinite though its text is not, or is another whole number.
    """
    wide = pc.cast(cast("Any", numbers), pa.float64())
    infinite = cast("Any", texts).filter(pc.is_inf(wide))
    if not _all_match(infinite, _INFINITE):
        raise pa.ArrowInvalid("a number that is too large")
    large = pc.greater_equal(pc.abs(wide), pa.scalar(exact_below(numbers.type)))
    whole = cast("Any", texts).filter(pc.and_(pc.match_substring_regex(cast("Any", texts), _WHOLE), large))
    # few columns have any, and the first that is rounded ends the search
    if not all(is_exact(str(text), numbers.type) for text in pc.unique(whole).to_pylist()):
        raise pa.ArrowInvalid(f"a whole number that {numbers.type} would round")


def largest(numbers: Values) -> float:
    """The largest absolute value; 0 if there is none. NaN is not larger than anything."""
    found = pc.max(pc.abs(cast("Any", numbers))).as_py()
    return 0.0 if found is None or found != found else float(found)  # noqa: PLR0124 -- NaN


def _all_match(texts: Values, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(cast("Any", texts), pattern), min_count=0).as_py())
