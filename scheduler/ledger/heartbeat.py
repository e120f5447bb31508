"""Heartbeats: which schedulers there are, and which are dead. Each has a number and a heartbeat in the metadata.

A scheduler is known to be dead when its process is gone (same machine), or when its heartbeat has not moved for a time
on the watcher's own clock (another machine, or a frozen process), as with leases: nobody's wall clock is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple
from weakref import WeakKeyDictionary

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.claim_record import facts_of, record_of
from spanwise.orchestrator.lease import TTL_S
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store
from spanwise.scheduler.ledger.numbered import newest_number

BEATS = 5
"""Heartbeats within the time after which a scheduler counts as dead."""


@dataclass(frozen=True, kw_only=True)
class SchedulerRecord:
    """A scheduler as the metadata has it."""

    number: int
    who: Identity
    began: datetime
    beaten: datetime  #: its own clock at the last beat
    beat: int = 0  #: counts up while it lives
    ended: bool = False  #: it has left, or was seen to be dead
    settled: bool = False  #: so have all before it


def register(store: Store, now: datetime) -> SchedulerRecord:
    """Makes this process known as a scheduler."""
    number = 0
    while True:
        number = newest_number(store, "scheduler", "", number) + 1
        who = replace(process.identity(), root=store.home)
        me = SchedulerRecord(number=number, who=who, began=now, beaten=now)
        try:
            store.claim(_claim(me))
        except AlreadyClaimed:
            continue
        return me


def beat(store: Store, me: SchedulerRecord, now: datetime) -> SchedulerRecord:
    """Records that this scheduler lives; one that was taken for dead meanwhile gets a new number."""
    known = read_scheduler(store, me.number)
    if known is None or known.ended:
        return register(store, now)
    beaten = replace(known, beat=known.beat + 1, beaten=now)
    store.amend(_claim(beaten))
    return beaten


def mark_ended(store: Store, scheduler: SchedulerRecord) -> None:
    """Records that a scheduler has left, or is dead, and up to where all have."""
    store.amend(_claim(replace(scheduler, ended=True)))
    top: SchedulerRecord | None = None
    for number in range(newest_number(store, "scheduler", "", scheduler.number), 0, -1):
        known = read_scheduler(store, number)
        if known is None or known.settled:
            break
        if not known.ended:
            top = None
        elif top is None:
            top = known
    if top is not None:
        store.amend(_claim(replace(top, settled=True)))


def read_scheduler(store: Store, number: int) -> SchedulerRecord | None:
    """One scheduler; None when there never was one of that number."""
    claim = store.find_claim("scheduler", f"#{number}")
    if claim is None:
        return None
    known = record_of(SchedulerRecord, claim)
    return replace(known, who=process.seen_from(known.who, store.home))


def list_living(store: Store) -> list[SchedulerRecord]:
    """The schedulers that are not known to be dead, oldest first; of one elsewhere, only its last beat is known."""
    return [one for one in list_unended(store) if process.is_alive(one.who) is not False]


def list_unended(store: Store, *, seen: int = 0) -> list[SchedulerRecord]:
    """The schedulers whose end nobody has recorded, oldest first; `seen` is a number known to exist, for speed."""
    unended = []
    for number in range(newest_number(store, "scheduler", "", seen), 0, -1):
        scheduler = read_scheduler(store, number)
        if scheduler is None or scheduler.settled:
            break
        if not scheduler.ended:
            unended.append(scheduler)
    return unended[::-1]


class HeartbeatWatch:
    """Watches heartbeats by its own clock: of schedulers, of leases, of whatever beats under a name."""

    def __init__(self, ttl_s: float = TTL_S) -> None:
        self.ttl_s = ttl_s
        self._beats: dict[str, tuple[int, float]] = {}  # by name: the last beat, and when (monotonic) it was new
        self._moved: set[str] = set()  # those of which a beat has come since they were first seen

    def is_dead(self, name: str, who: Identity, beat: int, monotonic: float) -> bool:
        """Whether it is known to be dead: its process is gone, or it has been watched without a beat for `ttl_s`."""
        if process.is_alive(who) is False:
            return True
        known = self._beats.get(name)
        if known is not None and known[0] != beat:
            self._moved.add(name)
        if known is None or known[0] != beat:
            self._beats[name] = (beat, monotonic)
            return False
        return monotonic - known[1] >= self.ttl_s

    def is_beating(self, name: str, who: Identity, beat: int, monotonic: float) -> bool:
        """Whether it is known to live, whatever its clock says: a beat of it came in the last `ttl_s`."""
        return not self.is_dead(name, who, beat, monotonic) and name in self._moved


class _Heard(NamedTuple):
    beat: int
    since_s: float  #: when that beat was new, or was first seen
    moved: bool  #: a beat was seen to come


_heard: WeakKeyDictionary[Store, dict[str, _Heard]] = WeakKeyDictionary()  # as long as a store is open


def is_heard(store: Store, name: str, read_beat: Callable[[], int]) -> bool:
    """Whether what beats under a name goes on, whatever its clock says; see `listen`."""
    return listen(store, {name: read_beat})[name]


def listen(store: Store, beats: Mapping[str, Callable[[], int]]) -> dict[str, bool]:
    """Whether what beats under each name goes on, whatever its clock says.

    At first all are listened to at once, for the time of two beats. What was silent then counts as silent until a beat
    of it comes, so that a page which is loaded again and again does not wait each time. A scheduler has a
    `HeartbeatWatch`.
    """
    clock, heard = lease.Clock(), _heard.setdefault(store, {})
    unknown: dict[str, int] = {}
    for name, read_beat in beats.items():
        beat, known = read_beat(), heard.get(name)
        if known is None or (beat != known.beat and clock.monotonic() - known.since_s >= clock.ttl_s):
            unknown[name] = beat
        elif beat != known.beat:
            heard[name] = _Heard(beat, clock.monotonic(), moved=True)
    watched = lease.WatchedTime(clock.monotonic, clock.beat_s)
    while unknown:
        moved = {name: now for name, beat in unknown.items() if (now := beats[name]()) != beat}
        is_over = watched() >= 2 * clock.beat_s
        for name in list(unknown if is_over else moved):
            beat = unknown.pop(name)
            heard[name] = _Heard(moved.get(name, beat), clock.monotonic(), moved=name in moved)
        if unknown:
            clock.sleep(clock.beat_s / 3)
    return {name: heard[name].moved and clock.monotonic() - heard[name].since_s < clock.ttl_s for name in beats}


def _claim(scheduler: SchedulerRecord) -> Claim:
    return Claim("scheduler", f"#{scheduler.number}", facts_of(scheduler))
