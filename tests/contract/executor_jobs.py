"""Nodes for the contract of executors, which do what a job's `how` names, and jobs for them."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from spanwise.orchestrator import Artifact, Attempt, Component, Input, Output, Pipeline, Run
from spanwise.orchestrator.errors import RunError
from spanwise.orchestrator.job import JobEnded, JobPlaced, NodeJob


class Tally(Artifact):
    rows: int
    note: str | None


class OddError(RunError):
    """An error of the tree that takes two arguments, which unpickling would not give."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


class Unpicklable(Exception):
    """Neither it nor what it holds goes through a pipe."""

    def __init__(self):
        super().__init__()
        self.held = threading.Lock()

    def __reduce__(self):
        raise TypeError("cannot be pickled")


class Work(Component):
    """Does what a test asks for: `how` is the name of a function below."""

    def run(self, tally: Output[Tally], how: str, attempt: Attempt) -> None:
        tally.rows = 3
        (tally.path / "rows").write_text("3")
        globals()[how](tally, attempt)


class Reads(Component):
    def run(self, one: Input[Tally], many: Input[list[Tally]], none: Input[Tally | None], tally: Output[Tally]) -> None:
        counts = [int((each.path / "rows").read_text()) for each in (one, *many)]
        tally.rows = sum(counts) + (0 if none is None else 1000)


def well(tally, attempt):
    pass


def exits(tally, attempt):
    sys.exit(3)


def exits_hard(tally, attempt):
    os._exit(3)


def killed(tally, attempt):
    os.kill(os.getpid(), signal.SIGKILL)


def segfaults(tally, attempt):
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


def raises(tally, attempt):
    raise ValueError("too small")


def raises_ours(tally, attempt):
    raise OddError("span 3", "is empty")


def raises_unpicklable(tally, attempt):
    raise Unpicklable


def runs_out_of_memory(tally, attempt):
    raise MemoryError


def sets_nothing(tally, attempt):
    del tally.properties["rows"]


def prints(tally, attempt):
    for _ in range(40):
        sys.stdout.write("x" * 50_000 + "\n")
    os.write(1, b"\xff\xfe half \xc3\n")
    sys.stderr.write("the last line\n")


def asks(tally, attempt):
    attempt.check_fence()


def hangs(tally, attempt):
    sys.stdout.write("hanging\n")
    time.sleep(1000)


def ends_in_its_grace(tally, attempt):
    def end(*_):
        os.write(1, b"asked to end\n")
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    hangs(tally, attempt)


def ignores_the_grace(tally, attempt):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hangs(tally, attempt)


def leaves_a_daemon(tally, attempt):
    """Starts a process that detaches itself, as daemons do, and names it."""
    script = "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True); time.sleep(1000)"
    started = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    tally.note = started.stdout.readline().strip()


def names_itself(tally, attempt):
    tally.note = str(os.getpid())


def names_itself_and_hangs(tally, attempt):
    sys.stdout.write(f"pid {os.getpid()}\n")
    time.sleep(1000)


def goes_on_from_its_checkpoint(tally, attempt):
    place = attempt.checkpoints / "step"
    attempt.checkpoints.mkdir(parents=True, exist_ok=True)
    tally.note = place.read_text() if place.exists() else "nothing"
    place.write_text(f"attempt {attempt.number}")
    if attempt.number == 1:
        killed(tally, attempt)


def leaves_scratch(tally, attempt):
    tally.note = " ".join(sorted(p.name for p in attempt.scratch.iterdir()))
    (attempt.scratch / "seen").touch()
    if attempt.number == 1:
        killed(tally, attempt)


def counts_its_threads(tally, attempt):
    import pyarrow as pa

    tally.note = f"{os.environ['OMP_NUM_THREADS']} {os.environ['POLARS_MAX_THREADS']} {pa.cpu_count()}"


def uses_too_much(tally, attempt):
    held = [bytes(10_000_000) + b"x" for _ in range(60)]
    time.sleep(1000)
    tally.note = str(len(held))


def lets_another_use_too_much(tally, attempt):
    script = "held = b'x' * 600_000_000; import time; time.sleep(1000)"
    subprocess.run([sys.executable, "-c", script], check=True)


