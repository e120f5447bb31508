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
    least: int = 0
    words: tuple[str, ...] = ()  #: what its values are also called, from the least on

    def number(self, text: str) -> int | None:
        """The value that a text names; None where it names none, or one that is not a plain number."""
        if text in self.words:
            return self.least + self.words.index(text)
        return int(text) if text.isascii() and text.isdigit() else None


_FIELDS = (
    CronField("minute", "0 to 59", 60),
    CronField("hour", "0 to 23", 24),
    CronField("day of the month", "1 to 31, or L for the last", 31, least=1),
    CronField(
        "month",
        "1 to 12, or jan to dec",
        12,
        least=1,
        words=("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    ),
    CronField(
        "day of the week",
        "0 to 7 (0 and 7 are Sunday), or sun to sat",
        7,
        words=("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
    ),
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
_STEPPED_RANGE = re.compile(r"(\w+)-(\w+)/(\d+)")
_STEP = re.compile(r"/(\d+)")
CRON_EXAMPLE = "The fields are minute, hour, day, month and weekday: '0 3 * * *' is each day at 03:00."
LONG_AGO = datetime(2000, 1, 1)  # noqa: DTZ001  wall time


@dataclass(frozen=True)
class CronExpression:
    """A cron expression that was parsed."""

    texts: tuple[str, ...]  #: its fields; where it fires on either kind of day, once for each
    seed: str  #: what the values of its `H` fields are derived from
    every_hour: bool  #: it names all hours
    either_day: bool  #: it names days of the month and days of the week, and fires on both
    tick_format: str  #: how finely its ticks are named

    def next_after(self, wall: datetime) -> datetime:
        """The first wall time after another that the expression names."""
        return min(found for text in self.texts if (found := _next(text, self.seed, wall)) is not None)

    def last_before(self, wall: datetime) -> datetime:
        """The last wall time before another that the expression names."""
        return max(found for text in self.texts if (found := _previous(text, self.seed, wall)) is not None)


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
    text = " ".join(_spell_out(part, kind) for part, kind in zip(parts, _FIELDS, strict=False))
    seed = pipeline if any(_CHOSEN.fullmatch(part) for part in parts) else ""
    try:
        expanded = _croniter(text, seed).expanded
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ScheduleError(
            f"cron {cron!r} is invalid: {_culprit(parts, pipeline) or error}. {CRON_EXAMPLE}"
        ) from error
    either_day = ["*"] not in (expanded[_DAY_FIELD], expanded[_WEEKDAY_FIELD])
    expression = CronExpression(
        texts=_each_day(text) if either_day else (text,),
        seed=seed,
        every_hour="*" in expanded[_HOUR_FIELD] or len(expanded[_HOUR_FIELD]) == _HOURS,
        either_day=either_day,
        tick_format="%Y-%m-%dT%H:%M:%S" if len(parts) == _SIX else "%Y-%m-%dT%H:%M",
    )
    if all(_next(each, seed, LONG_AGO) is None for each in expression.texts):
        day = f"day {parts[_DAY_FIELD]} in month {parts[_MONTH_FIELD]}"
        raise ScheduleError(f"cron {cron!r} names no date at all: there is no {day}. {CRON_EXAMPLE}")
    return expression


def _each_day(text: str) -> tuple[str, ...]:
    """One expression for each kind of day; by itself, croniter takes `1 * fri#2` for days that are both."""
    fields = text.split()
    return tuple(
        " ".join("*" if place == other else each for place, each in enumerate(fields))
        for other in (_WEEKDAY_FIELD, _DAY_FIELD)
    )


def _spell_out(part: str, kind: CronField) -> str:
    """A field whose ranges over its end that go in steps are lists: croniter miscounts those, as in `10-4/3`."""
    return ",".join(_spell_out_range(item, kind) for item in part.split(","))


def _spell_out_range(item: str, kind: CronField) -> str:
    found = _STEPPED_RANGE.fullmatch(item)
    first, last = (None, None) if found is None else (kind.number(found[1]), kind.number(found[2]))
    top = kind.least + kind.count
    if found is None or first is None or last is None or not kind.least <= last < first < top or not int(found[3]):
        return item
    values = range(first, last + kind.count + 1, int(found[3]))
    return ",".join(str(value if value < top else value - kind.count) for value in values)


def _check_field(cron: str, part: str, kind: CronField) -> None:
    if (chosen := _CHOSEN.fullmatch(part)) and part.startswith("r"):
        raise ScheduleError(
            f"cron {cron!r}: {chosen[0].upper()} draws the {kind.name} anew in every process, so two schedulers "
            f"would not agree on it. Write H, which is derived from the pipeline's name, or jitter_s=."
        )
    for first, last in _RANGE.findall(part):
        if first == last or _is_one(kind.number(first), kind.number(last), kind):
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


def _is_one(first: int | None, last: int | None, kind: CronField) -> bool:
    """Whether a range begins and ends at one value; from 0 to 7 it is a whole week."""
    return first is not None and last is not None and first >= last and (first - last) % kind.count == 0


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
def _next(text: str, seed: str, wall: datetime) -> datetime | None:
    """The first wall time after another that an expression names; None if there is none for decades."""
    try:
        found: datetime = copy.copy(_croniter(text, seed)).get_next(datetime, start_time=wall)
    except ValueError:  # CroniterBadDateError is one
        return None
    return found


@lru_cache(maxsize=8192)
def _previous(text: str, seed: str, wall: datetime) -> datetime | None:
    """The last wall time before another that an expression names; None if there is none for decades."""
    try:
        found: datetime = copy.copy(_croniter(text, seed)).get_prev(datetime, start_time=wall)
    except ValueError:
        return None
    return found
