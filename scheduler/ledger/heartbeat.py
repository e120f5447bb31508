"""Presence: which schedulers there are, and which are dead. Each has a number and a heartbeat in the metadata.

A scheduler is known to be dead when its process is gone (same machine), or when its heartbeat has not moved for a time
on the watcher's own clock (another machine, or a frozen process), as with leases: nobody's wall clock is trusted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from spanwise.orchestrator import process
from spanwise.orchestrator.lease import TTL_S
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store, last

BEATS = 5
"""Heartbeats within the time after which one counts as dead."""


@dataclass(frozen=True, kw_only=True)
class Present:
    """A scheduler as the metadata has it."""

    number: int
    who: Identity
    began: datetime
    beaten: datetime  #: its own clock at the last beat
    beat: int = 0  #: counts up while it lives
    ended: bool = False  #: it has left, or was seen to be dead
    settled: bool = False  #: so have all before it


def enter(store: Store, now: datetime) -> Present:
    """Makes this process known as a scheduler."""
    number = 0
    while True:
        number = _newest(store, number) + 1
        me = Present(number=number, who=process.identity(), began=now, beaten=now)
        try:
            store.claim(_claim(me))
        except AlreadyClaimed:
            continue
        return me


def beat(store: Store, me: Present, now: datetime) -> Present:
    """Says that this scheduler lives; one that was taken for dead meanwhile gets a new number."""
    known = read(store, me.number)
    if known is None or known.ended:
        return enter(store, now)
    beaten = replace(known, beat=known.beat + 1, beaten=now)
    store.amend(_claim(beaten))
    return beaten


def end(store: Store, one: Present) -> None:
    """Notes that a scheduler has left, or is dead."""
    before = read(store, one.number - 1)
    settled = before is None or before.settled
    store.amend(_claim(replace(one, ended=True, settled=settled)))


def read(store: Store, number: int) -> Present | None:
    """One scheduler; None when there never was one of that number."""
    claim = store.claimed("scheduler", f"#{number}")
    if claim is None:
        return None
    facts = claim.facts
    return Present(
        number=number,
        who=Identity(str(facts["machine"]), claim.whole("pid"), claim.whole("started")),
        began=datetime.fromisoformat(str(facts["began"])),
        beaten=datetime.fromisoformat(str(facts["beaten"])),
        beat=claim.whole("beat"),
        ended=bool(facts["ended"]),
        settled=bool(facts["settled"]),
    )


def present(store: Store, *, seen: int = 0) -> list[Present]:
    """The schedulers that have not ended, oldest first; `seen` is a number known to exist, for speed."""
    found = []
    for number in range(_newest(store, seen), 0, -1):
        one = read(store, number)
        if one is None or one.settled:
            break
        if not one.ended:
            found.append(one)
        elif (before := read(store, number - 1)) is None or before.settled:
            store.amend(_claim(replace(one, settled=True)))
    return found[::-1]


class Watch:
    """Watches heartbeats by its own clock: of schedulers, of leases, of whatever beats under a name."""

    def __init__(self, ttl_s: float = TTL_S) -> None:
        self.ttl_s = ttl_s
        self._beats: dict[str, tuple[int, float]] = {}  # by name: the last beat, and when (monotonic) it was new

    def dead(self, name: str, who: Identity, beat: int, monotonic: float) -> bool:
        """Whether it is known to be dead: its process is gone, or it has been watched without a beat for `ttl_s`."""
        if process.alive(who) is False:
            return True
        known = self._beats.get(name)
        if known is None or known[0] != beat:
            self._beats[name] = (beat, monotonic)
            return False
        return monotonic - known[1] >= self.ttl_s


def _newest(store: Store, seen: int = 0) -> int:
    return seen + last(lambda further: store.claimed("scheduler", f"#{seen + further}") is not None)


def _claim(one: Present) -> Claim:
    return Claim(
        "scheduler",
        f"#{one.number}",
        {
            "machine": one.who.machine,
            "pid": one.who.pid,
            "started": one.who.started,
            "began": one.began.isoformat(),
            "beaten": one.beaten.isoformat(),
            "beat": one.beat,
            "ended": one.ended,
            "settled": one.settled,
        },
    )
