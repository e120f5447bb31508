"""Ticks in the ledger: who took which, what its runs were, and how it ended. Only claims, so nothing happens twice.

A tick is *taken* by inserting its name and the next number of its schedule in one transaction, and it *ends* by
inserting its one outcome. A run of it begins by inserting its attempt together with its own record, and ending a tick
inserts the attempt that would have come next, so that none can begin afterwards, whoever was about to.

| claim                | is                                                                                          |
|----------------------|---------------------------------------------------------------------------------------------|
| `tick k@name`        | the tick was taken, by a scheduler                                                          |
| `ticknumber k#n`     | the n-th tick of the schedule; later in time than the one before, but for arrived data      |
| `holder k@name%j`    | another scheduler looks after it now, the j-th since it was taken                           |
| `attempt k@name#i`   | its i-th run has begun; or, sealed, never will                                              |
| `overrun k@name`     | a later tick, or a person, is ending its run                                                |
| `outcome k@name`     | how it ended                                                                                |
| `abnormal k#m`       | the m-th tick of the schedule that did not succeed                                          |
| `closed k@name`      | it needs no backfill any more: it was recovered, superseded or acknowledged                 |

k is a schedule key: `flights`, or `flights:ingest` where the parts of a pipeline have a cron each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from spanwise.orchestrator.claim_record import facts_of, record_of
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store
from spanwise.scheduler.ledger.numbered import is_settled, newest_number, read_claim
from spanwise.scheduler.ledger.numbered import settle as settle_number
from spanwise.scheduler.schedule.outcome import TickClosure, TickEnd
from spanwise.scheduler.schedule.schedule_key import DATA, part_of, pipeline_of
from spanwise.scheduler.schedule.ticks import Tick

_MOST_ENDED = 100
"""Ticks that one transaction takes and ends: 500 names, which SQLite writes in a fraction of a second."""


@dataclass(frozen=True, kw_only=True)
class TickRecord:
    """A tick that was taken."""

    key: str  #: of its schedule
    tick: Tick
    number: int  #: counts up from 1 within the schedule
    taken: datetime  #: when, by the taker's clock
    after_run: int  #: the newest run there was when it was taken; those of the tick have higher numbers
    holder: int  #: number of the scheduler that looks after it
    attempts: int  #: runs of it that have begun
    end: TickEnd | None = None  #: None while it is open
    ended: datetime | None = None
    alerted: bool = False  #: no alert about its end is still to be sent
    closed: TickClosure | None = None  #: why it needs no backfill, although it did not succeed

    @property
    def name(self) -> str:
        """`key@tick`, unique."""
        return claim_name(self.key, self.tick.name)

    @property
    def is_summary(self) -> bool:
        """Whether it stands for several ticks, the older ones of a long gap."""
        return self.end is not None and self.end.first_at is not None and self.end.first_at < self.tick.at

    @property
    def spans(self) -> Sequence[int]:
        """The spans that it was to run on, ascending; several where it stands for several ticks."""
        last = self.tick.span
        if last is None:
            return range(0)
        if self.end is not None and self.end.spans:
            return [span for each in self.end.spans for span in range(each.first, each.last + 1)]
        first = last if self.end is None or self.end.first_span is None else self.end.first_span
        return range(first, last + 1)

    def came_before(self, run: Run) -> bool:
        """Whether a run began after the tick had come, also where the tick was recorded while that run went on."""
        return run.number > self.after_run or (run.started is not None and run.started >= self.tick.at)

    @property
    def settled(self) -> bool:
        """Whether nothing about it will change, except that it may be closed."""
        return self.end is not None and self.alerted


@dataclass(frozen=True, kw_only=True)
class TakenTick:
    """What is written when a tick is taken."""

    tick: Tick
    number: int
    taken: datetime
    after_run: int
    holder: int


@dataclass(frozen=True, kw_only=True)
class EndedTick:
    """What is written when a tick ends."""

    end: TickEnd
    at: datetime
    alerted: bool


@dataclass(frozen=True, kw_only=True)
class OverrunCause:
    """For what the run of a tick is ended, and by whom."""

    by: str  #: completes the sentence "ended for …"
    tick: str = ""  #: the later tick, if it is one


def claim_name(key: str, tick: str) -> str:
    """The name of a tick among all ticks."""
    return f"{key}@{tick}"


def attempt_claim(key: str, tick: str, attempt: int) -> Claim:
    """What a run inserts in the transaction that begins it, so that this attempt is made once."""
    return Claim("attempt", f"{claim_name(key, tick)}#{attempt}")


# --- taking and ending


def claim_tick(
    store: Store, key: str, tick: Tick, *, holder: int, now: datetime, end: TickEnd | None = None, seen: int = 0
) -> TickRecord | None:
    """Takes a tick, and ends it at once if `end` is given.

    None when another has taken it, or one after it. `seen` is a number known to exist, for speed.
    """
    return next(iter(_claim_ticks(store, key, [(tick, end)], holder, now, seen)), None)


def claim_ended_ticks(
    store: Store, key: str, ends: Sequence[tuple[Tick, TickEnd]], *, holder: int, now: datetime, seen: int = 0
) -> list[TickRecord]:
    """Takes ticks, oldest first, and ends them at once: many in one transaction, so a thousand cost seconds.

    Leaves out those that another has taken, or one after them. `seen` is a number known to exist, for speed.
    """
    records: list[TickRecord] = []
    for first in range(0, len(ends), _MOST_ENDED):
        if records:
            seen = records[-1].number
        records += _claim_ticks(store, key, ends[first : first + _MOST_ENDED], holder, now, seen)
    return records


def _claim_ticks(
    store: Store, key: str, ends: Sequence[tuple[Tick, TickEnd | None]], holder: int, now: datetime, seen: int
) -> list[TickRecord]:
    number = seen
    by_name = {tick.name: (tick, end) for tick, end in reversed(ends)}  # in autumn, 01:30 comes twice: the first stays
    ends = sorted(by_name.values(), key=lambda pair: pair[0].at)
    while True:
        number = newest_number(store, "ticknumber", key, number)
        ends = [(tick, end) for tick, end in ends if _comes_after(store, key, tick, number)]
        if not ends:
            return []
        after_run = next((run.number for run in store.runs(pipeline_of(key))), 0)
        abnormal = newest_number(store, "abnormal", key) if any(end for _, end in ends) else 0
        records, claims = [], []
        for place, (tick, end) in enumerate(ends, start=number + 1):
            record = TickRecord(
                key=key,
                tick=tick,
                number=place,
                taken=now,
                after_run=after_run,
                holder=holder,
                attempts=0,
                end=end,
                ended=None if end is None else now,
                alerted=end is not None and not _needs_alert(end),
            )
            taken = TakenTick(tick=tick, number=place, taken=now, after_run=after_run, holder=holder)
            claims.append(Claim("ticknumber", f"{key}#{place}", {"tick": tick.name, "settled": False}))
            claims.append(Claim("tick", record.name, facts_of(taken)))
            if end is not None:
                claims += _end_claims(record, end, now, abnormal + 1)
                abnormal += end.outcome.abnormal
            records.append(record)
        try:
            store.claim(*claims)
        except AlreadyClaimed:
            continue
        return records


def _comes_after(store: Store, key: str, tick: Tick, number: int) -> bool:
    if not number:
        return True
    name = str(read_claim(store, "ticknumber", f"{key}#{number}").facts["tick"])
    newest = record_of(TakenTick, read_claim(store, "tick", claim_name(key, name)))
    if part_of(key) != DATA and newest.tick.at >= tick.at:  # arrived data is known by its name, whatever the clock says
        return False
    return store.find_claim("tick", claim_name(key, tick.name)) is None


def end_tick(store: Store, record: TickRecord, end: TickEnd, *, now: datetime) -> bool:
    """Ends an open tick that is seen to have had `record.attempts` runs; from then on no run of it can begin.

    False when that is no longer so: somebody else has ended it, or a further run has begun. Read it again.
    """
    while True:
        try:
            store.claim(*_end_claims(record, end, now, newest_number(store, "abnormal", record.key) + 1))
        except AlreadyClaimed:
            next_attempt = attempt_claim(record.key, record.tick.name, record.attempts + 1)
            if store.find_claim("outcome", record.name) or store.find_claim(next_attempt.kind, next_attempt.name):
                return False
            continue  # it was the number among the abnormal ones
        return True


def _end_claims(record: TickRecord, end: TickEnd, now: datetime, abnormal: int) -> list[Claim]:
    """What ends a tick; `abnormal` is the next number among those that did not succeed."""
    sealed = replace(attempt_claim(record.key, record.tick.name, record.attempts + 1), facts={"sealed": True})
    ended = EndedTick(end=end, at=now, alerted=not _needs_alert(end))
    claims = [Claim("outcome", record.name, facts_of(ended)), sealed]
    if end.outcome.abnormal:
        claims.append(Claim("abnormal", f"{record.key}#{abnormal}", {"tick": record.tick.name, "settled": False}))
    return claims


def _needs_alert(end: TickEnd) -> bool:
    return end.outcome.abnormal and not end.quiet


def mark_alerted(store: Store, record: TickRecord) -> None:
    """Records that the alert about a tick's end is in the outbox."""
    claim = store.find_claim("outcome", record.name)
    if claim is not None:
        store.amend(replace(claim, facts={**claim.facts, "alerted": True}))


