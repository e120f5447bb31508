"""What is due: which ticks have come since the last recorded one, which of them run, and which were missed. Pure.

It reads no clock and keeps nothing, so that whoever asks again gets the same answer until a tick has been recorded. A
tick never comes early: its moment, and its jitter, have passed by `now`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime, timedelta

from spanwise.scheduler.formatting import format_duration
from spanwise.scheduler.schedule.ticks import Tick, latest, starts, ticks
from spanwise.scheduler.schedule.timetable import Catchup, Timetable

LISTED = 100
"""So many missed ticks are listed one by one, or `catchup_limit` where that is more; older ones are summed up."""

ON_TIME_S = 60.0
"""Without a misfire grace, a tick that is later than this was missed, not merely noticed a little late."""

WALKED = 2000
"""So many older ticks are walked through, for their spans and the pauses that they fell into; no more are."""

_SECOND = timedelta(seconds=1)
_ZERO = timedelta(0)


@dataclass(frozen=True, kw_only=True)
class MissedTick:
    """A tick that has come and does not run."""

    tick: Tick
    why: str


@dataclass(frozen=True, kw_only=True)
class OlderTicks:
    """Missed ticks before the listed ones, in a gap that is too long to list them."""

    first: datetime
    last: datetime
    about: int  #: how many there were, from how close the first of them stood
    ticks: tuple[Tick, ...] = ()  #: all of them, where they were walked through
    why: str = ""  #: why they did not run, where more is known than that they passed


@dataclass(frozen=True, kw_only=True)
class DueTicks:
    """What to do now. Record what was missed first: a tick is recorded after those before it."""

    run: tuple[Tick, ...] = ()
    """To run, the oldest first. Several are a catch-up: each starts when the one before has ended, and until then
    nothing else is due, so start the first and ask again after its run."""
    missed: tuple[MissedTick, ...] = ()  #: all before those that run, the oldest first
    older: tuple[OlderTicks, ...] = ()  #: missed as well, the oldest first
    next: Tick | None = None  #: the first that has not come yet; None after the end of the schedule
    set_back: timedelta = _ZERO  #: how far the clock stands before the last recorded tick; nothing is due until then


def find_due(timetable: Timetable, since: datetime, now: datetime, *, paused: str = "") -> DueTicks:
    """What has become of the ticks after `since`, when it is `now`.

    `since` is the last recorded tick's moment, or the one from which the schedule counts: nothing at or before it ever
    runs again, whatever the clock says. `paused` says why no tick runs, when none does.
    """
    listed = max(LISTED, timetable.catchup_limit)
    come: list[Tick] = []
    following = None
    for tick in ticks(timetable, since):
        if starts(timetable, tick) > now:
            following = tick
            break
        come.append(tick)
        if len(come) > listed:
            return _after_a_gap(timetable, come, now, paused)
    run, missed = _choose(timetable, come, now, paused)
    return DueTicks(run=run, missed=missed, next=following, set_back=max(since - now, _ZERO))


def must_wait(found: DueTicks, timetable: Timetable, began: datetime) -> bool:
    """Whether what is due waits for the end of a run that began then, and so has not been overrun by it.

    A tick that had come before the run began does, and so does a catch-up of several.
    """
    return len(found.run) > 1 or any(starts(timetable, tick) <= began for tick in found.run)


def _after_a_gap(timetable: Timetable, first: list[Tick], now: datetime, paused: str) -> DueTicks:
    """What is due after more ticks than are listed: the newest are found going back from now."""
    before, *newest = _newest_ticks(timetable, now, len(first))
    run, missed = _choose(timetable, newest, now, paused)
    apart = (first[-1].at - first[0].at) / (len(first) - 1)
    older = OlderTicks(first=first[0].at, last=before.at, about=_round(1 + (before.at - first[0].at) / apart))
    return DueTicks(run=run, missed=missed, older=(older,), next=next(ticks(timetable, newest[-1].at), None))


def list_older(timetable: Timetable, older: OlderTicks) -> tuple[Tick, ...]:
    """Older ticks one by one, the oldest first; none where they are more than `WALKED`."""
    if older.about > 2 * WALKED:
        return ()
    found = tuple(itertools.islice(ticks(timetable, older.first - _SECOND, older.last), WALKED + 1))
    return found if len(found) <= WALKED else ()


def _newest_ticks(timetable: Timetable, now: datetime, count: int) -> list[Tick]:
    """The last `count` ticks that have come, the oldest first; there are as many."""
    newest: list[Tick] = []
    moment = now
    while len(newest) < count and (tick := latest(timetable, moment)) is not None:
        moment = tick.at - _SECOND
        if starts(timetable, tick) <= now:
            newest.append(tick)
        else:
            newest.clear()  # what comes after it waits for it
    return newest[::-1]


def _round(count: float) -> int:
    """A count to two digits."""
    whole = round(count)
    scale = int(10 ** max(len(str(whole)) - 2, 0))
    return round(whole / scale) * scale


def _choose(
    timetable: Timetable, come: list[Tick], now: datetime, paused: str
) -> tuple[tuple[Tick, ...], tuple[MissedTick, ...]]:
    """Which of the ticks that have come run, and why the others do not."""
    reasons = [paused or _reason(timetable, tick, now, len(come) - 1 - place) for place, tick in enumerate(come)]
    run = tuple(tick for tick, reason in zip(come, reasons, strict=True) if not reason)
    return run, tuple(MissedTick(tick=t, why=reason) for t, reason in zip(come, reasons, strict=True) if reason)


def _reason(timetable: Timetable, tick: Tick, now: datetime, newer: int) -> str:
    """Why a tick that has come does not run, when so many newer ones have come; empty when it does."""
    late_s = (now - starts(timetable, tick)).total_seconds()
    skips, grace_s = timetable.catchup is Catchup.SKIP, timetable.misfire_grace_s
    if skips and late_s > (ON_TIME_S if grace_s is None else grace_s):
        return f"noticed {format_duration(late_s)} late, and missed ticks do not run later (catchup=skip)"
    if grace_s is not None and late_s > grace_s:
        return f"noticed {format_duration(late_s)} late, more than the misfire grace of {format_duration(grace_s)}"
    if timetable.catchup is Catchup.ALL:
        limit = timetable.catchup_limit
        return f"older than the newest {limit}, which still run (catchup_limit={limit})" if newer >= limit else ""
    if newer:
        return f"noticed {format_duration(late_s)} late, when a newer one had come (catchup={timetable.catchup.value})"
    return ""
