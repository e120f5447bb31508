"""The dispatcher's journal: what every place of it promises, and how a record is written down.

A journal is the state: a record is stored before anybody learns of it, and whoever opens the journal again finds all
that was stored. It lies in a folder (`folder_journal`) or in object storage (`stored_journal`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, get_args

from pydantic import TypeAdapter

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines.input.service.dispatcher.records import Record
from spanwise.pipelines.input.service.dispatcher.state import ServiceState

COMPACT_RECORDS: Final = 100_000
"""How many records are added before the journal is compacted."""

_ADAPTERS: Final[dict[bytes, TypeAdapter[Any]]] = {
    kind.__name__.encode(): TypeAdapter(kind) for kind in get_args(Record)
}


class Journal(Protocol):
    """A journal that this dispatcher alone writes."""

    state: ServiceState  #: that the journal led to when it was opened

    @property
    def written(self) -> int:
        """How many records were written since it was opened, stored or not."""

    @property
    def is_long(self) -> bool:
        """Whether it is time to compact it."""

    @property
    def lost(self) -> ServiceError | None:
        """Why another dispatcher has the journal now; None as long as this one has it."""

    def write(self, records: Sequence[Record]) -> int:
        """Appends records; returns the number whose `sync` makes them safe."""

    def sync(self, number: int) -> None:
        """Waits until this many records are stored; concurrent callers share the work.

        Raises:
            Unreachable: that is not known; whoever asked may ask again, here or elsewhere.
        """

    def check(self) -> None:
        """Raises Unreachable if another dispatcher may have the journal by now."""

    def compact(self, records: Iterable[Record]) -> None:
        """Replaces all records by these; the caller sees to it that nobody writes meanwhile."""

    def announce(self, address: str) -> None:
        """Lets those who know the place of the journal find the dispatcher at this address."""

    def close(self) -> None:
        """Gives the journal up, which keeps its content."""


def line_of(record: Record) -> bytes:
    """A record as a line: the checksum of what follows, its kind, and its fields as JSON."""
    kind = type(record).__name__.encode()
    text = b"%s %s" % (kind, _ADAPTERS[kind].dump_json(record))
    return b"%08x %s\n" % (zlib.crc32(text), text)


def record_of(line: bytes) -> Record | None:
    """The record of a line; None if it is damaged.

    Raises:
        ServiceError: another version of spanwise has written it.
    """
    if len(line) < 10 or not line.endswith(b"\n"):  # noqa: PLR2004  checksum and blank
        return None
    text = line[9:-1]
    try:
        if int(line[:8], 16) != zlib.crc32(text):
            return None
    except ValueError:
        return None
    kind, _, content = text.partition(b" ")
    if kind not in _ADAPTERS:
        raise ServiceError(
            f"the dispatcher's journal has a record {kind.decode(errors='replace')!r}, which this version of spanwise "
            f"does not know. Start the version that wrote it, or start on an empty folder."
        )
    record: Record = _ADAPTERS[kind].validate_json(content)
    return record