def adopt_tick(store: Store, record: TickRecord, *, holder: int) -> TickRecord | None:
    """Hands an open tick over to another scheduler; None when yet another was quicker."""
    place = newest_number(store, "holder", record.name, sign="%") + 1
    if _read_holder(store, record.name, record.holder) != record.holder:
        return None
    try:
        store.claim(Claim("holder", f"{record.name}%{place}", {"scheduler": holder}))
    except AlreadyClaimed:
        return None
    return replace(record, holder=holder)


def mark_overrun(store: Store, key: str, tick: str, cause: OverrunCause) -> None:
    """Records that the run of a tick is about to be ended for something else."""
    try:
        store.claim(Claim("overrun", claim_name(key, tick), facts_of(cause)))
    except AlreadyClaimed:
        return  # one before us was about to, and did not finish


def read_overrun(store: Store, key: str, tick: str) -> OverrunCause | None:
    """That for which the run of a tick is, or was, to be ended."""
    claim = store.find_claim("overrun", claim_name(key, tick))
    return None if claim is None else record_of(OverrunCause, claim)


# --- reading


def is_taken(store: Store, key: str, tick: str) -> bool:
    """Whether a tick of this name was taken."""
    return store.find_claim("tick", claim_name(key, tick)) is not None


def drop_taken(store: Store, key: str, ticks: Sequence[Tick]) -> list[Tick]:
    """The ticks whose names nobody has taken.

    Where the zone of a schedule was edited, or its rules have changed, the clock may come again to the name of a tick
    that was taken: it is that tick, and does not run twice.
    """
    taken = store.find_claims("tick", [claim_name(key, tick.name) for tick in ticks]) if ticks else {}
    return [tick for tick in ticks if claim_name(key, tick.name) not in taken]


