"""The dispatcher's one copy of its state: every change is decided under a lock, journaled, and only then visible."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.dispatcher.journal import Journal
from spanwise.pipelines.input.service.dispatcher.records import AcquireClient, LeaseSplits, ProduceSplits, Record
from spanwise.pipelines.input.service.dispatcher.state import ServiceState, records_of
from spanwise.pipelines.input.service.wire.connection import Unreachable


class StateKeeper:
    """Holds the state and changes it; `changed` is its lock, and wakes who waits for a change."""

    def __init__(self, journal: Journal | None) -> None:
        self.changed = threading.Condition()
        self._journal = journal
        self.state = ServiceState() if self._journal is None else self._journal.state
        self.splits_dealt = 0  #: handed to tasks or leased to consumers since it started
        self._closed = False

    def change(self, decide: Callable[[Any], Sequence[Record]], *, news: bool = True) -> Any:
        """Decides, journals and applies; returns the records when they, and all before them, are on disk.

        `news` wakes those who wait for a change.
        """
        with self.changed:
            records = decide(self.state)
            number = self.apply(records, news=news)
        self.sync(number)
        return records

    def apply(self, records: Sequence[Record], *, news: bool) -> int:
        """Journals and applies, under the lock; nobody may learn of it before a `sync` of the result."""
        if self._closed:
            raise Unreachable("the dispatcher is stopping.")
        number = 0 if self._journal is None else self._journal.write(records)
        for record in records:
            self.state.apply(record)
            match record:
                case ProduceSplits(count=count):
                    self.splits_dealt += count
                case LeaseSplits(taken=taken):
                    self.splits_dealt += len(taken)
        if news and any(map(_concerns_others, records)):
            self.changed.notify_all()
        if self._journal is not None and self._journal.is_long:
            self._journal.compact(records_of(self.state))
        return number

    def sync(self, number: int) -> None:
        if self._journal is not None:
            self._journal.sync(number)

    def check(self) -> None:
        """Raises Unreachable if another dispatcher may have the journal by now."""
        if self._journal is not None:
            self._journal.check()

    def confirm(self) -> None:
        """Waits until all that anybody can have seen is stored; nothing is answered before.

        Raises:
            Unreachable: that is not known, or another dispatcher may have the journal.
        """
        if self._journal is not None:
            self._journal.sync(self._journal.written)
            self._journal.check()

    @property
    def lost(self) -> ServiceError | None:
        """Why another dispatcher has the journal now; None as long as this one has it."""
        return None if self._journal is None else self._journal.lost

    def announce(self, address: str) -> None:
        """Lets those who know the place of the journal find the dispatcher."""
        if self._journal is not None:
            self._journal.announce(address)

    def refuse_changes(self) -> None:
        """Wakes everybody and changes nothing any more."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Closes the journal, which keeps its content."""
        if self._journal is not None:
            self._journal.close()


def _concerns_others(record: Record) -> bool:
    """Whether somebody may wait for it. A consumer that joins changes nothing for others, but in a coordinated read."""
    return not isinstance(record, AcquireClient) or record.index is not None
