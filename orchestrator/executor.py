"""Executors: the work of a node, in a child process of its own, forked from a warm server.

The server is forked from the controller once its pipeline is loaded, so the nodes need no pickling; it imports the
heavy libraries once, and each child starts with them in memory. It is the subreaper of everything the nodes start:
when a child ends, whatever it left running is killed; when the controller ends, however it ends, everything is.
Between the two stands the keeper, which leads their session and does nothing but end what a killed server leaves.
The controller alone writes metadata; a child tells it what it made over a socket of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn, Self

from spanwise.orchestrator import fingerprint, process
from spanwise.orchestrator.artifact import Artifact, missing_properties, recordable
from spanwise.orchestrator.component import Attempt, Component, Outputs, Signature, signature_of
from spanwise.orchestrator.errors import Fenced, MissingProperty, NodeFailed, RunError, SpanwiseError
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.process import Survivor
from spanwise.orchestrator.run import Run
from spanwise.orchestrator.user_code import without_our_frames

log = logging.getLogger("spanwise.executor")

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
    snapshots: str


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
        if any(re.fullmatch(r"polars-[0-9]+", name) for name in process.thread_names()):
            log.warning(
                "Polars was used in this process, and its threads do not survive a fork: nodes that use it will hang. "
                "Use it inside the functions that nodes call, not while the pipeline file is imported."
            )
        mine, theirs = socket.socketpair()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()  # or the child writes it a second time
        controller = os.getpid()
        self.mark = process.new_mark()
        with process.holding_back(*_ASKING_TO_END), warnings.catch_warnings():
            # CPython warns of threads that might hold locks; ours hold none, and the server takes none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.session = os.fork()
            if not self.session:
                mine.close()
                _keep(_Server(Connection(theirs.detach()), pipeline, preload), controller, self.mark)
        theirs.close()
        self._control = Connection(mine.detach())
        self._children: dict[int, _Child] = {}
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._keeping = True
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
        except BaseException as error:
            mine.close()
            if isinstance(error, OSError):
                raise NodeFailed(_SERVER_DIED) from error
            raise
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
        with contextlib.suppress(OSError, KeyError):  # it has ended meanwhile
            self._children[job].line.send(lost)

    def wait(self, timeout_s: float) -> list[Ended | FenceAsked]:
        """What happened; waits for at most `timeout_s`, less when something happens or `wake` is called."""
        lines = {child.line: job for job, child in self._children.items() if not child.line.closed}
        ready = connection.wait([self._control, self._woken, *lines], timeout_s)
        found: list[Ended | FenceAsked] = []
        for source in ready:
            if source is self._woken:
                self._woken.recv(4096)
            elif isinstance(source, Connection) and source in lines:
                found += self._listen(lines[source])
        if self._control in ready:
            found.append(self._hear_server())
        return found

    def wake(self) -> None:
        """Makes `wait` return; safe in signal handlers and other threads."""
        with contextlib.suppress(OSError):
            self._wake.send(b".")

    def sweep(self) -> list[Survivor]:
        """Kills whatever jobs that are over have left, and returns who would not die; to be called when none runs."""
        waiting = [self.session, *process.children(self.session)] if self._keeping else []
        return process.end(self.mark, sparing=waiting, limit_s=REAP_S)

    def close(self) -> None:
        """Kills what still runs and ends the server."""
        if self._closed:
            return
        self._closed = True
        self._end_server()
        self._control.close()
        for child in self._children.values():
            child.line.close()
        self._woken.close()
        self._wake.close()

    def _end_server(self) -> None:
        if not self._keeping:
            return
        self._keeping = False
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # somebody else has collected it
            os.kill(self.session, signal.SIGTERM)
            _, status = os.waitpid(self.session, 0)
            if status:  # it was killed before it could end the others
                process.end(self.mark, limit_s=REAP_S)

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

    def _hear_server(self) -> Ended:
        try:
            _, job, status, survivors = self._control.recv()
        except (EOFError, OSError):
            self._end_server()  # its keeper ends what it has left, before anybody is told
            raise NodeFailed(_SERVER_DIED) from None
        child = self._children[job]
        while not child.line.closed and child.line.poll():
            tuple(self._listen(job))
        child.line.close()
        del self._children[job]
        return _ended(job, child, status, survivors)


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
        how = f"It was killed by {_signal_name(-code)}."
        how += " The system may have been out of memory." if -code == signal.SIGKILL else ""
    return Ended(id=job, failure=Failure(message=how + left))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


_ASKING_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _keep(server: _Server, controller: int, mark: int) -> NoReturn:
    """The keeper's life: once the server has ended, or the controller has asked for its end, nothing of it is left."""
    try:
        os.setsid()
        process.adopt_orphans()
        if not process.take_mark(mark) and process.LINUX:
            log.warning("This system marks no processes: what detaches from a run that is killed may live on.")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        keeper = os.getpid()
        pid = os.fork()
        if not pid:
            server.serve(controller, keeper)
        server.let_go()  # or the controller could not read that the server has ended
        # Both stay blocked and are waited for: a handler would miss the one that comes just before a blocking waitpid.
        awaited = (signal.SIGTERM, signal.SIGCHLD)
        signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        while not _collected(pid):
            if signal.sigwait(awaited) is signal.SIGTERM:
                process.send([pid], signal.SIGKILL)
    finally:
        process.end_below(limit_s=REAP_S)
        os._exit(0)


