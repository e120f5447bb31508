"""Executors: what becomes of work in a process of its own, whatever the work does to it."""

import contextlib
import errno
import gc
import gzip
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import pytest

from spanwise.orchestrator import (
    Artifact,
    Attempt,
    Component,
    Input,
    Output,
    Outputs,
    Pipeline,
    Report,
    Run,
    loose_ends,
    process,
)
from spanwise.orchestrator.errors import NodeFailed, RunError
from spanwise.orchestrator.job import FenceQuery, JobEnded, NodeJob
from spanwise.orchestrator.local_executor import LocalExecutor


class Tally(Artifact):
    rows: int
    by_split: dict[str, int] | None


class Unpicklable(Exception):
    """Neither it nor what it holds goes through a pipe, and it has nothing to say."""

    def __init__(self):
        super().__init__()
        self.held = threading.Lock()

    def __str__(self):
        raise RuntimeError("not even its message")

    def __reduce__(self):
        raise TypeError("cannot be pickled")


class OddError(RunError):
    """An error of the tree that takes two arguments, which unpickling would not give."""

    def __init__(self, what, why):
        super().__init__(f"{what}: {why}")


class Work(Component):
    """Does what a test tells it: `how` is the name of a function below."""

    def run(self, tally: Output[Tally], how: str, attempt: Attempt) -> None:
        tally.rows = 3
        (tally.path / "rows").write_text("3")
        globals()[how](tally, attempt)


def well(tally, attempt):
    pass


def exits(tally, attempt):
    sys.exit(3)


def exits_hard(tally, attempt):
    os._exit(3)


def killed(tally, attempt):
    os.kill(os.getpid(), signal.SIGKILL)


def killed_by_a_number(tally, attempt):
    os.kill(os.getpid(), signal.SIGRTMIN + 3)


def raises(tally, attempt):
    raise ValueError("too small")


def raises_ours(tally, attempt):
    raise OddError("span 3", "is empty")


def raises_unpicklable(tally, attempt):
    raise Unpicklable


def prints_megabytes(tally, attempt):
    for _ in range(100):
        sys.stdout.write("x" * 50_000 + "\n")


def prints_bytes(tally, attempt):
    os.write(1, b"\xff\xfe half \xc3\n")
    sys.stdout.write("\udcff and a surrogate\n")


def sets_a_date(tally, attempt):
    tally.by_split = {"train": date(2024, 1, 1)}


def sets_a_lock(tally, attempt):
    tally.by_split = {"train": threading.Lock()}


def sets_a_text(tally, attempt):
    tally.rows = "3"


def sets_past_the_check(tally, attempt):
    tally.properties["rows"] = "3"


def sets_an_unknown(tally, attempt):
    tally.row = 3


def fills_the_disk(tally, attempt):
    raise OSError(errno.ENOSPC, "No space left on device", str(tally.path / "rows"))


def fills_the_disk_of_a_library(tally, attempt):
    raise RuntimeError("could not encode the rows") from OSError(errno.ENOSPC, "Error writing bytes to file")


def sets_nothing(tally, attempt):
    del tally.properties["rows"]


def comes_back_twice(tally, attempt):
    os.fork()


def forks_one_that_fails(tally, attempt):
    if not os.fork():
        raise ValueError("in the copy")
    os.wait()


def only_its_copy_comes_back(tally, attempt):
    if os.fork():
        os.wait()
        os._exit(3)


def asks(tally, attempt):
    attempt.check_fence()


def leaves_a_daemon(tally, attempt):
    daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    (tally.path / "daemon").write_text(str(daemon.pid))


def leaves_scratch(tally, attempt):
    (attempt.scratch / "seen").write_text(str(attempt.number))
    (tally.path / "scratch").write_text(" ".join(sorted(p.name for p in attempt.scratch.iterdir())))
    if attempt.number == 1:
        killed(tally, attempt)


