"""Leases: one run of a pipeline at a time, and nothing written by one that has lost its turn (laws 1 and 6).

A lease is a claim `pipeline#n`; n counts up and is the fencing token. Its holder writes with `write`, which adds the
next place of the lease's journal to the transaction. Who takes the lease over claims that place first: from then on
nothing of the old holder can land, whether it was killed, frozen or cut off, and whatever it believes.

A holder is known to be dead when its process is gone (same machine), or when its heartbeat has not moved for a time
on the watcher's own clock (another machine, or a frozen process); nobody's wall clock is trusted for that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from spanwise.orchestrator import process
from spanwise.orchestrator.errors import Fenced, Held, StoreError, StoreUnavailable
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store, last

log = logging.getLogger("spanwise.lease")

T = TypeVar("T")

TTL_S = 15.0
"""Without a heartbeat for so long, a holder counts as dead."""

COLLECTING = "a garbage collection"
"""What a lease is held for by who gives it back within a second or so: others wait for that."""

_MOMENT_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Where the time comes from, and how much of it is long; tests pass their own."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    ttl_s: float = TTL_S  #: the same for all who may want one lease

    @property
    def beat_s(self) -> float:
        """Between two heartbeats."""
        return self.ttl_s / 5


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A lease as the store has it."""

    pipeline: str
    token: int
    who: Identity
    doing: str  #: what for, in words: "run 42", "backfill 7"
    beat: int  #: counts up while the holder lives
    beaten: datetime  #: the holder's own clock at the last beat
    began: datetime
    mark: int = 0  #: of the processes that work for it, to end them when it is dead
    released: bool = False  #: the next run may have it
    closed: bool = False  #: the records of this holder, and of all before it, are as they should be

    @property
    def name(self) -> str:
        """`pipeline#token`."""
        return f"{self.pipeline}#{self.token}"


class Lease:
    """The right to run a pipeline, while it lasts."""

    def __init__(self, store: Store, holder: Holder, clock: Clock) -> None:
        self.token = holder.token
        self.pipeline = holder.pipeline
        self._store = store
        self._holder = holder
        self._clock = clock
        self._place = 1
        self._fenced = False
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._heart: threading.Thread | None = None

    @property
    def who(self) -> Identity:
        """The process that holds it: this one."""
        return self._holder.who

    @property
    def mark(self) -> int:
        """The mark of its workers; 0 until it is kept."""
        return self._holder.mark

    @property
    def ttl_s(self) -> float:
        """Without a heartbeat for so long, its holder counts as dead."""
        return self._clock.ttl_s

    @property
    def lost(self) -> bool:
        """Whether it is known to be gone, without asking the store."""
        return self._fenced

    def now(self) -> datetime:
        """The current time, UTC."""
        return self._clock.now()

    def write(self, verb: Callable[[Claim], T]) -> T:
        """Calls `verb` with the claim that its transaction must carry.

        Raises:
            Fenced: another holds the lease now; nothing was written.
        """
        place = Claim("journal", f"{self._holder.name}/{self._place}")
        try:
            result = verb(place)
        except AlreadyClaimed:
            taken = self._store.claimed(place.kind, place.name)
            if taken is not None and taken.facts.get("sealed"):
                self._fenced = True
            self.check()
            if taken is not None:
                raise StoreError(
                    f"{self._holder.doing} of {self.pipeline!r} cannot tell which of its writes have landed: the store "
                    f"reported a failure of one that it had done. Run again; the next run puts the records right."
                ) from None
            raise
        except StoreUnavailable:
            raise
        except StoreError:
            self.check()  # whoever took over has ended our executions, which the store tells before the journal does
            raise
        self._place += 1
        return result

    def check(self) -> None:
        """Asks the store whether the lease is still ours.

        Raises:
            Fenced: it is not.
        """
        if not self._fenced and read(self._store, self.pipeline, self.token + 1) is not None:
            self._fenced = True
        if self._fenced:
            raise Fenced(
                f"{self._holder.doing} of {self.pipeline!r} has lost its lease (token {self.token}): another run has "
                f"taken over, so this one publishes and pushes nothing more. See it: spanwise runs {self.pipeline}"
            )

    def keep(self, mark: int, on_lost: Callable[[], None]) -> None:
        """Starts the heartbeat. Workers carry `mark`; `on_lost` is called, once, when the lease is gone."""
        self._amend(mark=mark)
        self._heart = threading.Thread(target=self._live, args=(on_lost,), name="heartbeat", daemon=True)
        self._heart.start()

    def tell(self, doing: str) -> None:
        """Has whoever finds the pipeline held be told this."""
        self._amend(doing=doing)

    def release(self, *, closed: bool = False) -> None:
        """Gives the lease back; the next run finds it free.

        `closed` says that no record is left open, neither this holder's nor an earlier one's; without it the next run
        looks for such records.
        """
        self.abandon()
        if not self._fenced:
            self._amend(released=True, closed=closed)

    def abandon(self) -> None:
        """Ends the heartbeat without giving the lease back: who comes next has to end what is left of us."""
        self._ended.set()
        if self._heart is not None:
            self._heart.join()

    def _live(self, on_lost: Callable[[], None]) -> None:
        while not self._ended.wait(self._clock.beat_s):
            try:
                self.check()
                self._amend()
            except Fenced:
                on_lost()
                return
            except Exception:
                log.warning("heartbeat-missed", extra={"lease": self._holder.name}, exc_info=True)

    def _amend(self, **changes: str | int | bool) -> None:
        with self._lock:
            beaten = replace(self._holder, beat=self._holder.beat + 1, beaten=self._clock.now())
            self._holder = replace(beaten, **changes)  # type: ignore[arg-type]  # the callers above name the fields
            self._store.amend(_claim(self._holder))


