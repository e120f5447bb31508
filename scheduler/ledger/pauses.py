"""Pauses in the ledger: times in which no scheduler takes ticks of a pipeline.

`pause p#n` is its n-th, `resumed p#n` who has ended that. A claim of its own, which is made once: whoever extends the
pause replaces what it has read of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from spanwise.orchestrator.claim_record import facts_of, record_of
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store
from spanwise.scheduler.ledger.numbered import newest_number, read_claim
from spanwise.scheduler.schedule.schedule_key import pipeline_of

PAUSED = "paused by "
"""How the reason begins why a tick was missed that fell into a pause."""


@dataclass(frozen=True, kw_only=True)
class SchedulePause:
    """A time in which a pipeline takes no ticks, in all its parts."""

    number: int
    who: str
    why: str
    since: datetime
    until: datetime | None = None  #: None is until somebody resumes it
    resumed: datetime | None = None
    resumed_by: str = ""

    def holds(self, at: datetime) -> bool:
        """Whether the schedule was paused at that moment."""
        ends = [moment for moment in (self.until, self.resumed) if moment is not None]
        return self.since <= at and all(at < end for end in ends)


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """The end of a pause by somebody."""

    resumed: datetime
    resumed_by: str


def pause_schedule(
    store: Store, key: str, *, who: str, why: str, now: datetime, until: datetime | None = None
) -> SchedulePause:
    """Keeps every scheduler from taking ticks of a pipeline; replaces the pause before it."""
    while True:
        number = newest_number(store, "pause", pipeline_of(key)) + 1
        pause = SchedulePause(number=number, who=who, why=why, since=now, until=until)
        try:
            store.claim(_claim(key, pause))
        except AlreadyClaimed:
            continue
        return pause


def resume_schedule(store: Store, key: str, *, who: str, now: datetime) -> SchedulePause | None:
    """Ends the pause that holds, and what continues it meanwhile; None when there is none."""
    ended = None
    while (held := current_pause(store, key, now)) is not None:
        ended = end_pause(store, key, held, who=who, now=now) or ended
    return ended


def end_pause(store: Store, key: str, pause: SchedulePause, *, who: str, now: datetime) -> SchedulePause | None:
    """Ends this pause; None when somebody has ended it before."""
    ended = replace(pause, resumed=now, resumed_by=who)
    try:
        store.claim(Claim("resumed", _name(key, pause), facts_of(Resumption(resumed=now, resumed_by=who))))
    except AlreadyClaimed:
        return None
    store.amend(_claim(key, ended))  # so that nobody asks for two records once it is over
    return ended


def extend_pause(store: Store, key: str, pause: SchedulePause, *, until: datetime) -> None:
    """Extends a pause until then, unless it was ended meanwhile."""
    held = _read_pause(store, key, pause.number)
    if held.resumed is None:
        store.amend(_claim(key, replace(held, until=until)))


def continue_pause(
    store: Store, key: str, pause: SchedulePause, *, who: str, why: str, now: datetime, until: datetime
) -> SchedulePause | None:
    """Pauses a pipeline in place of a pause that is about to end by itself; None when somebody has ended that."""
    following = pause_schedule(store, key, who=who, why=why, now=now, until=until)
    if _read_pause(store, key, pause.number).resumed is None:
        return following  # whoever ends the pause from now on ends this one too
    end_pause(store, key, following, who=who, now=now)
    return None


def current_pause(store: Store, key: str, now: datetime) -> SchedulePause | None:
    """The pause that holds now: the newest, unless it was ended. The clock of who began or ended it may be another."""
    newest = newest_pause(store, key)
    if newest is None or newest.resumed is not None or (newest.until is not None and now >= newest.until):
        return None
    return newest


def newest_pause(store: Store, key: str) -> SchedulePause | None:
    """The pause that somebody made last, whether it holds or not."""
    number = newest_number(store, "pause", pipeline_of(key))
    return _read_pause(store, key, number) if number else None


def list_pauses(store: Store, key: str, *, since: datetime) -> list[SchedulePause]:
    """The pauses that held at `since` or later, oldest first, each ended at the latest where the next begins."""
    pauses: list[SchedulePause] = []
    for number in range(newest_number(store, "pause", pipeline_of(key)), 0, -1):
        pause = _read_pause(store, key, number)
        if pauses and (pause.until is None or pause.until > pauses[-1].since):
            pause = replace(pause, until=pauses[-1].since)
        if any(end is not None and end <= since for end in (pause.until, pause.resumed)):
            break
        pauses.append(pause)
    return pauses[::-1]


def _read_pause(store: Store, key: str, number: int) -> SchedulePause:
    pause = record_of(SchedulePause, read_claim(store, "pause", f"{pipeline_of(key)}#{number}"))
    claim = None if pause.resumed is not None else store.find_claim("resumed", _name(key, pause))
    if claim is None:
        return pause
    end = record_of(Resumption, claim)
    return replace(pause, resumed=end.resumed, resumed_by=end.resumed_by)


def _claim(key: str, pause: SchedulePause) -> Claim:
    return Claim("pause", _name(key, pause), facts_of(pause))


def _name(key: str, pause: SchedulePause) -> str:
    return f"{pipeline_of(key)}#{pause.number}"


def format_pause(pause: SchedulePause) -> str:
    """Why a tick was missed that fell into a pause."""
    return f"{PAUSED}{pause.who}: {pause.why}"
