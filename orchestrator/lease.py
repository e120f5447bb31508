"""Leases: one run of a pipeline at a time, and no writes from a holder that has lost its lease (laws 1 and 6).

A lease is a claim `pipeline#n`; n counts up and is the fencing token. Its holder writes with `write`, which adds the
next place of the lease's journal to the transaction. A successor claims that place first: from then on no write of the
old holder can land, whether it was killed, frozen or cut off, and whatever it believes.

A holder is dead when its process is gone (same machine), or when its heartbeat has not moved for `ttl_s` on the
watcher's own clock (another machine, or a frozen process). Wall clocks of others are not trusted for that.
"""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from spanwise.orchestrator import process
from spanwise.orchestrator.claim_record import facts_of, record_of
from spanwise.orchestrator.errors import Fenced, Held, StoreError, StoreUnavailable
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store

log = logging.getLogger("spanwise.lease")

T = TypeVar("T")

TTL_S = 15.0
"""A holder without a heartbeat for this long counts as dead."""

COLLECTING = "a garbage collection"
"""The purpose of a lease that is released within about a second: others wait for that instead of giving up."""

_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Where the time comes from, and how long a heartbeat may be absent; tests pass their own."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    ttl_s: float = TTL_S  #: must be the same for all who compete for one lease

    @property
    def beat_s(self) -> float:
        """Between two heartbeats."""
        return self.ttl_s / 5


