"""Warm commands: `spanwise` in a process of its own, forked from one that has imported what commands and nodes need.

Imports are most of what a short command costs, and a run imports Beam and scikit-learn for its nodes besides. But a
fork copies the tables of what was imported, which costs five times as much with these, so a test session has two
servers: one for pipelines of components that read data, and one for all others. A warm command has its own process,
arguments, folder, environment and streams, and ends as it ends. It passes on the signals that it is sent, and dies when
it is killed; but the process that works has another id and another parent. Tests that look at ids, parents or what is
imported start a cold one.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import io
import logging
import os
import pkgutil
import re
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import typing
import warnings
from pathlib import Path

CLIENT = Path(__file__).with_name("warm_client.py")
SOURCES = Path(__file__).parents[1] / "src"
WORDS, ENDED = "\0", "\x01"  # as the client separates them
SESSION, LIFE = "SPANWISE_TEST_WARM", "life"

HEAVY = (
    "apache_beam",
    "apache_beam.runners.portability.fn_api_runner",
    "joblib",
    "pandas",
    "polars",
    "pyarrow.csv",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "sklearn.compose",
    "sklearn.linear_model",
    "sklearn.pipeline",
    "sklearn.preprocessing",
    "xxhash",
)


USED_LATER = ("croniter", "encodings.ascii", "typer._adapters")  # what commands import where they use it
SCHEDULING = ("ml_metadata", "spanwise.orchestrator", "spanwise.resolvers", "spanwise.scheduler")


ROOM = []  # what keeps the memory that `make_room` has asked for


@functools.cache
def session():
    """The folder in which the processes of a test session find their servers, which end when the session does.

    The process that starts the others is the first to ask.
    """
    if SESSION in os.environ:
        return Path(os.environ[SESSION])
    folder = Path(tempfile.mkdtemp(prefix="spanwise-warm-"))
    os.mkfifo(folder / LIFE)
    os.open(folder / LIFE, os.O_RDWR)  # what reads it sees its end when this process ends
    os.environ[SESSION] = str(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def command(*, reads_data=False):
    """The words that begin a warm `spanwise`, for who needs a process to wait for or to send signals to."""
    return _client(str(place_of_server(reads_data=reads_data)))


def run(*words, reads_data=False, cwd=None, env=None, stderr=subprocess.PIPE, timeout_s=300.0):
    """Runs a warm command as `subprocess.run` would, but asks its server here: the client is a process of 10 ms.

    Both streams are returned as text, or both in one with `stderr=subprocess.STDOUT`.
    """
    variables = WORDS.join(f"{name}={value}" for name, value in (os.environ if env is None else env).items())
    with socket.socket(socket.AF_UNIX) as line, Path(os.devnull).open() as nothing, contextlib.ExitStack() as reading:
        line.connect(str(place_of_server(reads_data=reads_data)))
        with contextlib.ExitStack() as writing:
            ends = [os.pipe() for _ in range(1 if stderr == subprocess.STDOUT else 2)]
            outputs = [reading.enter_context(os.fdopen(end, "rb", 0)) for end, _ in ends]
            streams = [writing.enter_context(os.fdopen(end, "wb", 0)).fileno() for _, end in ends]
            folder = os.fspath(Path.cwd() if cwd is None else cwd)
            asked = ENDED.join([folder, variables, WORDS.join(map(os.fspath, words))]).encode(errors="surrogateescape")
            socket.send_fds(line, [len(asked).to_bytes(4, "big")], [nothing.fileno(), streams[0], streams[-1]])
            line.sendall(asked)
        texts = [io.TextIOWrapper(io.BytesIO(read)).read() for read in _read(outputs, [*words], timeout_s)]
        status = line.recv(4)
    assert status, "the server of warm commands has died"
    code = os.waitstatus_to_exitcode(int.from_bytes(status, "big"))
    return subprocess.CompletedProcess([*words], code, texts[0], texts[1] if len(texts) > 1 else None)


def _read(outputs, words, timeout_s):
    """What comes out of each until all ends of it are closed. Whoever stops waiting closes the line, which kills."""
    read, deadline = dict.fromkeys(outputs, b""), time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for output in outputs:
            selector.register(output, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(words, timeout_s, b"".join(read.values()))
            for key, _ in ready:
                if not (piece := key.fileobj.read(1 << 16)):
                    selector.unregister(key.fileobj)
                read[key.fileobj] += piece
    return read.values()


@functools.cache
def place_of_server(*, reads_data):
    """The socket of a server; the first process of the session that needs the server starts it."""
    folder = session()
    place = folder / ("data" if reads_data else "light")  # short: the name of a socket has at most 107 characters
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _start_server(place, folder / LIFE, HEAVY if reads_data else ())
    return place


def _start_server(place, life, libraries):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPANWISE_", "PYTEST_"))}
    with life.open() as alive:
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, place, *libraries],
            stdin=alive,
            stdout=subprocess.PIPE,
            # what is tested here, also where another checkout is installed; and a fork has no threads of OpenBLAS
            env={**clean, "PYTHONPATH": str(SOURCES), "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
    with server.stdout:
        assert server.stdout.readline() == b"ready\n", "the server of warm commands could not be started"
    server.returncode = 0  # it outlives this process, which is not to say so


def _client(place):
    return (sys.executable, "-S", "-E", str(CLIENT), place)


def ask_warm(words):
    """From now on warm processes load the files of schedulers and do their runs: hundreds of tests start some."""
    module = importlib.import_module("spanwise.scheduler.project.child_process")
    module.command = lambda name: [*words, "-m", name]


class Server:
    """Forks a process for each request, and tells how it ended; ends with the test session."""

    def __init__(self, place):
        self.command = _client(place)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(place)
        self.listener.listen(64)
        self.running = {}  # the line of each process
        self.paths = list(sys.path)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(0, selectors.EVENT_READ)
        wake, write = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(write, False)
        self.selector.register(wake, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write)

    def serve(self):
        while True:
            for key, _ in self.selector.select():
                if key.fileobj == 0:  # nobody writes there, so it can be read when all have closed it
                    return self.end()
                if key.fileobj is self.listener:
                    self.accept(self.listener.accept()[0])
                elif isinstance(key.fileobj, socket.socket):
                    self.hear(key.fileobj)
                else:
                    os.read(key.fd, 4096)
            self.reap()

    def accept(self, line):
        head, streams, _, _ = socket.recv_fds(line, 4, 3)
        size, asked = int.from_bytes(head, "big"), b""
        while len(asked) < size and (more := line.recv(size - len(asked))):
            asked += more
        if not asked or len(asked) < size:  # whoever asked has been killed
            for stream in streams:
                os.close(stream)
            line.close()
            return
        folder, variables, words = asked.decode(errors="surrogateescape").split(ENDED)
        pid = os.fork()
        if not pid:
            self.become(folder, variables.split(WORDS), words.split(WORDS), streams)
        for stream in streams:
            os.close(stream)
        self.running[pid] = line
        self.selector.register(line, selectors.EVENT_READ)

    def hear(self, line):
        """Passes on a signal; the end of the line is the end of a client that was killed."""
        pid = next((pid for pid, each in self.running.items() if each is line), None)
        if pid is None:  # it has ended since the signal was seen to come, and the line is closed
            return
        number = line.recv(1)
        os.kill(pid, number[0] if number else signal.SIGKILL)
        if not number:
            self.selector.unregister(line)

    def reap(self):
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                line = self.running.pop(found[0])
                with contextlib.suppress(KeyError):
                    self.selector.unregister(line)
                with contextlib.suppress(OSError):
                    line.send(found[1].to_bytes(4, "big"))
                line.close()

    def end(self):
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)

    def become(self, folder, variables, words, streams):
        """The life of the process that was forked: what `python -P -m spanwise WORD…` does there."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpgid(0, 0)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            os.closerange(3, 64)
            os.environ.clear()
            os.environ.update(each.split("=", 1) for each in variables if each)
            time.tzset()
            os.chdir(folder)
            tempfile.tempdir = None
            sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
            sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *self.paths]
            eager = bool(os.environ.get("PYTHONUNBUFFERED"))
            sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
            sys.stdout = os.fdopen(1, "w", 1 if eager else -1, encoding="utf-8", closefd=False)
            sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
            ask_warm(self.command)
            module, words = (words[1], words[2:]) if words[:1] == ["-m"] else ("spanwise", words)
            sys.argv = ["-m", *words]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001  nothing above may run in this process
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                threading._shutdown()
                atexit._run_exitfuncs()
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code & 0xFF)


