"""Missed ticks: those that did not succeed and that nothing has closed; and their closing, each once.

A later run recovers a tick, windows that go on without its span supersede it, and a person may acknowledge it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from spanwise.orchestrator.claim_record import facts_of
from spanwise.orchestrator.errors import NotRecorded, UsageError
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store
from spanwise.scheduler.ledger.numbered import newest_number, read_claim, settle
from spanwise.scheduler.ledger.ticks import TickRecord, read_tick
from spanwise.scheduler.schedule.outcome import Closing, TickClosure


class MissedTicks:
    """The missed ticks of a store, for whoever records many recoveries: reads each tick once, so that n take n reads.

    Others may close ticks meanwhile: what it has read as open may be closed, never the other way round.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: dict[str, dict[int, TickRecord]] = {}  # by key, then by number among the abnormal ones
        self._newest: dict[str, int] = {}
        self._settled: dict[str, int] = {}

    def is_any(self, key: str) -> bool:
        """Whether a tick of this schedule key is missed now."""
        ticks = self._read(key)
        for number, record in list(ticks.items()):
            if self._store.find_claim("closed", record.name) is None:
                return True
            del ticks[number]
        return False

    def recover(
        self,
        key: str,
        spans: Collection[int],
        run: int,
        *,
        now: datetime,
        is_done: Callable[[TickRecord], bool] = lambda _record: True,
        earlier: Callable[[TickRecord], Collection[int]] = lambda _record: (),
    ) -> list[TickRecord]:
        """Records that a run has recovered the missed ticks with no other span, and returns them.

        A tick without a span was to run on the newest data, whichever that was, so any run recovers it; none recovers
        one whose span is not known. Of a tick that stands for several, `earlier` are the spans that runs before it have
        done, too. `is_done` says whether what else a tick was to do is done, since it came.
        """
        ticks = self._read(key)
        done = {
            number: record
            for number, record in ticks.items()
            if not record.tick.span_unknown and _covers(record, spans, earlier) and is_done(record)
        }
        closed = _close(self._store, done.values(), TickClosure(how=Closing.RECOVERED, at=now, run=run))
        for number in done:
            del ticks[number]
        top = min(ticks, default=self._newest[key] + 1) - 1
        if closed and top > self._settled[key]:
            settle(self._store, "abnormal", key, top)
            self._settled[key] = top
        return closed

    def _read(self, key: str) -> dict[int, TickRecord]:
        """The ticks that were open when they were read, oldest first; reads those that have come since."""
        before = self._newest.get(key, 0)
        newest = newest_number(self._store, "abnormal", key, before)
        found: dict[int, TickRecord] = {}
        self._settled.setdefault(key, 0)
        for number, (record, settled) in zip(range(newest, before, -1), _walk(self._store, key, newest), strict=False):
            if settled:
                self._settled[key] = number
                break
            if record.closed is None:
                found[number] = record
        self._newest[key] = newest
        ticks = self._open.setdefault(key, {})
        ticks.update(sorted(found.items()))
        return ticks


def _covers(record: TickRecord, spans: Collection[int], earlier: Callable[[TickRecord], Collection[int]]) -> bool:
    left = [span for span in record.spans if span not in spans]
    return not left or (len(left) < len(record.spans) and set(left) <= set(earlier(record)))


def is_any_missed(store: Store, key: str) -> bool:
    """Whether a tick of this schedule key is missed; stops at the first."""
    return any(record.closed is None for record in _walk_unsettled(store, key))


def list_missed(store: Store, key: str) -> list[TickRecord]:
    """Abnormal ticks that nothing has closed, in the order in which they ended."""
    return [record for record in _walk_unsettled(store, key) if record.closed is None][::-1]


def list_abnormal(store: Store, key: str, limit: int) -> list[TickRecord]:
    """The last `limit` abnormal ticks, closed or not, in the order in which they ended."""
    return [record for record, _ in itertools.islice(_walk(store, key), limit)][::-1]


def _walk(store: Store, key: str, newest: int | None = None) -> Iterator[tuple[TickRecord, bool]]:
    """Abnormal ticks, newest first, each with whether it and all before it are closed."""
    for number in range(newest_number(store, "abnormal", key) if newest is None else newest, 0, -1):
        claim = read_claim(store, "abnormal", f"{key}#{number}")
        record = read_tick(store, key, str(claim.facts["tick"]))
        assert record is not None, "a tick that ended was taken"
        yield record, bool(claim.facts["settled"])


def _walk_unsettled(store: Store, key: str) -> Iterator[TickRecord]:
    return (record for record, _ in itertools.takewhile(lambda found: not found[1], _walk(store, key)))


def close_ticks(store: Store, records: Iterable[TickRecord], closure: TickClosure) -> list[TickRecord]:
    """Closes missed ticks; returns those that nobody else had closed."""
    closed = _close(store, records, closure)
    for key in {record.key for record in closed}:
        _settle(store, key)
    return closed


def _close(store: Store, records: Iterable[TickRecord], closure: TickClosure) -> list[TickRecord]:
    closed = []
    for record in records:
        try:
            store.claim(Claim("closed", record.name, facts_of(closure)))
        except AlreadyClaimed:
            continue
        closed.append(replace(record, closed=closure))
    return closed


def select_missed(
    store: Store, keys: Iterable[str], *, spans: Mapping[str, Collection[int]] | None = None, tick: str | None = None
) -> list[TickRecord]:
    """The missed ticks of these spans, by schedule key, since each has a calendar of its own; or of this name.

    Raises:
        NotRecorded: there are none.
        UsageError: the named tick is no missed tick; the message says what it is.
    """
    every = list(keys)
    missed = [record for key in every for record in list_missed(store, key)]
    if tick is None:
        found = [r for r in missed if r.spans and all(span in (spans or {}).get(r.key, ()) for span in r.spans)]
    else:
        found = [r for r in missed if r.tick.name == tick]
        for known in () if found else filter(None, (read_tick(store, key, tick) for key in every)):
            raise UsageError(f"The tick {known.name} is no missed tick: {_describe(known)}.")
    if found:
        return found
    names = ", ".join(record.name for record in missed) or "none"
    asked = "of these spans" if tick is None else f"named {tick!r}"
    raise NotRecorded(f"{', '.join(every)} has no missed tick {asked}; missed are: {names}.")


def _describe(record: TickRecord) -> str:
    if record.end is None:
        return "it has not ended"
    return record.end.outcome.value if record.closed is None else f"it was {record.closed.how.value}"


def _settle(store: Store, key: str) -> None:
    """Records up to where every abnormal tick is closed, so that nobody looks there again."""
    top = newest_number(store, "abnormal", key)
    number = top
    for record, settled in _walk(store, key):
        if settled:
            break
        if record.closed is None:
            top = number - 1
        number -= 1
    if top > number:
        settle(store, "abnormal", key, top)
