"""Shared memory: what a worker lends a consumer on the same host, which maps it instead of receiving it.

A segment is anonymous memory that lives as long as somebody holds it: a process that is killed leaves nothing behind.
The consumer opens it through /proc, which admits only the user who owns the worker, and learns its place only from the
answer to a request, which proves that it knows the token. A segment is reused when the consumer says that nothing
refers to it any more: filling it again costs a third of creating a new one.
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

from spanwise.orchestrator import process

if TYPE_CHECKING:
    import pyarrow as pa

SEGMENTS: Final = 8
"""How many segments a worker and a consumer keep for reuse."""

LEAST_BYTES: Final = 256 << 10
"""Less than this is sent: mapping it would take longer."""

_STEP_BYTES: Final = 1 << 20


class NotShared(Exception):
    """The memory that was lent cannot be mapped here."""


class Loan(BaseModel):
    """Where a consumer finds the memory that it was lent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int  #: of the segment; random, so that a restarted worker does not repeat it
    pid: int
    fd: int
    device: int  #: with the inode, distinguishes the segment from a later file with the same pid and fd
    inode: int
    size_bytes: int


@cache
def memory_host() -> str | None:
    """A name that two processes share only if one can map the other's memory; None where none can."""
    me = process.identity()
    return f"{me.machine} {os.geteuid()}" if me.started and hasattr(os, "memfd_create") else None


class _MemorySegment:
    def __init__(self, size_bytes: int) -> None:
        self.number = secrets.randbits(60)
        self.size_bytes = size_bytes
        self._fd = os.memfd_create("spanwise", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, size_bytes)
        self._map = mmap.mmap(self._fd, size_bytes)
        self._stat = os.fstat(self._fd)

    def write(self, schema: pa.Schema, blocks: Sequence[pa.RecordBatch]) -> Loan:
        import pyarrow as pa

        with pa.FixedSizeBufferWriter(pa.py_buffer(self._map)) as sink:
            _write(sink, schema, blocks)
            size = sink.tell()
        return Loan(
            number=self.number,
            pid=os.getpid(),
            fd=self._fd,
            device=self._stat.st_dev,
            inode=self._stat.st_ino,
            size_bytes=size,
        )

    def close(self) -> None:
        """Drops the segment here; a consumer that has mapped it keeps it."""
        os.close(self._fd)


@dataclass
class _ClientSegments:
    """The segments of one consumer."""

    lent: OrderedDict[int, _MemorySegment] = field(default_factory=OrderedDict)
    free: list[_MemorySegment] = field(default_factory=list)
    touched: float = 0.0


class Lender:
    """A worker's segments, at most `limit_bytes` together."""

    def __init__(self, limit_bytes: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._by_client: dict[int, _ClientSegments] = {}
        self.bytes = 0  #: of all segments

    def lend(
        self, client: int, returned: Iterable[int], schema: pa.Schema, blocks: Sequence[pa.RecordBatch]
    ) -> Loan | None:
        """Puts blocks where the client can map them; None if they are small or there is no room.

        `returned` are the numbers of segments that the client no longer uses.
        """
        import pyarrow as pa

        measure = pa.MockOutputStream()
        _write(measure, schema, blocks)
        size = measure.size()
        with self._lock:
            segments = self._by_client.setdefault(client, _ClientSegments())
            segments.touched = self._clock()
            for number in returned:
                segment = segments.lent.pop(number, None)
                if segment is not None:
                    segments.free.append(segment)
            if size < LEAST_BYTES:
                return None
            free = self._take(segments, size)
            if free is None:
                return None
            segments.lent[free.number] = free
        return free.write(schema, blocks)

    def _take(self, segments: _ClientSegments, size_bytes: int) -> _MemorySegment | None:
        """A free segment of at least that size."""
        for at, segment in enumerate(segments.free):
            if segment.size_bytes >= size_bytes:
                return segments.free.pop(at)
        while segments.free:
            self._close(segments.free.pop())
        while len(segments.lent) >= SEGMENTS:
            self._close(segments.lent.popitem(last=False)[1])
        size_bytes = -(-size_bytes // _STEP_BYTES) * _STEP_BYTES
        if self.bytes + size_bytes > self._limit_bytes:
            return None
        self.bytes += size_bytes
        return _MemorySegment(size_bytes)

    def _close(self, segment: _MemorySegment) -> None:
        self.bytes -= segment.size_bytes
        segment.close()

    def sweep(self, idle_s: float) -> None:
        """Drops the segments of clients that have been silent for longer than this."""
        with self._lock:
            over = [client for client, segments in self._by_client.items() if self._clock() - segments.touched > idle_s]
            for client in over:
                segments = self._by_client.pop(client)
                for segment in (*segments.free, *segments.lent.values()):
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
        self._unused: list[int] = []  # filled by the thread that drops the last reference

    def unused(self) -> tuple[int, ...]:
        """The numbers of segments that nothing refers to, until `forget`."""
        return tuple(self._unused)

    def forget(self, numbers: Sequence[int]) -> None:
        """The worker knows that these are unused."""
        del self._unused[: len(numbers)]

    def blocks(self, loan: Loan) -> list[pa.RecordBatch]:
        """The blocks that were lent, not copied; the segment is in use until the last of them is dropped.

        Raises:
            NotShared: it cannot be mapped.
        """
        import pyarrow as pa

        segment = self._segment(loan)
        use = _SegmentUse(segment, loan.number, self._unused)
        content = pa.foreign_buffer(pa.py_buffer(segment).address, loan.size_bytes, base=use)
        return list(pa.ipc.open_stream(content))

    def _segment(self, loan: Loan) -> mmap.mmap:
        if loan.number not in self._mapped:
            self._mapped[loan.number] = _map(loan)
            while len(self._mapped) > SEGMENTS:
                self._mapped.popitem(last=False)  # blocks that are in use keep it alive
        self._mapped.move_to_end(loan.number)
        return self._mapped[loan.number]


def _map(loan: Loan) -> mmap.mmap:
    try:
        fd = os.open(f"/proc/{loan.pid}/fd/{loan.fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise NotShared(f"the memory of process {loan.pid} cannot be opened: {error.strerror}") from error
    try:
        stat = os.fstat(fd)
        if (stat.st_dev, stat.st_ino) != (loan.device, loan.inode) or stat.st_size < loan.size_bytes:
            raise NotShared(f"process {loan.pid} is another process by now, or has dropped the memory")
        return mmap.mmap(fd, stat.st_size, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise NotShared(f"the memory of process {loan.pid} cannot be mapped: {error}") from error
    finally:
        with suppress(OSError):
            os.close(fd)


class _SegmentUse:
    """Referenced by all that refers to a segment's content."""

    def __init__(self, segment: mmap.mmap, number: int, unused: list[int]) -> None:
        self._segment = segment
        self._number = number
        self._unused = unused

    def __del__(self) -> None:
        self._unused.append(self._number)