class WatchedTime:
    """The seconds in which somebody looked again and again: of a longer pause only `most_s` count.

    While a database stands still, neither do heartbeats arrive nor does anybody see that they do not.
    """

    def __init__(self, monotonic: Callable[[], float] | None = None, most_s: float = TTL_S / 5) -> None:
        self._monotonic = monotonic or time.monotonic
        self._most_s = most_s
        self._seen = self._monotonic()
        self._sum_s = 0.0

    def __call__(self) -> float:
        now = self._monotonic()
        self._sum_s += min(now - self._seen, self._most_s)
        self._seen = now
        return self._sum_s


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A lease as the store has it."""

    pipeline: str
    token: int
    who: Identity
    purpose: str  #: "run 42", "backfill 7"
    beat: int  #: counts up while the holder lives
    last_beat: datetime  #: by the holder's own clock
    acquired: datetime
    mark: int = 0  #: of its worker processes, so that they can be ended when it is dead
    engine: str = ""  #: where it has processes besides its machine
    released: bool = False  #: free for the next run
    closed: bool = False  #: no record of this holder, or of any before it, is left open

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
        self._forgotten = False  # what it wrote is gone
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._heart: threading.Thread | None = None

    @property
    def who(self) -> Identity:
        """The process that holds it: this one."""
        return self._holder.who

    @property
    def mark(self) -> int:
        """The mark of its worker processes; 0 until the heartbeat starts."""
        return self._holder.mark

    @property
    def ttl_s(self) -> float:
        """Its holder counts as dead after this long without a heartbeat."""
        return self._clock.ttl_s

    @property
    def lost(self) -> bool:
        """Whether it is known to be lost, without asking the store."""
        return self._fenced

    def now(self) -> datetime:
        """The current time, UTC."""
        return self._clock.now()

    def write(self, verb: Callable[[Claim], T]) -> T:
        """Calls `verb` with the claim that its transaction must insert.

        Raises:
            Fenced: another holds the lease now, and nothing was written; or what was written under it before is gone.
        """
        self._check_written(self._place - 1)
        place = Claim("journal", f"{self._holder.name}/{self._place}")
        try:
            result = verb(place)
        except AlreadyClaimed:
            taken = self._store.find_claim(place.kind, place.name)
            if taken is not None and taken.facts.get("sealed"):
                self._fenced = True
            self.check()
            if taken is not None:
                raise StoreError(
                    f"{self._holder.purpose} of {self.pipeline!r} cannot tell which of its writes have landed: the "
                    f"store reported a failure of a write that it had made. Run again; the next run repairs them."
                ) from None
            raise
        except StoreUnavailable:
            raise
        except StoreError:
            self.check()  # a successor has ended our executions, and the store checks those before the journal
            raise
        self._check_written(self._place - 1)  # from the middle of this write on it may have been another database
        self._place += 1  # only now: where that cannot be asked, the next write has to find that this one has landed
        return result

    def check(self) -> None:
        """Asks the store whether the lease is still ours, and what was written under it still there.

        Raises:
            Fenced: it is not.
        """
        if not self._fenced and read(self._store, self.pipeline, self.token + 1) is not None:
            self._fenced = True
        self._check_written(self._place - 1)
        if self._fenced:
            raise Fenced(
                f"{self._holder.purpose} of {self.pipeline!r} has lost its lease (token {self.token}): another run has "
                f"taken over, so this one publishes and pushes nothing more. See it: spanwise runs {self.pipeline}"
            )

    def _check_written(self, last: int) -> None:
        """Raises Fenced if its last write, at this place, is gone: what was written last is lost first."""
        if not self._fenced and last > 0 and self._store.find_claim("journal", f"{self._holder.name}/{last}") is None:
            self._fenced = self._forgotten = True
        if self._forgotten:
            raise Fenced(
                f"The metadata no longer have what {self._holder.purpose} of {self.pipeline!r} recorded: a backup was "
                "restored under it, or a standby that was behind took over. It publishes and pushes nothing more, "
                "since numbers that it knows are given again. Run again when the database is as you want it."
            )

    def start_heartbeat(self, mark: int, on_lost: Callable[[], None], engine: str = "") -> None:
        """Starts the heartbeat. Worker processes carry `mark`; `on_lost` is called, once, when the lease is lost.

        `engine` is where such processes are besides this machine.
        """
        self._amend(mark=mark, engine=engine)
        self._heart = threading.Thread(target=self._beat, args=(on_lost,), name="heartbeat", daemon=True)
        self._heart.start()

    def describe(self, purpose: str) -> None:
        """Replaces the purpose that Held shows to others."""
        self._amend(purpose=purpose)

    def release(self, *, closed: bool = False) -> None:
        """Releases the lease for the next run.

        `closed` says that no record is left open, neither this holder's nor an earlier one's; without it the next run
        looks for such records.
        """
        self.abandon()
        if not self._fenced:
            self._amend(released=True, closed=closed)

    def abandon(self) -> None:
        """Ends the heartbeat without releasing the lease: the next holder has to end the processes left behind."""
        self._ended.set()
        if self._heart is not None:
            self._heart.join()

    def _beat(self, on_lost: Callable[[], None]) -> None:
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
            renewed = replace(self._holder, beat=self._holder.beat + 1, last_beat=self._clock.now())
            self._holder = replace(renewed, **changes)  # type: ignore[arg-type]  # the callers above name the fields
            self._store.amend(_claim(self._holder))


def acquire(store: Store, pipeline: str, purpose: str, *, clock: Clock | None = None) -> Lease:
    """Takes the pipeline's lease, from a dead holder if need be; waits for a garbage collection.

    A holder whose last beat is old by its own clock, and whose process cannot be looked up, is watched for `ttl_s`
    first. The records of a dead holder are not yet closed: see `unclosed_leases`.

    Raises:
        Held: another run has it; the message says which, and what to type.
    """
    clock = clock or Clock()
    holder = current_after_collection(store, pipeline, clock)
    if holder is not None and not holder.released and not is_dead(store, holder, clock):
        raise Held(held_message(holder))
    now = clock.now()
    mine = Holder(
        pipeline=pipeline,
        token=1 if holder is None else holder.token + 1,
        who=replace(process.identity(), root=store.home),
        purpose=purpose,
        beat=0,
        last_beat=now,
        acquired=now,
    )
    try:
        store.claim(_claim(mine))
    except AlreadyClaimed:
        winner = read(store, pipeline, mine.token)
        if winner is not None and winner.purpose == COLLECTING:
            return acquire(store, pipeline, purpose, clock=clock)
        raise Held(held_message(winner or mine)) from None
    return Lease(store, mine, clock)


def unclosed_leases(
    store: Store, lease: Lease, end_elsewhere: Callable[[str, int], list[str]] = lambda engine, _mark: [engine]
) -> list[Holder]:
    """Seals the journals of earlier holders that may have left records open, and returns them, oldest first.

    From here on they can write nothing, and their processes on this machine are gone; so are those on an engine, which
    `end_elsewhere` ends: it is called with the engine and the mark, and returns what is left. Those of a holder in
    another root, of which this one is a copy, are left alone. The caller closes their records, then calls `mark_closed`
    for each, in this order: a closed one ends the search.

    Raises:
        Held: processes of a dead holder would not die; the message names them.
    """
    found = []
    token = lease.token - 1
    while token and (holder := read(store, lease.pipeline, token)) is not None and not holder.closed:
        _seal(store, holder)
        left_alone = holder.released or process.is_of_another_root(holder.who)
        if not left_alone and _may_end(holder, lease) and (left := process.kill(holder.mark)):
            raise Held(
                f"{holder.purpose} of {holder.pipeline!r} is dead, but some of its processes would not die, so "
                f"nothing was started: {process.format_survivors(left)}\nOnce they are gone, start again."
            )
        if not left_alone and holder.engine and (alive := end_elsewhere(holder.engine, holder.mark)):
            raise Held(
                f"{holder.purpose} of {holder.pipeline!r} is dead, but some of its processes on {holder.engine} would "
                f"not die, or cannot be proven dead, so nothing was started: {', '.join(alive)}\n"
                f"Once {holder.engine} says that they are gone, start again. If it does not answer because it is gone "
                f"for good:  {shlex.join(['spanwise', 'stop', holder.pipeline, '--gone', holder.engine])}"
            )
        found.append(holder)
        token -= 1
    return found[::-1]


def _may_end(holder: Holder, lease: Lease) -> bool:
    """Whether a dead holder's worker processes are on this machine, and do not now work for this lease."""
    return holder.mark not in (0, lease.mark) and holder.who.machine == process.machine()


