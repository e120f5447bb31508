"""Durations: how long runs take, as a distribution to draw from. Pure; the dice are an argument."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from spanwise.orchestrator.errors import UsageError
from spanwise.scheduler.formatting import format_duration

_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)")
_CALL = re.compile(r"(\w+)\s*\(\s*([^,()]+?)\s*,\s*([^,()]+?)\s*\)")
_NORMAL_95 = 1.6448536269514722  # the 95th percentile of a normal distribution, in standard deviations
_LEAST_S = 1.0
_KINDS = {
    "normal": "mean and standard deviation",
    "uniform": "shortest and longest",
    "lognormal": "median and 95th percentile",
}
_EXAMPLE = "Write 2h, normal(2h,30m), uniform(1h,3h) or lognormal(2h,5h)."


def parse_length(text: str) -> timedelta:
    """Parses a length of time: `90s`, `30m`, `2h`, `1h30m`, `1.5d`.

    Raises:
        UsageError: it is not a length of time.
    """
    parts = _LENGTH.findall(text)
    if not parts or _LENGTH.sub("", text).strip():
        raise UsageError(f"{text!r} is not a length of time; write for example 90s, 30m, 2h, 1h30m or 1d.")
    return timedelta(seconds=sum(float(number) * _UNITS_S[unit] for number, unit in parts))


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long runs take."""

    kind: str  #: constant, normal, uniform, lognormal or history
    values_s: tuple[float, ...]  #: its two parameters; the one length of a constant; all lengths of a history

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Reads `2h`, `normal(mean,deviation)`, `uniform(shortest,longest)` or `lognormal(median,95th percentile)`.

        Raises:
            UsageError: it is none of these, or its parameters are wrong.
        """
        call = _CALL.fullmatch(text.strip())
        if call is None:
            if "(" in text:
                raise UsageError(f"{text!r} is not a duration. {_EXAMPLE}")
            return cls(kind="constant", values_s=(parse_length(text).total_seconds(),))
        kind, *lengths = call.groups()
        if kind not in _KINDS:
            raise UsageError(f"{text!r}: there is no distribution {kind!r}. {_EXAMPLE}")
        low, high = (parse_length(part).total_seconds() for part in lengths)
        if (kind != "normal" and low > high) or (kind == "lognormal" and low <= 0):
            raise UsageError(f"{text!r}: {kind} takes {_KINDS[kind]}, the smaller first. {_EXAMPLE}")
        return cls(kind=kind, values_s=(low, high))

    @classmethod
    def of(cls, lengths_s: Sequence[float]) -> Duration:
        """The durations of past runs, each as likely as the others.

        Raises:
            UsageError: there are none.
        """
        if not lengths_s:
            raise UsageError(f"There is no complete run whose duration could be taken. {_EXAMPLE}")
        return cls(kind="history", values_s=tuple(lengths_s))

    def __str__(self) -> str:
        if self.kind == "constant":
            return format_duration(self.values_s[0])
        if self.kind == "history":
            return f"as long as one of the last {len(self.values_s)} runs"
        low, high = self.values_s
        return f"{self.kind}({format_duration(low)}, {format_duration(high)})"

    def draw(self, dice: random.Random) -> timedelta:
        """One duration, at least a second."""
        match self.kind:
            case "constant" | "history":
                drawn = dice.choice(self.values_s)
            case "normal":
                drawn = dice.gauss(*self.values_s)
            case "uniform":
                drawn = dice.uniform(*self.values_s)
            case _:
                median, p95 = self.values_s
                drawn = median * math.exp(dice.gauss(0.0, math.log(p95 / median) / _NORMAL_95))
        return timedelta(seconds=round(max(drawn, _LEAST_S)))