def counts_what_its_collector_walks(tally, attempt):
    tally.rows = sum(type(found).__name__ == "Ballast" for found in gc.get_objects())
    tally.by_split = {"imported": "ballast" in sys.modules, "frozen": gc.get_freeze_count(), "on": gc.isenabled()}


def collects(tally, attempt):
    gc.collect()


def hangs(tally, attempt):
    time.sleep(1000)


class Bench:
    """An executor of one node, and jobs for it."""

    def __init__(self, root, node=None):
        self.root = root
        self.pipeline = Pipeline("p", [node or Work(how="well", name="Work")])
        self.count = 0

    def job(self, **changes):
        self.count += 1
        facts = {
            "id": self.count,
            "node": "Work",
            "inputs": {},
            "verify": (),
            "prepared": {},
            "outputs": {"tally": str(self.root / "tally" / str(self.count))},
            "run": Run(pipeline="p", number=1),
            "attempt": 1,
            "log": str(self.root / "log"),
            "scratch": str(self.root / "scratch"),
            "checkpoints": str(self.root / "checkpoints"),
            "snapshots": str(self.root / "snapshots"),
        }
        return NodeJob(**{**facts, **changes})


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def until_ended(executor, within_s=120.0, lost=None):
    """Waits for a job's end, and answers whatever it asks with `lost`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        for event in executor.wait(0.1):
            if isinstance(event, JobEnded):
                return event
            executor.answer(event.id, lost)
    raise AssertionError(f"nothing ended within {within_s} s")


def done(bench, how, lost=None, **changes):
    """The end of one job that does `how`."""
    with LocalExecutor(bench.pipeline) as executor:
        executor.start(bench.job(prepared={"how": how}, **changes))
        return until_ended(executor, lost=lost)


def test_outputs_come_back_with_their_content(bench):
    """What a node made comes back as drafts that know the digest and size of their files."""
    ended = done(bench, "well")

    (tally,) = ended.outputs["tally"]
    assert (tally.rows, tally.size_bytes, bool(tally.content), tally.id) == (3, 1, True, 0)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("exits", "It called sys.exit(3) before its work was done."),
        ("exits_hard", "It ended with exit status 3 before its work was done."),
        ("killed", "It was killed by SIGKILL. The system may have been out of memory."),
        ("killed_by_a_number", f"It was killed by signal {signal.SIGRTMIN + 3}."),
        ("raises", "ValueError: too small"),
        ("raises_ours", "span 3: is empty"),
        ("raises_unpicklable", "Unpicklable"),
        ("sets_a_text", "Tally.rows takes int, not str '3'."),
        ("sets_past_the_check", "Tally.rows takes int, not str '3'."),
        ("sets_an_unknown", "AttributeError: Tally has no property 'row'; it has: rows, by_split"),
        (
            "sets_nothing",
            "Work made its output 'tally' without rows, which Tally requires; set it in `run`: tally.rows = …",
        ),
    ],
)
def test_a_failure_says_what_happened(bench, how, message):
    """However the work fails, it is told in one line, and nothing is taken as made."""
    ended = done(bench, how)

    assert ended.failure.message == message
    assert ended.outputs is None


@pytest.mark.parametrize(
    ("how", "what"), [("fills_the_disk", "/rows could not be"), ("fills_the_disk_of_a_library", "the node could not")]
)
def test_a_full_disk_is_called_so(bench, how, what):
    """Whichever library has met it, it is one sentence with a command that works, in the log too."""
    ended = done(bench, how)

    message, command = ended.failure.message.split(". Free some space, then run it again:  ")
    assert message.startswith("A disk is full: ")
    assert what in message
    assert subprocess.run(command, shell=True, check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert (bench.root / "log").read_text().splitlines()[-1] == ended.failure.message
    assert ended.failure.trace == ""


def test_garbage_of_the_controller_does_not_hold_up_a_node(tmp_path):
    """A Flight client, as of a dataset that was read in a notebook, waits for its threads when it is collected."""
    program = f"""
