"""Bounds: whether a computed number keeps to the limit that a person has set. Pure.

Every inclusive bound is compared here, in this one way: thresholds of metrics, shares of values, distances of
distributions. Numbers that are equal on paper seldom are as doubles (0.9 - 0.85 is above 0.05), so a limit may be
exceeded by what rounding explains: a thousand-millionth of the numbers that are compared. That is far above the error
of a mean over millions of rows, and below what one row among as many changes.
"""

from __future__ import annotations

import math

TOLERANCE = 1e-9
"""Of the largest number that is compared."""


def is_at_most(value: float, limit: float, *, scale: float = 0.0) -> bool:
    """Whether the value is no greater than the limit; NaN never is.

    `scale` is the largest number that `value` was subtracted from: 1 for a share.
    """
    if value <= limit:
        return True
    slack = TOLERANCE * max(abs(value), abs(limit), abs(scale))
    return math.isfinite(slack) and value - limit <= slack


def is_at_least(value: float, limit: float, *, scale: float = 0.0) -> bool:
    """Whether the value is no less than the limit; NaN never is. `scale` is as for `is_at_most`."""
    return is_at_most(-value, -limit, scale=scale)


def format_apart(value: float, limit: float, digits: int, kind: str) -> tuple[str, str]:
    """A value and its limit as text: the value with so many digits, or as many as it takes to tell the two apart.

    `kind` is that of a format: "%", "f" or "g".
    """
    texts = [(f"{value:.{n}{kind}}", f"{limit:.{n}{kind}}") for n in range(digits, 18)]
    found, most = next((pair for pair in texts if pair[0] != pair[1]), texts[0])
    return found, most if kind == "%" else f"{limit:.15g}"
