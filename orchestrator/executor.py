"""Executors: the work of a node, in a child process of its own, forked from a warm server.

The server is forked from the controller once its pipeline is loaded, so the nodes need no pickling; it imports the
heavy libraries once, and each child starts with them in memory. It is the subreaper of everything the nodes start,
in a session of its own: when a child ends, whatever it left running is killed; when the controller ends, however it
ends, everything is. The controller alone writes metadata; a child tells it what it made over a socket of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn, Self

from orchestrator import fingerprint, process
from orchestrator.artifact import Artifact, missing_properties
from orchestrator.component import Attempt, Component, Outputs, Signature, signature_of
from orchestrator.errors import Fenced, MissingProperty, NodeFailed, RunError, SpanwiseError
from orchestrator.pipeline import Pipeline
from orchestrator.run import Run

GRACE_S = 10.0
"""Between asking a node to end and killing it."""

REAP_S = 10.0
"""How long killed processes are waited for before they are reported as unkillable."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One execution as its child needs it."""

    id: int  #: of the execution
    node: str
    inputs: Mapping[str, tuple[Artifact, ...]]
    prepared: Mapping[str, object]
    outputs: Mapping[str, str]  #: an empty place for each, by name
    run: Run
    attempt: int
    log: str  #: file that gets everything the child prints
    scratch: str
    checkpoints: str


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a job did not end well."""

    message: str  #: for people, without a traceback
    trace: str = ""  #: the user's lines
    timed_out: bool = False


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A job that is over: its child and everything below it are gone."""

    id: int
    outputs: Mapping[str, tuple[Artifact, ...]] | None = None  #: drafts, when it went well
    failure: Failure | None = None


@dataclass(frozen=True)
class FenceAsked:
    """A child wants to know whether the lease still holds; answer with `Executor.answer`."""

    id: int


@dataclass
class _Child:
    line: Connection
    outputs: Mapping[str, tuple[Artifact, ...]] | None = None
    failure: Failure | None = None
    stopped: str = ""  #: why we stopped it
    timed_out: bool = False


class Executor:
    """Runs jobs in child processes, for one run or several in turn. Close it on every way out: use `with`."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Forks the server: do this early, before threads and connections exist."""
        preload = dict.fromkeys(
            [*(m for n in pipeline if isinstance(n, Component) for m in n.preload), *pipeline.preload]
        )
        mine, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or the child writes it a second time
        with warnings.catch_warnings():
            # CPython warns of threads that might hold locks; ours hold none, and the server takes none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.session = os.fork()
        if not self.session:
            mine.close()
            _Server(Connection(theirs.detach()), pipeline, preload).serve()
        theirs.close()
        self._control = Connection(mine.detach())
        self._children: dict[int, _Child] = {}
        self._wake_read, self._wake_write = os.pipe()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, job: Job) -> None:
        """Starts a job; `wait` tells when it is over."""
        mine, theirs = socket.socketpair()
        try:
            self._control.send(("start", job))
            reduction.send_handle(self._control, theirs.fileno(), self.session)
        except OSError as error:
            mine.close()
            raise NodeFailed(_SERVER_DIED) from error
        finally:
            theirs.close()
        self._children[job.id] = _Child(Connection(mine.detach()))

    def stop(self, job: int, why: str, *, timed_out: bool = False, grace_s: float = GRACE_S) -> None:
        """Ends a job: SIGTERM to all of its processes, and SIGKILL after the grace."""
        child = self._children[job]
        if not child.stopped:
            child.stopped, child.timed_out = why, timed_out
            with contextlib.suppress(OSError):  # a server that died is noticed by `wait`
                self._control.send(("stop", job, grace_s))

    @property
    def running(self) -> tuple[int, ...]:
        """The jobs that are not over."""
        return tuple(self._children)

    def answer(self, job: int, lost: str | None) -> None:
        """Answers a child that asked about the fence: None when the lease holds, else what to tell it."""
        with contextlib.suppress(OSError):
            self._children[job].line.send(lost)

    def wait(self, timeout_s: float) -> list[Ended | FenceAsked]:
        """What happened; waits for at most `timeout_s`, less when something happens or `wake` is called."""
        lines = {child.line: job for job, child in self._children.items() if not child.line.closed}
        ready = connection.wait([self._control, self._wake_read, *lines], timeout_s)
        found: list[Ended | FenceAsked] = []
        for source in ready:
            if source == self._wake_read:
                os.read(self._wake_read, 4096)
            elif isinstance(source, Connection) and source in lines:
                found += self._listen(lines[source])
        if self._control in ready:
            found += self._hear_server()
        return found

    def wake(self) -> None:
        """Makes `wait` return; safe in signal handlers and other threads."""
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b".")

    def close(self) -> None:
        """Kills what still runs and ends the server."""
        if self._closed:
            return
        self._closed = True
        self._control.close()
        os.waitpid(self.session, 0)
        for child in self._children.values():
            child.line.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _listen(self, job: int) -> Iterable[FenceAsked]:
        child = self._children[job]
        try:
            what, value = child.line.recv()
        except (EOFError, OSError):
            child.line.close()  # it has ended; the server tells how
            return
        if what == "fence":
            yield FenceAsked(job)
        elif what == "done":
            child.outputs = value
        else:
            child.failure = value

    def _hear_server(self) -> Iterable[Ended]:
        try:
            _, job, status, survivors = self._control.recv()
        except (EOFError, OSError):
            for job in self.running:
                child = self._children.pop(job)
                child.line.close()
                yield Ended(id=job, failure=Failure(message=_SERVER_DIED))
            raise NodeFailed(_SERVER_DIED) from None
        child = self._children[job]
        while not child.line.closed and child.line.poll():
            tuple(self._listen(job))
        child.line.close()
        del self._children[job]
        yield _ended(job, child, status, survivors)