import gc
from pathlib import Path
from pyarrow import flight
from tests.orchestrator.test_local_executor import Bench, done
gc.disable()
class Server(flight.FlightServerBase):
    def list_flights(self, context, criteria):
        return iter(())
server = Server("grpc://127.0.0.1:0")
garbage = [flight.connect(f"grpc://127.0.0.1:{{server.port}}")]
garbage[0].wait_for_available()
garbage.append(garbage)
del garbage
assert done(Bench(Path({str(tmp_path)!r})), "collects").outputs
"""

    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path.cwd())


@pytest.mark.parametrize("how", ["sets_a_date", "sets_a_lock"])
def test_a_property_that_json_cannot_say_fails_its_node(bench, how):
    """A value that could not be recorded is refused in the node that set it, not in the controller."""
    ended = done(bench, how)

    assert ended.failure.message.startswith("Tally.by_split takes a JSON value")


def test_a_failure_shows_the_users_lines_only(bench):
    """The trace of an exception starts in the user's code."""
    ended = done(bench, "raises")

    assert "too small" in ended.failure.trace
    assert f"orchestrator{os.sep}node_process.py" not in ended.failure.trace


def test_an_error_of_ours_ends_at_the_users_line(bench):
    """Its message says what is wrong with the call; the lines below the call are ours."""
    ended = done(bench, "sets_a_text")

    assert ended.failure.trace.splitlines()[-2].strip().startswith("tally.rows = ")
    for shown in (ended.failure.trace, (bench.root / "log").read_text()):
        assert f"orchestrator{os.sep}artifact.py" not in shown


@pytest.mark.parametrize(
    ("how", "first", "last"),
    [
        ("raises", "Traceback (most recent call last):", "ValueError: too small"),
        ("raises_ours", "span 3: is empty", "span 3: is empty"),
    ],
)
def test_the_log_of_a_failure_shows_no_lines_of_ours(bench, how, first, last):
    """What is expected is a message there; anything else is a traceback that starts in the user's code."""
    done(bench, how)

    lines = (bench.root / "log").read_text().splitlines()
    assert (lines[0], lines[-1]) == (first, last)
    assert f"orchestrator{os.sep}node_process.py" not in "".join(lines)


@pytest.mark.parametrize("how", ["prints_megabytes", "prints_bytes"])
def test_whatever_is_printed_goes_to_the_log(bench, how):
    """Megabytes, bytes that are no UTF-8 and half surrogates are kept, and harm nothing."""
    ended = done(bench, how)

    assert ended.failure is None
    assert len(Path(bench.root / "log").read_bytes()) > 20


@pytest.mark.parametrize("how", ["comes_back_twice", "forks_one_that_fails"])
def test_a_copy_that_the_work_forked_says_nothing(bench, how):
    """A fork that comes back from `run`, or raises out of it, is not taken for the node."""
    ended = done(bench, how)

    assert ended.failure is None
    assert len(ended.outputs["tally"]) == 1


def test_a_copy_does_not_do_the_nodes_work(bench):
    """What comes back from `run` in a forked copy alone was not made."""
    ended = done(bench, "only_its_copy_comes_back")

    assert ended.outputs is None
    assert ended.failure.message == "It ended with exit status 3 before its work was done."


def test_the_fence_is_asked_of_the_controller(bench):
    """`check_fence` raises Fenced in the node with the controller's words, and nothing when the lease holds."""
    assert done(bench, "asks").failure is None
    assert done(bench, "asks", lost="another run has taken over").failure.message == "another run has taken over"


def test_an_answer_to_a_job_that_has_ended_is_dropped(bench):
    """A node may be gone between its question and the answer."""
    with LocalExecutor(bench.pipeline) as executor:
        executor.start(bench.job(prepared={"how": "asks"}))
        while not any(isinstance(event, FenceQuery) for event in executor.wait(1.0)):
            pass
        executor.stop(1, "stopped")
        until_ended(executor)

        executor.answer(1, None)

        assert executor.running == ()