def mark_closed(store: Store, holder: Holder) -> None:
    """Notes that no record of this holder is left open."""
    store.amend(_claim(replace(holder, closed=True)))


def current(store: Store, pipeline: str) -> Holder | None:
    """The newest lease of a pipeline, held or released."""
    newest = store.last_claim("lease", f"{pipeline}#")
    return read(store, pipeline, newest) if newest else None


def current_after_collection(store: Store, pipeline: str, clock: Clock) -> Holder | None:
    """The newest lease, after a garbage collection that holds it has ended or died."""
    while (holder := current(store, pipeline)) is not None and holder.purpose == COLLECTING and not holder.released:
        if is_dead(store, holder, clock):
            break
        clock.sleep(_POLL_S)
    return holder


def read(store: Store, pipeline: str, token: int) -> Holder | None:
    """One lease as the store has it."""
    claim = store.find_claim("lease", f"{pipeline}#{token}")
    if claim is None:
        return None
    holder = record_of(Holder, claim)
    return replace(holder, who=process.seen_from(holder.who, store.home))


def is_dead(store: Store, holder: Holder, clock: Clock) -> bool:
    """Whether a holder can no longer be working; may watch its heartbeat for `clock.ttl_s`."""
    if process.is_alive(holder.who) is False:
        return True
    if abs(clock.now() - holder.last_beat) < timedelta(seconds=clock.ttl_s):
        return False
    watched = WatchedTime(clock.monotonic, clock.beat_s)
    while watched() < clock.ttl_s:
        clock.sleep(clock.beat_s / 3)
        now = read(store, holder.pipeline, holder.token)
        if now is None or now.beat != holder.beat:
            return now is not None and now.released
    return True


def held_message(holder: Holder) -> str:
    """The message for a command that finds the pipeline held."""
    began = f"{holder.acquired.astimezone():%Y-%m-%d %H:%M %Z}"  # in the reader's time zone
    return (
        f"{holder.purpose} of {holder.pipeline!r} is still going (started {began} on "
        f"{holder.who.host}, pid {holder.who.pid}), so nothing was started.\n"
        f"Wait for it, or stop it:  spanwise stop {holder.pipeline}"
    )


def _seal(store: Store, holder: Holder) -> None:
    while True:
        taken = store.last_claim("journal", f"{holder.name}/")
        place = store.find_claim("journal", f"{holder.name}/{taken}") if taken else None
        if place is not None and place.facts.get("sealed"):
            return
        try:
            store.claim(Claim("journal", f"{holder.name}/{taken + 1}", {"sealed": True}))
        except AlreadyClaimed:
            continue  # the old holder wrote once more before us; try the place after
        return


def _claim(holder: Holder) -> Claim:
    return Claim("lease", holder.name, facts_of(holder))