_SERVER_DIED = "The process that starts the nodes died (out of memory?); every node that ran was ended with it."


def _ended(job: int, child: _Child, status: int, survivors: Sequence[int]) -> Ended:
    left = f" These processes would not die: {', '.join(map(str, survivors))}." if survivors else ""
    if child.stopped:
        return Ended(id=job, failure=Failure(message=child.stopped + left, timed_out=child.timed_out))
    if child.failure is not None:
        return Ended(id=job, failure=child.failure)
    if child.outputs is not None:
        return Ended(id=job, outputs=child.outputs)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        how = f"It ended with exit status {code} before its work was done."
    else:
        how = f"It was killed by {signal.Signals(-code).name}."
        how += " The system may have been out of memory." if -code == signal.SIGKILL else ""
    return Ended(id=job, failure=Failure(message=how + left))


@dataclass
class _Worker:
    job: int
    kill_at: float | None = None  #: monotonic; when its grace is over
    killed_at: float | None = None
    status: int | None = None
    adopted: list[int] = field(default_factory=list)


class _Server:
    """The server's side: forks children, reaps them and what they leave, stops them. It never touches the metadata."""

    def __init__(self, control: Connection, pipeline: Pipeline, preload: Iterable[str]) -> None:
        self._control = control
        self._preload = list(preload)
        self._pipeline = pipeline
        self._workers: dict[int, _Worker] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> NoReturn:
        try:
            self._settle()
            while True:
                self._step()
        except EOFError:
            pass  # the controller is gone, or done with us
        except BaseException:  # noqa: BLE001  nothing above us may run in this process
            traceback.print_exc()
        finally:
            self._end_all()
            os._exit(0)

    def _settle(self) -> None:
        os.setsid()
        process.adopt_orphans()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the controller decides, and its end is our end
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        logging.getLogger().addHandler(logging.NullHandler())  # importing Beam logs, and would install a root handler
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._selector.register(self._control.fileno(), selectors.EVENT_READ)
        self._selector.register(read, selectors.EVENT_READ)
        self._wake = read

    def _import_one(self) -> None:
        """Imports the next module while there is nothing else to do; children import what they still lack."""
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            __import__(self._preload.pop(0))  # one that fails says so in the node that needs it

    def _step(self) -> None:
        now = time.monotonic()
        deadlines = [w.kill_at for w in self._workers.values() if w.kill_at is not None]
        soon = any(w.killed_at is not None or w.status is not None for w in self._workers.values())
        timeout = 0.02 if soon else max(0.0, min(deadlines) - now) if deadlines else None
        if not self._selector.select(0.0 if self._preload else timeout) and self._preload:
            self._import_one()
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        self._reap()
        while self._control.poll():
            self._obey()
        self._press()

    def _obey(self) -> None:
        what, *rest = self._control.recv()
        if what == "start":
            self._fork(rest[0], reduction.recv_handle(self._control))
            return
        job, grace_s = rest
        for pid, worker in self._workers.items():
            if worker.job == job and worker.kill_at is None and worker.status is None:
                worker.kill_at = time.monotonic() + grace_s
                process.send([pid, *process.descendants(pid)], signal.SIGTERM)

    def _fork(self, job: Job, line: int) -> None:
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of preloaded libraries; none holds our locks
            pid = os.fork()
        if not pid:
            self._control.close()
            self._selector.close()
            _child(self._pipeline, job, Connection(line), parent)
        os.close(line)
        self._workers[pid] = _Worker(job.id)

    def _reap(self) -> None:
        """Collects the dead; of a child that ended, what it left running is killed before its end is told."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] in self._workers:
                    self._workers[found[0]].status = found[1]
        ended = {pid: w for pid, w in self._workers.items() if w.status is not None}
        if not ended:
            return
        living = [p for p in self._workers if p not in ended]
        spared = {*living, *itertools.chain(*(process.descendants(p) for p in living))} if living else set()
        orphans = [p for p in process.descendants(os.getpid()) if p not in spared]
        process.send(orphans, signal.SIGKILL)
        now = time.monotonic()
        for pid, worker in ended.items():
            worker.killed_at = worker.killed_at or now
            if not orphans or now > worker.killed_at + REAP_S:
                del self._workers[pid]
                self._control.send(("ended", worker.job, worker.status, orphans))

    def _press(self) -> None:
        now = time.monotonic()
        for pid, worker in self._workers.items():
            if worker.status is None and worker.kill_at is not None and now >= worker.kill_at:
                process.send([*process.descendants(pid), pid], signal.SIGKILL)

    def _end_all(self) -> None:
        deadline = time.monotonic() + REAP_S
        while left := process.descendants(os.getpid()):
            process.send(left, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if time.monotonic() > deadline:
                return
            time.sleep(0.005)


def _child(pipeline: Pipeline, job: Job, line: Connection, parent: int) -> NoReturn:
    """The child's whole life; it never returns into what was forked with it."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)
        process.die_with_parent(parent)
        process.adopt_orphans()
        _print_to(job.log)
        _work(pipeline, job, line)
        code = 0
    except BaseException as error:  # noqa: BLE001  whatever it is, the controller is told
        traceback.print_exc()
        code = 1
        with contextlib.suppress(OSError):
            line.send(("failed", _failure(error)))
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
    os._exit(code)