def meets_its_gang(tally, attempt):
    found = attempt.replica
    sys.stdout.write(f"I am {found.rank}\nof {found.count}")
    (tally.path / f"of-{found.rank}").touch()
    said = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")}
    tally.note = json.dumps(found.gather({**said, "LOCAL_WORLD_SIZE": os.environ["LOCAL_WORLD_SIZE"]}))


def serves_its_gang(tally, attempt):
    """Rank 0 listens at the address that all of them were given."""
    found = attempt.replica
    if found.rank == 0:
        with socket.create_server(("", found.port)) as server:
            found.gather(None)
            for _ in range(found.count - 1):
                server.accept()[0].sendall(b"welcome")
            found.gather(None)
    else:
        found.gather(None)
        with socket.create_connection((found.host, found.port), timeout=60) as line:
            assert line.recv(100) == b"welcome"
        found.gather(None)


def loses_rank_1(tally, attempt):
    """The others notice, as in a collective operation."""
    found = attempt.replica
    pids = found.gather(os.getpid())
    sys.stdout.write(f"pids {' '.join(map(str, pids))}\n")
    found.gather(None)
    if found.rank == 1:
        killed(tally, attempt)
    if found.rank == 2:
        raise ConnectionResetError("rank 1 does not answer")
    time.sleep(1000)


def raises_in_rank_1(tally, attempt):
    if attempt.replica.rank == 1:
        raise ValueError("too small")
    time.sleep(1000)


def aborts_where_rank_1_raises(tally, attempt):
    """As JAX does: the processes that lose one of them abort themselves."""
    if attempt.replica.rank == 1:
        raise ValueError("too small")
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.abort()


def names_its_machine(tally, attempt):
    tally.note = json.dumps(attempt.replica.gather(os.environ["RAY_RAYLET_PID"]))


def leaves_rank_1_out(tally, attempt):
    if attempt.replica.rank != 1:
        attempt.replica.gather(None)


def asks_in_each_rank(tally, attempt):
    attempt.check_fence()
    attempt.replica.gather(None)


class Bench:
    """Jobs of one pipeline, with their files below a root."""

    def __init__(self, root: Path, *nodes: Component) -> None:
        self.root = root
        self.pipeline = Pipeline("p", nodes or [Work(how="well", name="Work")])
        self.count = 0

    def job(self, how="well", **changes) -> NodeJob:
        self.count += 1
        home = self.root / "p" / ".runs" / "1"
        facts = {
            "id": self.count,
            "node": "Work",
            "inputs": {},
            "verify": (),
            "prepared": {"how": how},
            "outputs": {"tally": str(self.root / "p" / "Work" / "tally" / str(self.count))},
            "run": Run(pipeline="p", number=1),
            "attempt": 1,
            "log": str(home / "logs" / f"Work.{self.count}.log"),
            "scratch": str(home / "Work.scratch"),
            "checkpoints": str(home / "Work.checkpoints"),
            "snapshots": str(self.root / "snapshots"),
        }
        return NodeJob(**{**facts, **changes})


def until_ended(executor, within_s=120.0, lost=None) -> JobEnded:
    """Waits for the end of the only job, and answers whatever it asks with `lost`."""
    (ended,) = until_all_ended(executor, 1, within_s, lost)
    return ended


def until_all_ended(executor, count, within_s=120.0, lost=None) -> list[JobEnded]:
    """Waits for the ends of so many jobs."""
    deadline, ended = time.monotonic() + within_s, []
    while time.monotonic() < deadline:
        for event in executor.wait(0.1):
            if isinstance(event, JobEnded):
                ended.append(event)
            elif not isinstance(event, JobPlaced):
                executor.answer(event.id, lost)
        if len(ended) >= count:
            return ended
    raise AssertionError(f"{count - len(ended)} jobs did not end within {within_s} s")


def until_logged(executor, job: NodeJob, text: str, within_s=120.0) -> str:
    """Waits until the log of a running job contains a text."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for event in executor.wait(0.05):
            assert not isinstance(event, JobEnded), event.failure
            executor.answer(event.id, None)
        file = Path(job.log)
        if file.exists() and text in (found := file.read_text(errors="replace")):
            return found
    raise AssertionError(f"{text!r} was not logged within {within_s} s")


def is_gone(pid):
    """Whether no process has this id any more; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