def load(libraries):
    """Imports what commands import, and nodes if these libraries are given, else what sends alerts; leaves logging as
    it was.
    """
    if libraries:
        make_room(128)
    root, quiet = logging.getLogger(), logging.NullHandler()
    root.addHandler(quiet)  # Beam logs while it is imported, which would install a handler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (*libraries, *USED_LATER, *_modules_below(*(["spanwise"] if libraries else SCHEDULING))):
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(name)
        if not libraries:
            with contextlib.suppress(ImportError):
                importlib.import_module("apprise.manager_plugins").NotificationManager().load_modules()
    root.removeHandler(quiet)
    typing._cleanups.clear()  # nanobind empties these caches at exit, for which each fork would copy 7 MB
    _ask_once()
    settle()


def _ask_once():
    """Finds out what each command asks of its process once: a fork knows it, which saves it a third of what it does."""
    find_command = importlib.import_module("spanwise.scheduler.cli").find_command
    for name in find_command([]).commands:
        find_command([name])
    user_code, code_digest, fingerprint, signature, component, artifact = (
        importlib.import_module(f"spanwise.orchestrator.{name}")
        for name in ("user_code", "code_digest", "fingerprint", "signature", "component", "artifact")
    )
    user_code.ignore_old_bytecode()
    code_digest.distribution_of("spanwise.resolvers", importlib.import_module("spanwise.resolvers").__file__)
    fingerprint.versions(["spanwise"])
    for kind in _kinds_of(component.Component):
        if hasattr(kind, "run"):
            signature.read_signature(kind)
    for kind in _kinds_of(artifact.Artifact):
        artifact.properties_of(kind)


