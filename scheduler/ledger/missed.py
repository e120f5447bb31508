"""Missed ticks: those that did not succeed and that nothing has closed; and their closing, each once.

A later run recovers a tick, windows that go on without its span supersede it, and a person may acknowledge it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from spanwise.orchestrator.claim_record import facts_of
from spanwise.orchestrator.errors import NotRecorded, UsageError
from spanwise.orchestrator.store import AlreadyClaimed, Claim, Store
from spanwise.scheduler.ledger.numbered import newest_number, read_claim, settle
from spanwise.scheduler.ledger.ticks import TickRecord, read_tick
from spanwise.scheduler.schedule.outcome import Closing, TickClosure


def list_missed(store: Store, key: str) -> list[TickRecord]:
    """Abnormal ticks that nothing has closed, in the order in which they ended."""
    open_ones = itertools.takewhile(lambda found: not found[1], _walk(store, key))
    return [record for record, _ in open_ones if record.closed is None][::-1]


def list_abnormal(store: Store, key: str, limit: int) -> list[TickRecord]:
    """The last `limit` abnormal ticks, closed or not, in the order in which they ended."""
    return [record for record, _ in itertools.islice(_walk(store, key), limit)][::-1]


def _walk(store: Store, key: str) -> Iterator[tuple[TickRecord, bool]]:
    """Abnormal ticks, newest first, each with whether it and all before it are closed."""
    for number in range(newest_number(store, "abnormal", key), 0, -1):
        claim = read_claim(store, "abnormal", f"{key}#{number}")
        record = read_tick(store, key, str(claim.facts["tick"]))
        assert record is not None, "a tick that ended was taken"
        yield record, bool(claim.facts["settled"])


def close_ticks(store: Store, records: Iterable[TickRecord], closure: TickClosure) -> list[TickRecord]:
    """Closes missed ticks; returns those that nobody else had closed."""
    closed = []
    for record in records:
        try:
            store.claim(Claim("closed", record.name, facts_of(closure)))
        except AlreadyClaimed:
            continue
        closed.append(replace(record, closed=closure))
    for key in {record.key for record in closed}:
        _settle(store, key)
    return closed


def recover_ticks(
    store: Store,
    key: str,
    spans: Collection[int],
    run: int,
    *,
    now: datetime,
    parts: Collection[str] | None = None,
) -> list[TickRecord]:
    """Records that a run has recovered every missed tick of these parts, or of all, with no other span; returns those.

    A tick without a span was to run on the newest data, whichever that was, so any run of its part recovers it.
    """
    missed = [r for r in list_missed(store, key) if parts is None or r.tick.part in parts]
    done = [r for r in missed if all(span in spans for span in r.spans)]
    return close_ticks(store, done, TickClosure(how=Closing.RECOVERED, at=now, run=run))


def select_missed(
    store: Store, keys: Iterable[str], *, spans: Collection[int] | None = None, tick: str | None = None
) -> list[TickRecord]:
    """The missed ticks of these spans, or of this name.

    Raises:
        NotRecorded: there are none.
        UsageError: the named tick is no missed tick; the message says what it is.
    """
    every = list(keys)
    missed = [record for key in every for record in list_missed(store, key)]
    if tick is None:
        found = [r for r in missed if r.spans and all(span in (spans or ()) for span in r.spans)]
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
