"""Cron expressions: the wall times that they name, as if there were no zones. Pure; the only door to croniter."""

from __future__ import annotations

import copy
import difflib
import functools
import platform
import re
import struct
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from spanwise.orchestrator.errors import ScheduleError

if TYPE_CHECKING:
    from croniter import croniter


@dataclass(frozen=True)
class CronField:
    """One field of a cron expression."""

    name: str
    values: str  #: which it takes, for people
    count: int  #: how many those are


_FIELDS = (
    CronField("minute", "0 to 59", 60),
    CronField("hour", "0 to 23", 24),
    CronField("day of the month", "1 to 31, or L for the last", 31),
    CronField("month", "1 to 12, or jan to dec", 12),
    CronField("day of the week", "0 to 7 (0 and 7 are Sunday), or sun to sat", 7),
    CronField("second", "0 to 59", 60),
)
_HOUR_FIELD, _DAY_FIELD, _MONTH_FIELD, _WEEKDAY_FIELD = 1, 2, 3, 4
_FIVE, _SIX = 5, 6
_HOURS = 24
_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_CHOSEN = re.compile(r"[hr](\(.*\))?(/\d+)?")  # a field that croniter chooses: by a hash, or at random
_RANGE = re.compile(r"(\w+)-(\w+)")
_STEP = re.compile(r"/(\d+)")
CRON_EXAMPLE = "The fields are minute, hour, day, month and weekday: '0 3 * * *' is each day at 03:00."
LONG_AGO = datetime(2000, 1, 1)  # noqa: DTZ001  wall time


@dataclass(frozen=True)
class CronExpression:
    """A cron expression that was parsed."""

    text: str  #: its fields
    seed: str  #: what the values of its `H` fields are derived from
    every_hour: bool  #: it names all hours
    either_day: bool  #: it names days of the month and days of the week, and fires on both
    tick_format: str  #: how finely its ticks are named

    def next_after(self, wall: datetime) -> datetime:
        """The first wall time after another that the expression names."""
        return _next(self, wall)

    def last_before(self, wall: datetime) -> datetime:
        """The last wall time before another that the expression names."""
        return _previous(self, wall)


@lru_cache(maxsize=4096)
def parse_cron(cron: str, pipeline: str) -> CronExpression:
    """Parses an expression.

    Raises:
        ScheduleError: it is invalid, or names no date at all; the message shows a valid one.
    """
    text = _NICKNAMES.get(cron.strip().lower(), cron.strip().lower())
    if text.startswith("@"):
        near = difflib.get_close_matches(text, _NICKNAMES, n=1) or ["@daily"]
        raise ScheduleError(f"cron {cron!r} is unknown; known are {', '.join(_NICKNAMES)}. Did you mean {near[0]!r}?")
    parts = text.split()
    if len(parts) not in (_FIVE, _SIX):
        raise ScheduleError(f"cron {cron!r} has {len(parts)} fields; write five, or six with seconds. {CRON_EXAMPLE}")
    for part, kind in zip(parts, _FIELDS, strict=False):
        _check_field(cron, part, kind)
    text = " ".join(parts)
    seed = pipeline if any(_CHOSEN.fullmatch(part) for part in parts) else ""
    try:
        expanded = _croniter(text, seed).expanded
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ScheduleError(
            f"cron {cron!r} is invalid: {_culprit(parts, pipeline) or error}. {CRON_EXAMPLE}"
        ) from error
    expression = CronExpression(
        text=text,
        seed=seed,
        every_hour=expanded[_HOUR_FIELD] == ["*"] or len(expanded[_HOUR_FIELD]) == _HOURS,
        either_day=["*"] not in (expanded[_DAY_FIELD], expanded[_WEEKDAY_FIELD]),
        tick_format="%Y-%m-%dT%H:%M:%S" if len(parts) == _SIX else "%Y-%m-%dT%H:%M",
    )
    try:
        _next(expression, LONG_AGO)
    except ValueError as error:  # CroniterBadDateError is one
        day = f"day {parts[_DAY_FIELD]} in month {parts[_MONTH_FIELD]}"
        raise ScheduleError(f"cron {cron!r} names no date at all: there is no {day}. {CRON_EXAMPLE}") from error
    return expression


def _check_field(cron: str, part: str, kind: CronField) -> None:
    if (chosen := _CHOSEN.fullmatch(part)) and part.startswith("r"):
        raise ScheduleError(
            f"cron {cron!r}: {chosen[0].upper()} draws the {kind.name} anew in every process, so two schedulers "
            f"would not agree on it. Write H, which is derived from the pipeline's name, or jitter_s=."
        )
    for first, last in _RANGE.findall(part):
        if first == last:
            raise ScheduleError(
                f"cron {cron!r}: the range {first}-{last} has one {kind.name}, and would be read as every {kind.name}. "
                f"Write {first}. {CRON_EXAMPLE}"
            )
    for step in _STEP.findall(part):
        if int(step) > kind.count:
            raise ScheduleError(
                f"cron {cron!r}: {part!r} steps by {step} through the {kind.name}, which takes {kind.values}; each "
                f"field counts for itself, so this would not run every {step}. {CRON_EXAMPLE}"
            )


def _culprit(parts: list[str], pipeline: str) -> str:
    """Which field is invalid; empty when each is valid by itself."""
    for place, (part, kind) in enumerate(zip(parts, _FIELDS, strict=False)):
        alone = ["*"] * len(parts)
        alone[place] = part
        try:
            _croniter(" ".join(alone), pipeline)
        except (ValueError, TypeError, KeyError, IndexError):
            return f"the {kind.name} is {part!r}; valid is {kind.values}"
    return ""


@lru_cache(maxsize=4096)
def _croniter(text: str, seed: str) -> croniter:
    return _import_croniter()(text, 0.0, hash_id=seed)


@functools.cache
def _import_croniter() -> type[croniter]:
    """Imports croniter without the command `file`, which it would start to ask for the size of a word."""
    architecture = platform.architecture
    platform.architecture = lambda *_args, **_options: (f"{struct.calcsize('P') * 8}bit", "")
    try:
        return import_module("croniter").croniter  # type: ignore[no-any-return]  # it has no types here
    finally:
        platform.architecture = architecture


@lru_cache(maxsize=8192)  # pipelines share expressions, and the tick that was next is soon the last
def _next(expression: CronExpression, wall: datetime) -> datetime:
    """The first wall time after another that the expression names."""
    found: datetime = copy.copy(_croniter(expression.text, expression.seed)).get_next(datetime, start_time=wall)
    return found


@lru_cache(maxsize=8192)
def _previous(expression: CronExpression, wall: datetime) -> datetime:
    """The last wall time before another that the expression names."""
    found: datetime = copy.copy(_croniter(expression.text, expression.seed)).get_prev(datetime, start_time=wall)
    return found