def _print_to(log: str) -> None:
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    logging.basicConfig(
        force=True, level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.captureWarnings(capture=True)


def _work(pipeline: Pipeline, job: Job, line: Connection) -> None:
    node = pipeline.nodes[job.node]
    assert isinstance(node, Component)
    signature = signature_of(type(node))
    outputs: dict[str, Artifact | Outputs[Artifact]] = {}
    for name, spec in signature.outputs.items():
        Path(job.outputs[name]).mkdir(parents=True, exist_ok=True)
        place = job.outputs[name]
        outputs[name] = Outputs(spec.kind, place) if spec.many else spec.kind(place)
    Path(job.scratch).mkdir(parents=True, exist_ok=True)
    try:
        node.run(**_arguments(node, signature, job, outputs, line))
    finally:
        shutil.rmtree(job.scratch, ignore_errors=True)
    made = {
        name: tuple(_sealed(node.name, name, draft) for draft in _drafts(signature, name, output))
        for name, output in outputs.items()
    }
    line.send(("done", made))


def _arguments(
    node: Component,
    signature: Signature,
    job: Job,
    outputs: Mapping[str, object],
    line: Connection,
) -> dict[str, object]:
    arguments: dict[str, object] = {**node.parameters, **job.prepared, **outputs}
    for name, wanted in signature.inputs.items():
        given = [a.as_kind(wanted.kind) for a in job.inputs.get(name, ())]
        arguments[name] = given if wanted.many else next(iter(given), None)
    if signature.attempt is not None:
        arguments[signature.attempt] = Attempt(
            run=job.run,
            node=job.node,
            number=job.attempt,
            scratch=Path(job.scratch),
            checkpoints=Path(job.checkpoints),
            check_fence=lambda: _check_fence(line),
        )
    return arguments


def _check_fence(line: Connection) -> None:
    line.send(("fence", None))
    lost = line.recv()
    if lost is not None:
        raise Fenced(lost)


def _drafts(signature: Signature, name: str, output: Artifact | Outputs[Artifact]) -> list[Artifact]:
    if isinstance(output, Outputs):
        return output.drafts
    written = not signature.outputs[name].optional or any(output.path.iterdir()) or output.properties
    return [output] if written else []


def _sealed(node: str, name: str, draft: Artifact) -> Artifact:
    """The draft with its content known and on the disk; refuses one that lacks what its kind requires."""
    missing = missing_properties(draft)
    if missing:
        raise MissingProperty(
            f"{node} made its output {name!r} without {', '.join(missing)}, which every {draft.kind} must have; "
            f"set it in `run`: {name}.{missing[0]} = …"
        )
    tree = fingerprint.of_tree(draft.path, sync=True)
    return draft.with_content(tree.digest, tree.size_bytes)


def _failure(error: BaseException) -> Failure:
    ours = isinstance(error, SpanwiseError)
    name = "" if ours else f"{type(error).__name__}: "
    trace = "" if isinstance(error, RunError) else _user_lines(error)
    return Failure(message=f"{name}{error}" if str(error) else type(error).__name__, trace=trace)


def _user_lines(error: BaseException) -> str:
    """The traceback without our own frames around the user's code."""
    here = str(Path(__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = list(itertools.dropwhile(lambda f: f.filename.startswith(here), frames))
    return "".join(traceback.format_list(theirs)).rstrip()
