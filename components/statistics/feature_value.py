"""Values of features as text for people: numbers, dates, times and booleans, by their Arrow type."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_UNIT_US = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}


def format_value(value: float, type_: str) -> str:
    """A number of a feature of an Arrow type, as people read it."""
    if type_ == "bool":
        return "true" if value else "false"
    name = type_.partition("[")[0]
    if name in ("date32", "date64", "timestamp", "time32", "time64", "duration"):
        return _format_time(value, name, type_)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):  # noqa: PLR2004  whole as a double
        return f"{int(value):,}" if abs(value) >= 10_000 else str(int(value))  # noqa: PLR2004  years need no comma
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"  # noqa: PLR2004  no exponent while it is short


def _format_time(value: float, name: str, type_: str) -> str:
    unit = type_.partition("[")[2].rstrip("]").partition(",")[0]
    try:
        span = timedelta(days=value) if unit == "day" else timedelta(microseconds=value * _UNIT_US[unit])
        moment = datetime(1970, 1, 1, tzinfo=UTC) + span
    except OverflowError:  # outside the years 1 to 9999
        return f"{value:,.0f}"
    if name == "duration":
        return str(span)
    if name.startswith("time") and name != "timestamp":
        return moment.time().isoformat()
    day = moment.date().isoformat()  # strftime has no zeros before the year 1000
    return day if name.startswith("date") else f"{day} {moment:%H:%M:%S}"