def _kinds_of(kind):
    for each in kind.__subclasses__():
        yield from (each, *_kinds_of(each))


def _modules_below(*packages):
    for package in map(importlib.import_module, packages):
        found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda _: None)
        yield from (each.name for each in found if not each.name.endswith("__main__"))


def make_room(megabytes):
    """Has the small objects that are made from now on lie in one piece of memory, which `settle` can move as a whole.

    Python asks for a megabyte at a time, which would lie between the libraries that are loaded meanwhile: two of them
    rarely fill a huge page. Each megabyte that it has once is kept by an object in it.
    """
    size, objects = 512, [None] * (megabytes * 2048)
    for at in range(len(objects)):  # in a list that does not grow: its new places would lie between
        objects[at] = bytes(size - sys.getsizeof(b""))
    ROOM.extend(objects[::1024])


def settle():
    """Keeps the garbage collector off what is loaded, and moves this process's memory to huge pages where it can.

    What is frozen need neither be searched nor copied by each fork. A fork copies the table of all pages; with every
    test imported that has 60,000 lines, which cost 28 ms of processor time. Huge pages come with Linux 6.1.
    """
    gc.collect()
    gc.freeze()
    if sys.platform != "linux":
        return
    size, collapse = 2 << 20, 25  # MADV_COLLAPSE
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for line in Path("/proc/self/maps").read_text().splitlines():
        if found := re.fullmatch(r"(\w+)-(\w+) rw-p \S+ 00:00 0\s*(?:\[heap\])?", line):
            start, end = (int(address, 16) for address in found.groups())
            for at in range(-(-start // size) * size, end - size + 1, size):
                madvise(at, size, collapse)  # one that is refused stays as it is


def count_anonymous_bytes():
    """The memory that is mapped from no file, as Linux counts it; 0 elsewhere."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    load(sys.argv[2:])
    server = Server(sys.argv[1])
    os.write(1, b"ready\n")
    server.serve()
