"""Worker processes: a function called in another process, its arguments and results in memory that both share.

What is large (the buffers of NumPy arrays and Arrow batches) is written once into anonymous memory whose descriptor
goes over a socket; the other side maps it, and it is gone when the last array on it is. Nothing has a name, so a
process that is killed leaves nothing in /dev/shm. Only the structure around the buffers is pickled.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from spanwise.orchestrator.code_meaning import CheckedShipment, ship_checked, unpack_checked
from spanwise.orchestrator.errors import NotPortable, ParameterError, WorkerLost
from spanwise.pipelines.input.op import Element

Function = Callable[[Element, int], Element]  #: of an element and its position

_HEAD = struct.Struct("<QQ")  # bytes of the pickle, bytes of shared memory
_ALIGNMENT = 64  # bytes, as Arrow wants it
_INLINE = 1 << 15  # bytes; mapping memory costs more than copying less than this through a socket
_UNPICKLABLE = (pickle.PicklingError, TypeError, AttributeError)  # raised by pickle
_PIECES = 512  # buffers a write, of the 1024 that POSIX allows


class Process:
    """Another process that calls a function for this one, an element at a time. One thread may use it."""

    def __init__(self, function: CheckedShipment, *, name: str) -> None:
        """Starts it; `function` comes from `ship_function`, `name` is the op's."""
        self._name = name
        self.cpu_s = 0.0  #: CPU time of its calls
        self._loaded = False
        ours, theirs = socket.socketpair()
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({theirs.fileno()})"
        # A fresh interpreter: a fork would take along the locks of Arrow's and Polars's threads, but not the threads.
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._socket = ours
        try:
            _send(ours, function)
        except OSError:
            self.close()
            raise

    def __call__(self, element: Element, position: int) -> Element:
        """The function's result; raises what it raised, with the traceback of the other process in its notes.

        Raises:
            NotPortable: the function cannot be loaded there, or the element or the result cannot be sent.
            WorkerLost: the process was killed, or ended by itself.
        """
        try:
            self._load()
            _send(self._socket, (element, position))
            answer = _receive(self._socket)
        except _UNPICKLABLE as error:
            raise self._not_portable(f"element {position}", error) from error
        except (EOFError, OSError) as error:
            code = self._process.wait()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise WorkerLost(
                f"{self._name}: the worker process {self._process.pid} {how} at element {position}. "
                "If memory ran out, run fewer calls at once (num_parallel=1) or use threads."
            ) from error
        if isinstance(answer, _NotTransferable):
            raise self._not_portable(f"the result of element {position}", answer.reason)
        if isinstance(answer, _RaisedError):
            raise answer.error()
        result, cpu_s = answer
        self.cpu_s += cpu_s
        return result

    def _load(self) -> None:
        """Waits until it has started and loaded the function."""
        if self._loaded:
            return
        answer = _receive(self._socket)
        if isinstance(answer, _NotTransferable):
            raise self._not_portable("the function", answer.reason)
        self._loaded = True

    def _not_portable(self, what: str, reason: object) -> NotPortable:
        return NotPortable(
            f"{self._name}: {what} cannot be sent between processes: {reason}. Use threads: workers='threads'."
        )

    def kill(self) -> None:
        """Ends the process, whatever it is doing; any thread may do so, and the call that waits raises WorkerLost."""
        self._process.kill()

    def close(self) -> None:
        """Ends the process and reaps it."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def ship_function(function: Function, *, name: str) -> CheckedShipment:
    """A function for another process, with what it closes over; modules are sent by their names and files.

    Raises:
        NotPortable: it holds something that exists only in this process.
    """
    try:
        return ship_checked(function)
    except ParameterError as error:
        raise NotPortable(
            f"{name}: the function cannot be sent to another process: {error.__cause__}. "
            "Create what it needs inside the function, or use threads: workers='threads'."
        ) from error


def serve(descriptor: int) -> None:
    """The other process: calls the function for each element that comes, until its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; our parent decides what it means
    parent = socket.socket(fileno=descriptor)
    threading.Thread(target=_end_with, args=(descriptor,), daemon=True).start()
    try:
        function = cast("Function", unpack_checked(_receive(parent)))
    except Exception as error:  # noqa: BLE001  such as a module that is not found here
        _send(parent, _NotTransferable(f"{type(error).__name__}: {error}".rstrip(".")))
        return
    _send(parent, None)
    while True:
        try:
            element, position = _receive(parent)
        except EOFError:
            return
        before = time.thread_time()
        try:
            answer: object = (function(element, position), time.thread_time() - before)
        except Exception as error:  # noqa: BLE001  whatever it is, it is raised in the parent
            answer = _RaisedError.of(error)
        del element
        try:
            _send(parent, answer)
        except _UNPICKLABLE as error:
            _send(parent, _NotTransferable(str(error)))
        del answer


def _end_with(descriptor: int) -> None:
    """Ends this process when its parent closes the socket or dies, even in the middle of a call."""
    waiting = select.poll()
    waiting.register(descriptor, 0)  # poll always reports that the other side is gone
    waiting.poll()
    os._exit(0)


@dataclass(frozen=True)
class _NotTransferable:
    """Something that could not be pickled or unpickled."""

    reason: str


