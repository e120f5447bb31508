"""The journal in object storage: a sequence of segments, each written once, on condition that nothing is there yet.

    dispatcher.json              the leader record: who writes, and which objects are the journal
    journal/TOKEN/SEGMENT        the records of one flush of the dispatcher with that token; the last one is a seal
    snapshots/TOKEN-SEGMENT-ID   the shortest journal that leads to the state before that segment
    datasets/TOKEN-DIGEST        the graph of a dataset

*The commit point* is the write of a segment: what waits while one is being written is in the next, and a change is
acknowledged when its segment is there. Whoever takes over replaces the leader record first. Then it reads the segments
of those before it to the end, and writes a *seal* where the next segment would be. From then on a write of the earlier
dispatcher fails, however late it arrives, because something is there already: seals stay for ever.

Nothing is renamed, and no listing is needed: the record names the first segment, and the others are counted. A snapshot
counts when the record names it. Whoever is killed leaves objects that nothing names, which the next one removes.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from spanwise.orchestrator.errors import Conflict, ServiceError, StorageError
from spanwise.orchestrator.storage import ObjectUrl, StorageBucket, call_side_by_side, open_bucket, write_once
from spanwise.pipelines.input.service.dispatcher.graphs import digest
from spanwise.pipelines.input.service.dispatcher.journal import COMPACT_RECORDS, line_of, record_of
from spanwise.pipelines.input.service.dispatcher.leadership import lead
from spanwise.pipelines.input.service.dispatcher.records import Record
from spanwise.pipelines.input.service.dispatcher.state import ServiceState, records_of
from spanwise.pipelines.input.service.wire.connection import Unreachable

COMPACT_SEGMENTS: Final = 500
"""How many segments are added before the journal is compacted: whoever takes over reads them all."""

_READ_AHEAD: Final = 8
_SYNC_S: Final = 4.0
"""How long a request waits for the storage, before whoever sent it is asked to come again."""

_SEAL: Final = "seal"
_RECORDS: Final = "records"

_log = logging.getLogger("spanwise.service.dispatcher")


class StoredJournal:
    """The journal at a URL, of the dispatcher that leads."""

    def __init__(self, home: ObjectUrl, ttl_s: float, on_standby: Callable[[str], None]) -> None:
        """Waits until nobody else has it.

        Raises:
            ServiceError: it is damaged, or of another version.
            StorageError: the storage cannot be reached, or refuses.
        """
        self._home = home
        self._lead = lead(home, ttl_s, on_standby)
        self._token = self._lead.record.token
        self._segment = 0  # the number of the next one
        self._buffer: list[bytes] = []  # lines that are in no segment yet
        self._unsure: tuple[bytes, int] | None = None  # a segment that may be stored, and the records up to its end
        self._written = self._stored = self._compacted = 0  # records, since it was opened
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        try:
            self.state = self._take_over()
        except BaseException:
            self._lead.release()
            raise

    # Taking over.

    def _take_over(self) -> ServiceState:
        record = self._lead.record
        state = ServiceState()
        if record.snapshot:
            self._apply(record.snapshot, self._read(record.snapshot), state)
        for token in range(record.from_token, self._token):
            self._replay(token, record.from_segment if token == record.from_token else 0, state)
        with _as_service_errors():
            self._begin(records_of(state))
        used = {*state.graphs.values(), self._lead.record.snapshot.rpartition("/")[2]}
        threading.Thread(target=self._clean, args=(used,), name="dispatcher-clean", daemon=True).start()
        return state

    def _replay(self, token: int, segment: int, state: ServiceState) -> None:
        """Applies the segments of an earlier dispatcher, and seals them behind the last one."""
        while True:
            numbers = range(segment, segment + _READ_AHEAD)
            for content in call_side_by_side(lambda n: self._bucket.read(self._key(_segment_name(token, n))), numbers):
                if content is None:
                    break
                if self._apply(_segment_name(token, segment), content[0], state) == _SEAL:
                    return
                segment += 1
            else:
                continue
            try:
                self._write_once(_segment_name(token, segment), _packed(self._token, _SEAL, []))
            except Conflict:
                continue  # it has written once more; or it is sealed, by a dispatcher that did not come further
            return

    def _begin(self, records: Iterable[Record]) -> None:
        """Has the journal begin anew with these records and the next segment."""
        name = f"snapshots/{self._token:06}-{self._segment:09}-{secrets.token_hex(4)}"  # never that of the one before
        with _as_unreachable():
            self._bucket.write(self._key(name), _packed(self._token, _RECORDS, [line_of(each) for each in records]))
        self._lead.amend(snapshot=name, from_token=self._token, from_segment=self._segment)
        self._compacted = self._written

    def _clean(self, used: Collection[str]) -> None:
        """Removes what dispatchers before this one have left: never anything that a later one may have written."""
        try:
            names = [info.key[len(self._key("")) :] for info in self._bucket.list(self._home.key)]
            surplus = list_surplus(names, self._token, used)
            self._bucket.delete(self._key(name) for name in surplus)
            _log.info("journal-cleaned", extra={"journal": self._home, "objects": len(surplus)})
        except StorageError as error:
            _log.warning("journal-not-cleaned", extra={"journal": self._home, "reason": str(error)})

    # Writing.

    @property
    def written(self) -> int:
        return self._written

    @property
    def is_long(self) -> bool:
        segments = self._segment - self._lead.record.from_segment
        return self._written - self._compacted >= COMPACT_RECORDS or (
            segments >= COMPACT_SEGMENTS and self._written > self._compacted
        )

    @property
    def lost(self) -> ServiceError | None:
        return self._lead.lost

    def write(self, records: Sequence[Record]) -> int:
        self._lead.check()
        lines = [line_of(record) for record in records]
        with self._writing:
            self._buffer += lines
            self._written += len(lines)
            return self._written

    def sync(self, number: int) -> None:
        while self._stored < number:
            if not self._syncing.acquire(timeout=_SYNC_S):
                raise Unreachable(f"{self._home} takes more than {_SYNC_S:g} s to store the dispatcher's journal.")
            try:
                if self._stored < number:
                    self._flush()
            finally:
                self._syncing.release()

    def _flush(self) -> None:
        """Writes a segment with all that waits. One whose fate is not known is written again first, as it was."""
        self._lead.raise_if_lost()
        if self._unsure is None:
            with self._writing:
                lines, self._buffer = self._buffer, []
                self._unsure = (_packed(self._token, _RECORDS, lines), self._written)
        content, upto = self._unsure
        name = _segment_name(self._token, self._segment)
        with _as_unreachable():
            try:
                self._write_once(name, content)
            except Conflict:
                self._lead.lose(f"{name} of its journal is sealed, so another dispatcher has taken over")
        self._lead.raise_if_lost()
        self._unsure = None
        self._segment += 1
        self._stored = upto

    def _write_once(self, name: str, content: bytes) -> None:
        """Writes an object that nobody else has written; raises Conflict if somebody has written another one."""
        while write_once(self._bucket, self._key(name), content, replacing="") is None:
            if self._bucket.head(self._key(name)) is not None:
                raise Conflict(f"{self._home / name} was written by somebody else.")
            # S3 may refuse one of two writes at once though neither has come to its end

    def check(self) -> None:
        self._lead.check()

    def compact(self, records: Iterable[Record]) -> None:
        """Does nothing if the storage is away: the next change tries again."""
        try:
            self.sync(self._written)
            with self._syncing:
                before = self._lead.record
                self._begin(records)
        except Unreachable as error:
            self._compacted = self._written  # not at each change
            _log.warning("compaction-failed", extra={"journal": self._home, "reason": str(error)})
            return
        old = [_segment_name(self._token, segment) for segment in range(before.from_segment, self._segment)]
        names = [before.snapshot, *old]
        threading.Thread(target=self._remove, args=(names,), name="dispatcher-clean", daemon=True).start()

    def _remove(self, names: Iterable[str]) -> None:
        try:
            self._bucket.delete(self._key(name) for name in names)
        except StorageError as error:  # the next dispatcher removes them
            _log.warning("journal-not-cleaned", extra={"journal": self._home, "reason": str(error)})

    def announce(self, address: str) -> None:
        with _as_service_errors():
            self._lead.amend(address=address)

    def close(self) -> None:
        self._lead.release()

    # Graphs of datasets.

    def put(self, graph: bytes) -> str:
        """Stores a graph; returns its name."""
        name = f"{self._token:06}-{digest(graph)}"
        with _as_unreachable():
            self._bucket.write(self._key(f"datasets/{name}"), graph)
        return name

    def get(self, name: str) -> bytes:
        """The graph of that name."""
        with _as_unreachable():
            found = self._bucket.read(self._key(f"datasets/{name}"))
        if found is None or digest(found[0]) != name.partition("-")[2]:
            raise ServiceError(
                f"{self._home}/datasets/{name}, the graph of a registered dataset, is {'damaged' if found else 'gone'}."
                f" Restore it, or start the dispatcher at the URL of an empty folder."
            )
        return found[0]

    # Objects.

    @property
    def _bucket(self) -> StorageBucket:
        return open_bucket(self._home.home)

    def _key(self, name: str) -> str:
        return (self._home / name).key

    def _read(self, name: str) -> bytes:
        found = self._bucket.read(self._key(name))
        if found is None:
            raise ServiceError(
                f"{self._home / name} is gone, which is part of the dispatcher's journal. Restore it, or start the "
                f"dispatcher at the URL of an empty folder."
            )
        return found[0]

    def _apply(self, name: str, content: bytes, state: ServiceState) -> str:
        """Applies the records of an object; returns what kind it is."""
        unpacked = _unpacked(content)
        if unpacked is None:
            raise ServiceError(
                f"{self._home / name} is damaged: it is not what was written. Restore it from a backup, or start the "
                f"dispatcher at the URL of an empty folder."
            )
        kind, records = unpacked
        for record in records:
            state.apply(record)
        return kind


def _segment_name(token: int, segment: int) -> str:
    return f"journal/{token:06}/{segment:09}"


def _packed(token: int, kind: str, lines: Sequence[bytes]) -> bytes:
    """An object: a line that says what it is, by whom, and the checksum of all that follows."""
    body = b"".join(lines)
    return json.dumps({"kind": kind, "by": token, "crc32": zlib.crc32(body)}).encode() + b"\n" + body


def _unpacked(content: bytes) -> tuple[str, list[Record]] | None:
    """The kind of an object and its records; None if it is damaged."""
    head, _, body = content.partition(b"\n")
    try:
        header = json.loads(head)
        kind, crc32 = header["kind"], header["crc32"]
    except (ValueError, KeyError, TypeError):
        return None
    if crc32 != zlib.crc32(body):
        return None
    records = [record_of(line) for line in body.splitlines(keepends=True)]
    return None if None in records else (kind, [record for record in records if record is not None])


def list_surplus(names: Iterable[str], token: int, used: Collection[str]) -> list[str]:
    """Of the objects of a journal, those that dispatchers before this one have left and that nobody needs.

    Of each journal the segment with the highest number stays: it is the seal, or will be below it. So an old listing,
    in which the seal is missing, only leaves more.
    """
    last: dict[str, str] = defaultdict(str)
    segments = []
    surplus = []
    for name in names:
        folder, _, rest = name.partition("/")
        writer = rest[:6]
        if not writer.isdigit() or int(writer) >= token:
            continue
        if folder == "journal":
            last[writer] = max(last[writer], name)
            segments.append(name)
        elif folder in ("snapshots", "datasets") and rest not in used:
            surplus.append(name)
    return surplus + [name for name in segments if name not in last.values()]


@contextmanager
def _as_unreachable() -> Iterator[None]:
    """A storage that is away is a dispatcher that is away: whoever asked asks again."""
    try:
        yield
    except Conflict:
        raise
    except StorageError as error:
        raise Unreachable(str(error)) from error


@contextmanager
def _as_service_errors() -> Iterator[None]:
    """When it starts, nobody asks again."""
    try:
        yield
    except Unreachable as error:
        raise ServiceError(str(error)) from error
