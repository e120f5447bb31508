"""Shared memory: what a worker lends to a consumer on the same host, which maps it instead of being sent it.

A segment is anonymous memory, and lives as long as somebody holds it: whoever is killed, nothing is left of it. The
consumer opens it through /proc, where the system lets in the user who owns the worker, and nobody else. It is told
where only in the answer to a request, so it has shown the token. A segment is used again when the consumer says that
nothing refers to it any more: to fill it once more costs a third of making it anew.
"""

from __future__ import annotations

import mmap
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, ConfigDict

from spanwise.pipelines.input.snapshot.owner import place

if TYPE_CHECKING:
    import pyarrow as pa

SEGMENTS: Final = 8
"""How many segments a worker and a consumer keep to use them again."""

LEAST_BYTES: Final = 256 << 10
"""What is smaller is sent: to map it would take longer."""

_STEP_BYTES: Final = 1 << 20


class NotShared(Exception):
    """What was lent cannot be mapped here."""


class Loan(BaseModel):
    """Where a consumer finds what it was lent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int  #: of the segment; another one in another life of the worker
    pid: int
    fd: int
    device: int  #: with the inode, tells the segment from whatever may have the same pid and fd by now
    inode: int
    size_bytes: int


@cache
def host() -> str | None:
    """What two processes have in common only if one can map the other's memory; None where none can."""
    here = place() if hasattr(os, "memfd_create") else ""
    return f"{here} {os.geteuid()}" if here else None


class _Segment:
    def __init__(self, size_bytes: int) -> None:
        self.number = secrets.randbits(60)
        self.size_bytes = size_bytes
        self._fd = os.memfd_create("spanwise", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, size_bytes)
        self._map = mmap.mmap(self._fd, size_bytes)
        self._found = os.fstat(self._fd)

    def write(self, schema: pa.Schema, blocks: Sequence[pa.RecordBatch]) -> Loan:
        import pyarrow as pa

        with pa.FixedSizeBufferWriter(pa.py_buffer(self._map)) as sink:
            _write(sink, schema, blocks)
            size = sink.tell()
        return Loan(
            number=self.number,
            pid=os.getpid(),
            fd=self._fd,
            device=self._found.st_dev,
            inode=self._found.st_ino,
            size_bytes=size,
        )

    def close(self) -> None:
        """Lets go; what the consumer has mapped stays its own."""
        os.close(self._fd)


@dataclass
class _Shelf:
    """The segments of one client."""

    lent: OrderedDict[int, _Segment] = field(default_factory=OrderedDict)
    free: list[_Segment] = field(default_factory=list)
    touched: float = 0.0


class Lender:
    """A worker's segments, which hold at most `limit_bytes` together."""

    def __init__(self, limit_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._shelves: dict[int, _Shelf] = {}
        self.bytes = 0  #: of all segments

    def lend(
        self, client: int, returned: Iterable[int], schema: pa.Schema, blocks: Sequence[pa.RecordBatch]
    ) -> Loan | None:
        """Puts blocks where the client finds them; None if they are few, or there is no room.

        `returned` are numbers of segments that the client has done with.
        """
        import pyarrow as pa

        measure = pa.MockOutputStream()
        _write(measure, schema, blocks)
        size = measure.size()
        with self._lock:
            shelf = self._shelves.setdefault(client, _Shelf())
            shelf.touched = self._clock()
            for number in returned:
                segment = shelf.lent.pop(number, None)
                if segment is not None:
                    shelf.free.append(segment)
            if size < LEAST_BYTES:
                return None
            found = self._taken(shelf, size)
            if found is None:
                return None
            shelf.lent[found.number] = found
        return found.write(schema, blocks)

    def _taken(self, shelf: _Shelf, size_bytes: int) -> _Segment | None:
        """A segment of that size at least, which is nobody's."""
        for at, segment in enumerate(shelf.free):
            if segment.size_bytes >= size_bytes:
                return shelf.free.pop(at)
        while shelf.free:
            self._close(shelf.free.pop())
        while len(shelf.lent) >= SEGMENTS:
            self._close(shelf.lent.popitem(last=False)[1])
        size_bytes = -(-size_bytes // _STEP_BYTES) * _STEP_BYTES
        if self.bytes + size_bytes > self._limit_bytes:
            return None
        self.bytes += size_bytes
        return _Segment(size_bytes)

    def _close(self, segment: _Segment) -> None:
        self.bytes -= segment.size_bytes
        segment.close()

    def sweep(self, idle_s: float) -> None:
        """Lets go of what is of clients that have not asked for so long."""
        with self._lock:
            over = [client for client, shelf in self._shelves.items() if self._clock() - shelf.touched > idle_s]
            for client in over:
                shelf = self._shelves.pop(client)
                for segment in (*shelf.free, *shelf.lent.values()):
                    self._close(segment)

    def close(self) -> None:
        self.sweep(-1.0)


def _write(sink: pa.NativeFile, schema: pa.Schema, blocks: Sequence[pa.RecordBatch]) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sink, schema) as writer:
        for block in blocks:
            writer.write_batch(block)


class Borrower:
    """The segments of one worker that a consumer has mapped."""

    def __init__(self) -> None:
        self._mapped: OrderedDict[int, mmap.mmap] = OrderedDict()
        self._unused: list[int] = []  # added to by whoever drops the last reference, in any thread

    def returned(self) -> tuple[int, ...]:
        """Numbers of segments that nothing refers to; until `told`."""
        return tuple(self._unused)

    def told(self, numbers: Sequence[int]) -> None:
        """The worker has heard of these."""
        del self._unused[: len(numbers)]

    def blocks(self, loan: Loan) -> list[pa.RecordBatch]:
        """What was lent, without copying; the segment is in use until the last of it is dropped.

        Raises:
            NotShared: it cannot be mapped.
        """
        import pyarrow as pa

        segment = self._segment(loan)
        use = _Use(segment, loan.number, self._unused)
        content = pa.foreign_buffer(pa.py_buffer(segment).address, loan.size_bytes, base=use)
        return list(pa.ipc.open_stream(content))

    def _segment(self, loan: Loan) -> mmap.mmap:
        if loan.number not in self._mapped:
            self._mapped[loan.number] = _mapped(loan)
            while len(self._mapped) > SEGMENTS:
                self._mapped.popitem(last=False)  # what is in use of it holds it
        self._mapped.move_to_end(loan.number)
        return self._mapped[loan.number]


def _mapped(loan: Loan) -> mmap.mmap:
    try:
        fd = os.open(f"/proc/{loan.pid}/fd/{loan.fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise NotShared(f"the memory of process {loan.pid} cannot be opened: {error.strerror}") from error
    try:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != (loan.device, loan.inode) or found.st_size < loan.size_bytes:
            raise NotShared(f"process {loan.pid} is another one by now, or has let the memory go")
        return mmap.mmap(fd, found.st_size, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise NotShared(f"the memory of process {loan.pid} cannot be mapped: {error}") from error
    finally:
        with suppress(OSError):
            os.close(fd)


class _Use:
    """Held by what refers to a segment's content."""

    def __init__(self, segment: mmap.mmap, number: int, unused: list[int]) -> None:
        self._segment = segment
        self._number = number
        self._unused = unused

    def __del__(self) -> None:
        self._unused.append(self._number)