@dataclass(frozen=True)
class _RaisedError:
    """An exception to be sent: pickle forgets where it was raised and what caused it."""

    chain: tuple[Exception, ...]  #: the exception, its cause, the cause's cause
    trace: str  #: the traceback, as Python prints it

    @classmethod
    def of(cls, error: BaseException) -> _RaisedError:
        trace = "".join(traceback.format_exception(error))
        chain = [error]
        while (cause := chain[-1].__cause__) is not None:
            chain.append(cause)
        return cls(tuple(map(_picklable, chain)), trace)

    def error(self) -> Exception:
        for error, cause in zip(self.chain, self.chain[1:], strict=False):
            error.__cause__ = cause
        self.chain[-1].add_note(f"In the worker process:\n{self.trace}")
        return self.chain[0]


def _picklable(error: BaseException) -> Exception:
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  made a line before
    except Exception:  # noqa: BLE001  an exception's own code decides what it raises here
        return RuntimeError(f"{type(error).__name__}: {error}")
    return copy if isinstance(copy, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


class _Pickler(pickle.Pickler):
    """Arrow's own pickling takes the whole buffers along of which a batch is a slice; its stream format does not."""

    def reducer_override(self, value: object) -> Any:
        pa = sys.modules.get("pyarrow")
        if pa is None or not isinstance(value, pa.RecordBatch | pa.Table):
            return NotImplemented
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write(value)
        return _from_stream, (pickle.PickleBuffer(sink.getvalue()), isinstance(value, pa.Table))


def _from_stream(stream: memoryview, whole: bool) -> object:
    import pyarrow as pa

    reader = pa.ipc.open_stream(pa.py_buffer(stream))
    return reader.read_all() if whole else reader.read_next_batch()


def _send(to: socket.socket, value: object) -> None:
    buffers: list[pickle.PickleBuffer] = []
    body = io.BytesIO()
    _Pickler(body, protocol=5, buffer_callback=buffers.append).dump(value)
    raw = [buffer.raw() for buffer in buffers]
    total = sum(_padded(piece.nbytes) for piece in raw)
    offsets = pickle.dumps([piece.nbytes for piece in raw])
    payload = offsets + body.getvalue()
    if total <= _INLINE:
        to.sendall(_HEAD.pack(len(payload), 0) + payload + b"".join(map(_with_padding, raw)))
        return
    memory = _create_memory()
    try:
        _write(memory, raw)
        socket.send_fds(to, [_HEAD.pack(len(payload), total)], [memory])
        to.sendall(payload)
    finally:
        os.close(memory)


def _receive(source: socket.socket) -> Any:
    head, descriptors, *_ = socket.recv_fds(source, _HEAD.size, 1)
    try:
        while head and len(head) < _HEAD.size:
            head += source.recv(_HEAD.size - len(head))
        if not head:
            raise EOFError("the other side is gone")
        length, total = _HEAD.unpack(head)
        payload = io.BytesIO(_receive_exactly(source, length))
        sizes: list[int] = pickle.load(payload)  # noqa: S301  from a process of ours
        shared = (
            _map_memory(descriptors[0], total)
            if total
            else memoryview(_receive_exactly(source, sum(map(_padded, sizes))))
        )
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    views, at = [], 0
    for size in sizes:
        views.append(shared[at : at + size])
        at += _padded(size)
    return pickle.load(payload, buffers=views)  # noqa: S301  from a process of ours


def _create_memory() -> int:
    """Anonymous memory, as a file descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("spanwise")
    with tempfile.TemporaryFile() as file:  # elsewhere than on Linux: a file that is removed already
        return os.dup(file.fileno())


def _map_memory(memory: int, size: int) -> memoryview:
    """The memory, mapped as long as anything refers to it, and writable like any array."""
    if sys.platform != "linux":
        return memoryview(mmap.mmap(memory, size))
    import pyarrow as pa

    # Python's own mmap keeps a descriptor open for each array that lives; there are only so many.
    with pa.memory_map(f"/proc/self/fd/{memory}", "r+") as file:
        region = file.read_buffer(size)
    writable = (ctypes.c_char * size).from_address(region.address)
    writable.keeps = region  # type: ignore[attr-defined]
    return memoryview(writable).cast("B")


def _write(memory: int, buffers: Sequence[memoryview]) -> None:
    pieces = [piece for buffer in buffers for piece in (buffer, _padding(buffer.nbytes)) if piece.nbytes]
    while pieces:
        written = os.writev(memory, pieces[:_PIECES])
        while pieces and written >= pieces[0].nbytes:
            written -= pieces.pop(0).nbytes
        if written:
            pieces[0] = pieces[0][written:]


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _padding(size: int) -> memoryview:
    return memoryview(bytes(_padded(size) - size))


def _with_padding(buffer: memoryview) -> bytes:
    return bytes(buffer) + bytes(_padding(buffer.nbytes))


def _receive_exactly(source: socket.socket, size: int) -> bytearray:
    taken = bytearray(size)
    view = memoryview(taken)
    while view:
        count = source.recv_into(view)
        if not count:
            raise EOFError("the other side is gone")
        view = view[count:]
    return taken