def _collected(pid: int) -> bool:
    """Whether this child has ended; collects all that have."""
    while True:
        found, _ = os.waitpid(-1, os.WNOHANG)
        if found in (0, pid):
            return found == pid


@dataclass
class _Worker:
    job: int
    kill_at: float | None = None  #: monotonic; when its grace is over
    killed_at: float | None = None
    status: int | None = None


class _Server:
    """The server's side: forks children, reaps them and what they leave, stops them. It never touches the metadata."""

    def __init__(self, control: Connection, pipeline: Pipeline, preload: Iterable[str]) -> None:
        self._control = control
        self._preload = list(preload)
        self._pipeline = pipeline
        self._workers: dict[int, _Worker] = {}

    def serve(self, controller: int, keeper: int) -> NoReturn:
        try:
            self._settle(controller, keeper)
            while True:
                self._step()
        except (EOFError, ConnectionError):
            pass  # the controller is gone, or done with us
        except BaseException:  # noqa: BLE001  nothing above us may run in this process
            traceback.print_exc()
        finally:
            process.end_below(limit_s=REAP_S)
            os._exit(0)

    def let_go(self) -> None:
        """Closes this process's end of the line to the controller."""
        self._control.close()

    def _settle(self, controller: int, keeper: int) -> None:
        os.setpgid(0, 0)
        process.adopt_orphans()
        for number in _ASKING_TO_END:
            signal.signal(number, signal.SIG_IGN)  # the controller decides, and its end is our end
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKING_TO_END)
        logging.getLogger().addHandler(logging.NullHandler())  # importing Beam logs, and would install a root handler
        self._wake, write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        # A process that the controller forks holds its end of our line as well, so that alone would not tell its end.
        self._ends = [fd for fd in map(process.watch, (controller, keeper)) if fd is not None]
        self._selector = selectors.DefaultSelector()
        for source in (self._control.fileno(), self._wake, *self._ends):
            self._selector.register(source, selectors.EVENT_READ)

    def _import_one(self) -> None:
        """Imports the next module while there is nothing else to do; children import what they still lack."""
        logging.disable()  # what a library has to say as it is imported, it says in the log of a node
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            __import__(self._preload.pop(0))  # one that fails says so in the node that needs it
        logging.disable(logging.NOTSET)

    def _step(self) -> None:
        now = time.monotonic()
        deadlines = [w.kill_at for w in self._workers.values() if w.kill_at is not None]
        soon = any(w.killed_at is not None or w.status is not None for w in self._workers.values())
        timeout = 0.02 if soon else max(0.02, min(deadlines) - now) if deadlines else None
        ready = self._selector.select(0.0 if self._preload else timeout)
        if any(key.fd in self._ends for key, _ in ready):
            raise EOFError
        if not ready and self._preload:
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
        # Signals wait until the child has unlearnt to ignore them, or one that comes at once would be lost.
        with process.holding_back(*_ASKING_TO_END), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of preloaded libraries; none holds our locks
            try:
                pid = os.fork()
            except OSError as error:  # no memory, too many processes: the fate of one node, not of all
                with Connection(line) as told:
                    told.send(("failed", Failure(message=f"It could not be started: {error.strerror}.")))
                self._control.send(("ended", job.id, 1, []))
                return
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
        # What a child leaves becomes ours; what a living child has adopted stays below that child.
        adopted = [p for p in process.children() if p not in self._workers]
        orphans = [*adopted, *itertools.chain(*map(process.descendants, adopted))]
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