def test_scratch_is_empty_for_each_attempt(bench):
    """What an attempt that was killed left in its scratch folder is not there for the next."""
    with LocalExecutor(bench.pipeline) as executor:
        executor.start(bench.job(prepared={"how": "leaves_scratch"}))
        until_ended(executor)
        (bench.root / "scratch" / "more").touch()
        executor.start(bench.job(prepared={"how": "leaves_scratch"}, attempt=2))
        ended = until_ended(executor)

    (tally,) = ended.outputs["tally"]
    assert (tally.path / "scratch").read_text() == "seen"
    assert not (bench.root / "scratch").exists()


def test_a_stop_that_comes_at_once_is_heard(bench):
    """SIGTERM right after the fork is not lost: the job ends long before its grace is over."""
    with LocalExecutor(bench.pipeline) as executor:
        for number in range(1, 11):
            executor.start(bench.job(prepared={"how": "hangs"}))
            executor.stop(number, "The run was stopped.", grace_s=1000.0)
        ended = [until_ended(executor) for _ in range(10)]

    assert {e.failure.message for e in ended} == {"The run was stopped."}


def test_a_server_that_dies_is_told(bench):
    """Without its server nothing can be started, and whoever waits is told so."""
    with LocalExecutor(bench.pipeline) as executor:
        executor.start(bench.job(prepared={"how": "hangs"}))
        os.kill(server_of(executor), signal.SIGKILL)

        with pytest.raises(NodeFailed, match="The process that starts the nodes died"):
            until_ended(executor)
        with pytest.raises(NodeFailed, match="The process that starts the nodes died"):
            executor.start(bench.job())


def server_of(executor):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with contextlib.suppress(IndexError):
            return int(Path(f"/proc/{executor.session}/task/{executor.session}/children").read_text().split()[0])
    raise AssertionError("the keeper has no server")


def test_a_node_that_cannot_be_forked_fails_alone(bench, monkeypatch):
    """Without memory for one more process that node has failed, and the server goes on."""
    forks, fork = iter([True, True, False, True]), os.fork  # the keeper, the server, the two jobs

    def short():
        if not next(forks):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", short)
    with LocalExecutor(bench.pipeline) as executor:
        executor.start(bench.job())
        first = until_ended(executor)
        executor.start(bench.job())
        second = until_ended(executor)

    assert first.failure.message == "It could not be started: Resource temporarily unavailable."
    assert second.failure is None


def test_closing_ends_what_runs(bench):
    """Closing kills the jobs that run, and closing again does nothing."""
    executor = LocalExecutor(bench.pipeline)
    executor.start(bench.job(prepared={"how": "hangs"}))
    executor.close()
    executor.close()

    assert not Path(f"/proc/{executor.session}").exists()


def test_an_executor_closes_while_a_younger_one_lives(tmp_path):
    """The younger server holds a copy of the elder's line, and yet the elder's end is heard."""
    elder = LocalExecutor(Bench(tmp_path).pipeline)
    with LocalExecutor(Bench(tmp_path).pipeline):
        elder.close()

        assert not Path(f"/proc/{elder.session}").exists()