def list_untaken(store: Store, key: str, ticks: Iterable[Tick]) -> Iterator[Tick]:
    """The same of ticks that come, one after another, so that the first few cost little."""
    return (tick for tick in ticks if not is_taken(store, key, tick.name))


def read_tick(store: Store, key: str, tick: str) -> TickRecord | None:
    """A tick by its name; None when it was never taken."""
    name = claim_name(key, tick)
    claim = store.find_claim("tick", name)
    if claim is None:
        return None
    taken = record_of(TakenTick, claim)
    outcome = store.find_claim("outcome", name)
    ended = None if outcome is None else record_of(EndedTick, outcome)
    closed = store.find_claim("closed", name) if ended is not None else None
    begun = store.last_claim("attempt", f"{name}#")
    return TickRecord(
        key=key,
        tick=taken.tick,
        number=taken.number,
        taken=taken.taken,
        after_run=taken.after_run,
        holder=_read_holder(store, name, taken.holder),
        attempts=begun if ended is None else begun - 1,  # the last is the seal
        end=None if ended is None else ended.end,
        ended=None if ended is None else ended.at,
        alerted=ended is not None and ended.alerted,
        closed=None if closed is None else record_of(TickClosure, closed),
    )


def _read_holder(store: Store, name: str, first: int) -> int:
    place = newest_number(store, "holder", name, sign="%")
    return read_claim(store, "holder", f"{name}%{place}").get_int("scheduler") if place else first


def list_ticks(
    store: Store, key: str, *, since: datetime | None = None, limit: int | None = None
) -> Iterator[TickRecord]:
    """The ticks that were taken, newest first: those scheduled at `since` or later, `limit` of them at most."""
    newest = newest_number(store, "ticknumber", key)
    for number in range(newest, max(0, newest - limit) if limit is not None else 0, -1):
        record = _read_numbered(store, key, number)
        if since is not None and record.tick.at < since:
            return
        yield record


def newest_tick(store: Store, key: str, *, seen: int = 0) -> TickRecord | None:
    """The last tick that was taken; `seen` is a number known to exist, for speed."""
    number = newest_number(store, "ticknumber", key, seen)
    return _read_numbered(store, key, number) if number else None


def _read_numbered(store: Store, key: str, number: int) -> TickRecord:
    name = str(read_claim(store, "ticknumber", f"{key}#{number}").facts["tick"])
    record = read_tick(store, key, name)
    assert record is not None, "a tick and its number are inserted together"
    return record


def list_unsettled(store: Store, key: str) -> list[TickRecord]:
    """Ticks that need attention, oldest first: open ones, and ended ones whose alert was not sent."""
    records = []
    for number in range(newest_number(store, "ticknumber", key), 0, -1):
        if is_settled(store, "ticknumber", key, number):
            break
        record = _read_numbered(store, key, number)
        if not record.settled:
            records.append(record)
    return records[::-1]


def list_open(store: Store, key: str) -> list[TickRecord]:
    """Ticks without an outcome, oldest first."""
    return [record for record in list_unsettled(store, key) if record.end is None]


def settle_ticks(store: Store, key: str) -> None:
    """Records up to where every tick is settled, so that nobody looks there again.

    Whoever has ended ticks or sent their alerts calls it once, after all of them: it reads every tick that is not yet
    known to be settled.
    """
    top = newest_number(store, "ticknumber", key)
    number = top
    while number and not is_settled(store, "ticknumber", key, number):
        if not _read_numbered(store, key, number).settled:
            top = number - 1
        number -= 1
    if top > number:
        settle_number(store, "ticknumber", key, top)