def _child(pipeline: Pipeline, job: Job, line: Connection, parent: int) -> NoReturn:
    """The child's whole life; it never returns into what was forked with it."""
    code, me = 1, os.getpid()
    try:
        signal.set_wakeup_fd(-1)
        for number in (*_ASKING_TO_END, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)
        process.die_with_parent(parent)
        process.adopt_orphans()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKING_TO_END)
        _print_to(job.log)
        made = _work(pipeline, job, line)
        if os.getpid() == me:  # the work may have forked, and a copy of us come back from it
            line.send(("done", made))
            code = 0
    except BaseException as error:  # noqa: BLE001  whatever it is, the controller is told
        if os.getpid() == me:
            with contextlib.suppress(OSError):
                line.send(("failed", _failure(error)))
        _print_error(error)
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


def _work(pipeline: Pipeline, job: Job, line: Connection) -> dict[str, tuple[Artifact, ...]]:
    node = pipeline.nodes[job.node]
    assert isinstance(node, Component)
    signature = signature_of(type(node))
    outputs: dict[str, Artifact | Outputs[Artifact]] = {}
    for name, spec in signature.outputs.items():
        Path(job.outputs[name]).mkdir(parents=True, exist_ok=True)
        place = job.outputs[name]
        outputs[name] = Outputs(spec.kind, place) if spec.many else spec.kind(place)
    shutil.rmtree(job.scratch, ignore_errors=True)  # of an attempt that was killed
    Path(job.scratch).mkdir(parents=True)
    try:
        node.run(**_arguments(node, signature, job, outputs, line))
    finally:
        shutil.rmtree(job.scratch, ignore_errors=True)
    made = {name: _drafts(signature, name, output) for name, output in outputs.items()}
    for name in [name for name, drafts in made.items() if not drafts]:
        _remove_empty(Path(job.outputs[name]))
    return {name: tuple(_sealed(node.name, name, draft) for draft in drafts) for name, drafts in made.items()}


def _remove_empty(place: Path) -> None:
    """Removes the place of an output that was not made, and the folder of such places when it is the only one."""
    with contextlib.suppress(OSError):
        place.rmdir()
        place.parent.rmdir()


def _arguments(
    node: Component,
    signature: Signature,
    job: Job,
    outputs: Mapping[str, object],
    line: Connection,
) -> dict[str, object]:
    made = {signature.outputs[name].argument or name: output for name, output in outputs.items()}
    arguments: dict[str, object] = {**node.parameters, **job.prepared, **made}
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
            snapshots=Path(job.snapshots),
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
    ready = recordable(draft)
    tree = fingerprint.of_tree(draft.path, sync=True)
    return ready.with_content(tree.digest, tree.size_bytes)


def _failure(error: BaseException) -> Failure:
    if isinstance(error, SystemExit):
        return Failure(message=f"It called sys.exit({error.code!r}) before its work was done.")
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  an exception of the user's may do anything
        said = ""
    name = "" if isinstance(error, SpanwiseError) else f"{type(error).__name__}: "
    trace = "" if isinstance(error, RunError) else _user_lines(error)
    return Failure(message=f"{name}{said}" if said else type(error).__name__, trace=trace)


def _user_lines(error: BaseException) -> str:
    """The traceback without our own frames around the user's code."""
    return "".join(traceback.format_list(without_our_frames(traceback.extract_tb(error.__traceback__)))).rstrip()


def _print_error(error: BaseException) -> None:
    """Into the log of the node: what is expected as its message, all else as Python shows it, from their lines on."""
    try:
        told = traceback.TracebackException.from_exception(error)
        theirs = without_our_frames(told.stack)
        if isinstance(error, RunError) or (isinstance(error, SpanwiseError) and not theirs):
            sys.stderr.write(f"{error}\n")
            return
        told.stack = traceback.StackSummary.from_list(theirs) if theirs else told.stack  # only ours: a mistake of ours
        sys.stderr.write("".join(told.format()))
    except Exception:  # noqa: BLE001  an exception of the user's may do anything
        traceback.print_exc()