def acquire(store: Store, pipeline: str, doing: str, *, clock: Clock | None = None) -> Lease:
    """Takes the pipeline's lease, from a dead holder if need be; waits for one who has it for a moment only.

    A holder whose heartbeat is old by its own clock, and whose process cannot be seen to be dead, is watched for
    `ttl_s` first. What a dead holder left is not yet put right: see `left_open`.

    Raises:
        Held: another run has it; the message says which, and what to type.
    """
    clock = clock or Clock()
    holder = settled(store, pipeline, clock)
    if holder is not None and not holder.released and not dead(store, holder, clock):
        raise Held(held_message(holder))
    now = clock.now()
    mine = Holder(
        pipeline=pipeline,
        token=1 if holder is None else holder.token + 1,
        who=process.identity(),
        doing=doing,
        beat=0,
        beaten=now,
        began=now,
    )
    try:
        store.claim(_claim(mine))
    except AlreadyClaimed:
        winner = read(store, pipeline, mine.token)
        if winner is not None and winner.doing == COLLECTING:
            return acquire(store, pipeline, doing, clock=clock)
        raise Held(held_message(winner or mine)) from None
    return Lease(store, mine, clock)


def left_open(store: Store, lease: Lease) -> list[Holder]:
    """Earlier holders that may have left records open, oldest first, after their journals were sealed.

    From here on they can write nothing, and their processes are gone, those on this machine. Whoever asked puts their
    records right, then calls `close` for each, in this order: a closed one ends the search.

    Raises:
        Held: processes of a dead holder live on and would not die; the message names them.
    """
    found = []
    token = lease.token - 1
    while token and (holder := read(store, lease.pipeline, token)) is not None and not holder.closed:
        _seal(store, holder)
        if not holder.released and _ours_to_end(holder, lease) and (left := process.end(holder.mark)):
            raise Held(
                f"{holder.doing} of {holder.pipeline!r} is dead, but processes of it are left that would not die, so "
                f"nothing was started: {process.named(left)}\nOnce they are gone, start again."
            )
        found.append(holder)
        token -= 1
    return found[::-1]