def test_nothing_stays_open(bench):
    """Jobs that end, fail, and cannot be sent leave no descriptor behind."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    with LocalExecutor(bench.pipeline) as executor:
        for how in ("well", "raises", "killed"):
            executor.start(bench.job(prepared={"how": how}))
            until_ended(executor)
        with pytest.raises((TypeError, AttributeError)):
            executor.start(bench.job(prepared={"how": socket.socket}, inputs={"x": threading.Lock()}))

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_waking_a_closed_executor_does_nothing(bench):
    """A heartbeat may find its lease lost after the executor was closed; no other descriptor is written to."""
    executor = LocalExecutor(bench.pipeline)
    executor.close()
    read, write = os.pipe()
    os.set_blocking(read, False)

    executor.wake()

    with pytest.raises(BlockingIOError):
        os.read(read, 1)
    os.close(read)
    os.close(write)


class Many(Component):
    """Outputs of every shape: one, as many as it makes, and one that may stay empty."""

    def run(
        self, one: Output[Tally], each: Outputs[Tally], maybe: Output[Report | None], count: int, said: bool
    ) -> None:
        one.rows = count
        for number in range(count):
            each.new().rows = number
        if said:
            (maybe.path / "said").touch()


@pytest.mark.parametrize(("count", "said"), [(0, False), (3, True)])
def test_an_output_is_what_was_made_of_it(tmp_path, count, said):
    """As many drafts as the work asked for, and an optional output only where something was written."""
    bench = Bench(tmp_path, Many(count=count, said=said, name="Work"))
    places = {key: str(tmp_path / key) for key in ("one", "each", "maybe")}
    with LocalExecutor(bench.pipeline) as executor:
        executor.start(bench.job(outputs=places))
        ended = until_ended(executor)

    assert [tally.rows for tally in ended.outputs["each"]] == list(range(count))
    assert len(ended.outputs["maybe"]) == int(said)
    assert len(ended.outputs["one"]) == 1


def test_the_place_of_an_output_that_was_not_made_is_removed(tmp_path):
    """With the folder of such places, when nothing else is in it: no empty folders pile up in the root."""
    bench = Bench(tmp_path, Many(count=0, said=False, name="Work"))
    (tmp_path / "each" / "7").mkdir(parents=True)
    places = {key: str(tmp_path / key / "8") for key in ("one", "each", "maybe")}
    with LocalExecutor(bench.pipeline) as executor:
        executor.start(bench.job(outputs=places))
        until_ended(executor)

    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["each", "one"]
    assert [p.name for p in (tmp_path / "each").iterdir()] == ["7"]


class Reads(Component):
    def run(self, one: Input[Tally], many: Input[list[Tally]], none: Input[Tally | None], tally: Output[Tally]) -> None:
        tally.rows = one.rows + sum(t.rows for t in many) + (0 if none is None else 1000)


def test_inputs_come_as_the_signature_says(tmp_path):
    """One artifact, a list, or None, each as the kind that was asked for."""
    make = Work(how="well", name="Make")
    node = Reads(one=make["tally"], many=[make["tally"], make["tally"]], name="Work")
    bench = Bench(tmp_path)
    bench.pipeline = Pipeline("p", [make, node])
    given = Artifact("/nowhere", id=1, kind="Tally", properties={"rows": 5})
    with LocalExecutor(bench.pipeline) as executor:
        executor.start(bench.job(inputs={"one": (given,), "many": (given, given), "none": ()}))
        ended = until_ended(executor)

    assert ended.outputs["tally"][0].rows == 15


def test_the_garbage_collector_of_a_node_does_not_walk_what_its_server_imported(tmp_path, monkeypatch):
    """A full collection in a child would copy every page of it, which costs more than most nodes do."""
    (tmp_path / "ballast.py").write_text("class Ballast: pass\nkept = [Ballast() for _ in range(1000)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    bench = Bench(tmp_path)
    bench.pipeline = Pipeline("p", [Work(how="well", name="Work")], preload=["ballast"])
    imported = False
    with LocalExecutor(bench.pipeline) as executor:
        while not imported:  # the first may be forked before
            executor.start(bench.job(prepared={"how": "counts_what_its_collector_walks"}))
            (tally,) = until_ended(executor).outputs["tally"]
            imported = tally.by_split["imported"]

    assert tally.rows == 0
    assert tally.by_split["frozen"] > 1000
    assert tally.by_split["on"]


def test_a_pipeline_whose_file_has_used_polars_is_warned_of(tmp_path):
    """Polars' threads are lost in a fork and whatever needs them then hangs: said before it happens."""
    script = tmp_path / "script.py"
    script.write_text(
        "import polars as pl\n"
        "from spanwise.orchestrator import Pipeline\n"
        "from spanwise.orchestrator.local_executor import LocalExecutor\n"
        "pl.DataFrame({'a': [2, 1]}).lazy().sort('a').collect()\n"
        "LocalExecutor(Pipeline('p', [])).close()\n"
    )

    done = subprocess.run([sys.executable, script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                          capture_output=True, text=True, check=True)  # fmt: skip

    assert "Polars was used in this process" in done.stderr


def test_a_job_costs_the_same_however_many_processes_the_machine_has(bench, monkeypatch):
    """What a job leaves is found among its own descendants: nothing reads every process of the machine."""

    def refuse(but=()):
        raise AssertionError("it reads every process of the machine")

    monkeypatch.setattr(process, "_list_processes", refuse)
    with LocalExecutor(bench.pipeline) as executor:
        executor.start(bench.job(prepared={"how": "leaves_a_daemon"}))
        ended = until_ended(executor)

        assert ended.failure is None
        assert executor.sweep() == []
        (daemon,) = map(int, (Path(ended.outputs["tally"][0].path) / "daemon").read_text().split())
        assert process.identity(daemon).started == 0


LEFT = []  # what is bound to a module outlives `run`
POOL = ThreadPoolExecutor(1)


def write_later(path):
    time.sleep(0.05)
    path.write_text("later")


def leaves_a_file_open(path):
    opened = path.open("w", encoding="utf-8")
    opened.write("later")
    LEFT.append(opened)


def leaves_a_circle_open(path):
    circle = [path.open("w", encoding="utf-8")]
    circle[0].write("later")
    circle.append(circle)


def leaves_a_pack_open(path):
    packed = gzip.open(path, "wt", encoding="utf-8")  # noqa: SIM115
    packed.write("later")
    LEFT.append(packed)


def leaves_its_output_open(path):
    sys.stdout = path.open("w", encoding="utf-8")
    sys.stdout.write("later")


def leaves_a_thread(path):
    threading.Thread(target=write_later, args=(path,)).start()


def leaves_a_pool(path):
    POOL.submit(write_later, path)


def leaves_a_process(path):
    multiprocessing.get_context("fork").Process(target=write_later, args=(path,)).start()


def leaves_a_thread_that_goes_on(path):
    threading.Thread(target=time.sleep, args=(1000,), name="the-writer").start()


class Leaving(Component):
    """Returns before what it has begun has ended; `how` is the name of a function above."""

    def run(self, tally: Output[Tally], how: str) -> None:
        tally.rows = 1
        globals()[how](tally.path / "rows")


@pytest.mark.parametrize(
    "how",
    [
        "leaves_a_file_open",
        "leaves_a_circle_open",
        "leaves_a_pack_open",
        "leaves_its_output_open",
        "leaves_a_thread",
        "leaves_a_pool",
        "leaves_a_process",
    ],
)
def test_what_is_under_way_when_run_returns_is_written_before_outputs_are_sealed(tmp_path, how):
    """Files left open, threads, pools and processes end as at the end of a program: nothing is published half."""
    ended = done(Bench(tmp_path, Leaving(how=how, name="Work")), how)

    (tally,) = ended.outputs["tally"]
    content = (tally.path / "rows").read_bytes()
    assert (gzip.decompress(content) if how == "leaves_a_pack_open" else content) == b"later"
    assert tally.size_bytes == len(content)


def test_a_thread_that_does_not_end_fails_the_node(tmp_path, monkeypatch):
    """It is named, with what to do: whether its output is whole, nobody can know."""
    monkeypatch.setattr(loose_ends, "PATIENCE_S", 0.1)
    bench = Bench(tmp_path, Leaving(how="leaves_a_thread_that_goes_on", name="Work"))

    ended = done(bench, "leaves_a_thread_that_goes_on")

    assert "`run` returned, but 0.1 s later the-writer had not ended" in ended.failure.message