def _ours_to_end(holder: Holder, lease: Lease) -> bool:
    """Whether a dead holder's processes are on this machine, and not those that now work for us."""
    return holder.mark not in (0, lease.mark) and holder.who.machine == process.machine()


def close(store: Store, holder: Holder) -> None:
    """Notes that nothing of this holder is left open."""
    facts = {**_claim(holder).facts, "closed": True}
    store.amend(Claim("lease", holder.name, facts))


def current(store: Store, pipeline: str) -> Holder | None:
    """The newest lease of a pipeline, held or given back."""
    newest = last(lambda n: store.claimed("lease", f"{pipeline}#{n}") is not None)
    return read(store, pipeline, newest) if newest else None


def settled(store: Store, pipeline: str, clock: Clock) -> Holder | None:
    """The newest lease, once nobody living has it for a moment only."""
    while (holder := current(store, pipeline)) is not None and holder.doing == COLLECTING and not holder.released:
        if dead(store, holder, clock):
            break
        clock.sleep(_MOMENT_S)
    return holder


def read(store: Store, pipeline: str, token: int) -> Holder | None:
    """One lease as the store has it."""
    claim = store.claimed("lease", f"{pipeline}#{token}")
    if claim is None:
        return None
    facts = claim.facts
    return Holder(
        pipeline=pipeline,
        token=token,
        who=Identity(str(facts["machine"]), claim.whole("pid"), claim.whole("started")),
        doing=str(facts["doing"]),
        beat=claim.whole("beat"),
        beaten=datetime.fromisoformat(str(facts["beaten"])),
        began=datetime.fromisoformat(str(facts["began"])),
        mark=claim.whole("mark") if "mark" in facts else 0,
        released=bool(facts["released"]),
        closed=bool(facts["closed"]),
    )


def dead(store: Store, holder: Holder, clock: Clock) -> bool:
    """Whether a holder can no longer be working; may watch its heartbeat for `clock.ttl_s`."""
    if process.alive(holder.who) is False:
        return True
    if abs(clock.now() - holder.beaten) < timedelta(seconds=clock.ttl_s):
        return False
    deadline = clock.monotonic() + clock.ttl_s
    while clock.monotonic() < deadline:
        clock.sleep(clock.beat_s / 3)
        now = read(store, holder.pipeline, holder.token)
        if now is None or now.beat != holder.beat:
            return now is not None and now.released
    return True


def held_message(holder: Holder) -> str:
    """What to tell whoever finds the pipeline held."""
    began = f"{holder.began.astimezone():%Y-%m-%d %H:%M %Z}"  # as the reader's clock has it
    return (
        f"{holder.doing} of {holder.pipeline!r} is still going (started {began} on "
        f"{holder.who.host}, pid {holder.who.pid}), so nothing was started.\n"
        f"Wait for it, or stop it:  spanwise stop {holder.pipeline}"
    )


def _seal(store: Store, holder: Holder) -> None:
    while True:
        taken = last(lambda n: store.claimed("journal", f"{holder.name}/{n}") is not None)
        place = store.claimed("journal", f"{holder.name}/{taken}") if taken else None
        if place is not None and place.facts.get("sealed"):
            return
        try:
            store.claim(Claim("journal", f"{holder.name}/{taken + 1}", {"sealed": True}))
        except AlreadyClaimed:
            continue  # the old holder wrote once more before us; try the place after
        return


def _claim(holder: Holder) -> Claim:
    return Claim(
        "lease",
        holder.name,
        {
            "machine": holder.who.machine,
            "pid": holder.who.pid,
            "started": holder.who.started,
            "doing": holder.doing,
            "beat": holder.beat,
            "beaten": holder.beaten.isoformat(),
            "began": holder.began.isoformat(),
            "mark": holder.mark,
            "released": holder.released,
            "closed": holder.closed,
        },
    )
