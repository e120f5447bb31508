"""Executors: what becomes of the work of a node, wherever it is done. One suite for every implementation of the port."""

import atexit
import functools
import os
import re
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from spanwise.orchestrator import Resources
from spanwise.orchestrator.agents.engines import open_engine
from spanwise.orchestrator.agents.placed_executor import PlacedExecutor
from spanwise.orchestrator.agents.pod_settings import PodSettings
from spanwise.orchestrator.agents.ray_engine import RayEngine
from spanwise.orchestrator.agents.slurm_engine import SlurmEngine
from spanwise.orchestrator.job import FenceQuery, JobEnded, JobPlaced
from spanwise.orchestrator.local_executor import LocalExecutor
from tests.contract.executor_jobs import Bench, Reads, Work, is_gone, until_all_ended, until_ended, until_logged
from tests.contract.ray_cluster import start_ray
from tests.contract.slurm_cluster import SlurmCluster
from tests.direct_executor import DirectExecutor


@contextmanager
def local(bench):
    with LocalExecutor(bench.pipeline) as executor:
        yield executor


@contextmanager
def direct(bench):
    with DirectExecutor(bench.pipeline) as executor:
        yield executor


class KeptEngine(RayEngine):
    """Stays connected: to connect takes seconds."""

    def close(self) -> None: ...


@functools.cache
def cluster():
    """The cluster that the variable names, or with "1" one of its own."""
    address = os.environ["SPANWISE_TEST_RAY"]
    if ":" in address:
        return KeptEngine(address)
    own = ExitStack()
    atexit.register(own.close)
    return KeptEngine(own.enter_context(start_ray(cpus=4)).address)


@contextmanager
def ray(bench):
    with PlacedExecutor(bench.pipeline, cluster(), root=bench.root, away=bench.pipeline.order) as executor:
        yield executor


@functools.cache
def slurm_cluster():
    """A cluster of its own; the commands of Slurm find it by SLURM_CONF."""
    own = SlurmCluster("a")
    atexit.register(own.close)
    os.environ["SLURM_CONF"] = str(own.configuration)
    return own


@contextmanager
def slurm(bench):
    slurm_cluster()
    with PlacedExecutor(bench.pipeline, SlurmEngine(), root=bench.root, away=bench.pipeline.order) as executor:
        yield executor


@functools.cache
def kubernetes_cluster():
    """A cluster of its own."""
    from tests.contract.kubernetes_cluster import KubernetesCluster

    own = KubernetesCluster("a")
    atexit.register(own.close)
    return own


@contextmanager
def kubernetes(bench):
    own = kubernetes_cluster()
    os.environ["KUBECONFIG"] = str(own.kubeconfig)  # each time: other tests restore what was there before them
    engine = open_engine("kubernetes:", PodSettings(template=own.write_template()))
    with PlacedExecutor(bench.pipeline, engine, root=bench.root, away=bench.pipeline.order) as executor:
        yield executor


ON_RAY = pytest.param(ray, marks=pytest.mark.skipif("SPANWISE_TEST_RAY" not in os.environ, reason="make test-engines"))
ON_SLURM = pytest.param(
    slurm, marks=pytest.mark.skipif("SPANWISE_TEST_SLURM" not in os.environ, reason="make test-engines")
)


ON_KUBERNETES = pytest.param(
    kubernetes, marks=pytest.mark.skipif("SPANWISE_TEST_KUBERNETES" not in os.environ, reason="make test-engines")
)


@pytest.fixture(params=[local, direct, ON_RAY, ON_SLURM, ON_KUBERNETES], ids=lambda each: each.__name__)
def opened(request):
    """Opens an executor for a bench."""
    return request.param


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


@pytest.fixture
def executor(opened, bench):
    with opened(bench) as executor:
        yield executor


def run(executor, job, lost=None):
    """The end of one job."""
    executor.start(job)
    return until_ended(executor, lost=lost)


def test_outputs_come_back_with_their_content(executor, bench):
    """What a node made comes back as drafts that have the digest and size of their files."""
    job = bench.job()

    (tally,) = run(executor, job).outputs["tally"]

    assert (tally.rows, tally.size_bytes, bool(tally.content), tally.id) == (3, 1, True, 0)
    assert tally.uri == job.outputs["tally"]
    assert (tally.path / "rows").read_text() == "3"


def test_an_engine_says_where_a_job_is_before_it_ends(executor, bench):
    """Once, by its name and that of a machine; a job on this machine is nowhere else."""
    job = bench.job()

    placed = until_ended_and_placed(executor, job)

    assert [event.id for event in placed] == [job.id] * bool(executor.engine)
    name = executor.engine.removesuffix(":")  # Slurm's, where no partition is named
    assert all(re.fullmatch(rf"{re.escape(name)}: \S.*", event.placement.place) for event in placed)


def until_ended_and_placed(executor, job, within_s=120.0):
    """Starts a job, and returns what was said of its place before its end."""
    executor.start(job)
    deadline, placed = time.monotonic() + within_s, []
    while time.monotonic() < deadline:
        for event in executor.wait(0.1):
            match event:
                case JobEnded():
                    return placed
                case JobPlaced():
                    placed.append(event)
                case _:
                    executor.answer(event.id, None)
    raise AssertionError(f"the job did not end within {within_s} s")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("exits", "It called sys.exit(3) before its work was done."),
        ("exits_hard", "It ended with exit status 3 before its work was done."),
        ("killed", "It was killed by SIGKILL. The system may have been out of memory."),
        ("segfaults", "It was killed by SIGSEGV."),
        ("raises", "ValueError: too small"),
        ("raises_ours", "span 3: is empty"),
        ("raises_unpicklable", "Unpicklable"),
        (
            "sets_nothing",
            "Work made its output 'tally' without rows, which Tally requires; set it in `run`: tally.rows = …",
        ),
    ],
)
def test_a_failure_says_what_happened(executor, bench, how, message):
    """However the work fails, one line says so, and nothing counts as made."""
    ended = run(executor, bench.job(how))

    assert ended.failure.message == message
    assert ended.outputs is None


def test_a_failure_shows_the_users_lines_only(executor, bench):
    """The trace of an exception starts in the user's code."""
    ended = run(executor, bench.job("raises"))

    assert "too small" in ended.failure.trace
    assert f"orchestrator{os.sep}node_process.py" not in ended.failure.trace


def test_a_failure_ends_its_job_alone(executor, bench):
    """After a job that was killed, the next one runs."""
    run(executor, bench.job("killed"))

    assert run(executor, bench.job()).failure is None


def test_a_log_is_seen_while_the_job_runs(executor, bench):
    """What a job prints is in its log long before its end."""
    job = bench.job("hangs")
    executor.start(job)

    until_logged(executor, job, "hanging\n")

    executor.stop(job.id, "enough", grace_s=0.0)
    until_ended(executor)


def test_a_log_is_whole_when_the_end_is_reported(executor, bench):
    """Megabytes, and bytes that are no UTF-8, are all there."""
    job = bench.job("prints")

    run(executor, job)

    found = Path(job.log).read_bytes()
    assert found.count(b"x") == 40 * 50_000
    assert b"\xff\xfe half \xc3\n" in found
    assert found.endswith(b"the last line\n")


def test_the_fence_is_asked_of_the_controller(executor, bench):
    """`check_fence` raises Fenced in the node with the controller's words, and nothing while the lease holds."""
    assert run(executor, bench.job("asks")).failure is None
    lost = run(executor, bench.job("asks"), lost="another run has taken over")
    assert lost.failure.message == "another run has taken over"


def test_an_answer_to_a_job_that_has_ended_is_dropped(executor, bench):
    """A node may be gone between its question and the answer."""
    executor.start(bench.job("asks"))
    while not any(isinstance(event, FenceQuery) for event in executor.wait(1.0)):
        pass
    executor.stop(1, "stopped", grace_s=0.0)
    until_ended(executor)

    executor.answer(1, None)

    assert executor.running == ()


def test_a_job_may_end_within_its_grace(executor, bench):
    """SIGTERM comes first, and the job's own end is waited for."""
    job = bench.job("ends_in_its_grace")
    executor.start(job)
    until_logged(executor, job, "hanging\n")

    executor.stop(job.id, "The run was stopped.", grace_s=1000.0)
    ended = until_ended(executor)

    assert ended.failure.message == "The run was stopped."
    assert Path(job.log).read_text().endswith("asked to end\n")


def test_a_job_is_killed_after_its_grace(executor, bench):
    """A job that ignores SIGTERM ends all the same."""
    job = bench.job("ignores_the_grace")
    executor.start(job)
    until_logged(executor, job, "hanging\n")

    executor.stop(job.id, "It took too long.", timed_out=True, grace_s=0.1)
    ended = until_ended(executor)

    assert (ended.failure.message, ended.failure.timed_out) == ("It took too long.", True)


def test_a_stop_that_comes_at_once_is_heard(executor, bench):
    """SIGTERM right after the start is not lost: the jobs end long before their grace is over."""
    jobs = [bench.job("hangs") for _ in range(3)]
    for job in jobs:
        executor.start(job)
        executor.stop(job.id, "The run was stopped.", grace_s=1000.0)

    ended = until_all_ended(executor, len(jobs))

    assert {e.failure.message for e in ended} == {"The run was stopped."}


def test_no_process_of_a_job_is_left_when_its_end_is_reported(executor, bench):
    """Not even one that has detached itself."""
    (tally,) = run(executor, bench.job("leaves_a_daemon")).outputs["tally"]

    assert is_gone(int(tally.note))


def test_a_job_that_was_stopped_leaves_no_process(executor, bench):
    """When the end of a job that was stopped is reported, its process is gone."""
    job = bench.job("names_itself_and_hangs")
    executor.start(job)
    pid = int(until_logged(executor, job, "pid ").split()[1])

    executor.stop(job.id, "stopped", grace_s=0.0)
    until_ended(executor)

    assert is_gone(pid)


def test_closing_ends_what_runs(opened, bench):
    """Closing kills the jobs that run, and closing again does nothing."""
    job = bench.job("names_itself_and_hangs")
    with opened(bench) as executor:
        executor.start(job)
        pid = int(until_logged(executor, job, "pid ").split()[1])
        executor.close()

        assert is_gone(pid)
        executor.close()


def test_sweeping_finds_nothing_after_the_end_of_the_jobs(executor, bench):
    """What has ended has left nothing, and the executor goes on after a sweep."""
    run(executor, bench.job("leaves_a_daemon"))

    assert executor.sweep() == []
    assert run(executor, bench.job()).failure is None


def test_jobs_run_side_by_side(executor, bench):
    """A second job starts while the first runs, and ends before it."""
    first = bench.job("hangs", scratch=str(bench.root / "first"))
    executor.start(first)
    until_logged(executor, first, "hanging\n")

    second = run(executor, bench.job())

    assert second.outputs is not None
    assert executor.running == (first.id,)
    executor.stop(first.id, "enough", grace_s=0.0)
    until_ended(executor)


def test_a_checkpoint_is_there_for_the_next_attempt(executor, bench):
    """What an attempt that was killed left in its checkpoints, the next one finds."""
    run(executor, bench.job("goes_on_from_its_checkpoint"))

    (tally,) = run(executor, bench.job("goes_on_from_its_checkpoint", attempt=2)).outputs["tally"]

    assert tally.note == "attempt 1"


def test_scratch_is_empty_for_each_attempt(executor, bench):
    """What an attempt that was killed left in its scratch folder is not there for the next."""
    run(executor, bench.job("leaves_scratch"))

    (tally,) = run(executor, bench.job("leaves_scratch", attempt=2)).outputs["tally"]

    assert tally.note == ""


def test_inputs_come_as_the_signature_says(opened, tmp_path):
    """One artifact, a list, or None, each as the kind that was asked for, with its files."""
    make = Work(how="well", name="Make")
    bench = Bench(tmp_path, make, Reads(one=make["tally"], many=[make["tally"], make["tally"]], name="Work"))
    with opened(bench) as executor:
        (made,) = run(executor, bench.job(node="Make")).outputs["tally"]
        given = made.as_kind(type(made))
        job = bench.job(inputs={"one": (given,), "many": (given, given), "none": ()}, prepared={})
        ended = run(executor, job)

    assert ended.outputs["tally"][0].rows == 9


def test_a_node_of_two_cpus_uses_two_threads(opened, tmp_path):
    """Libraries that count processors are told how many are theirs, also those that were imported before."""
    bench = Bench(tmp_path, Work(how="well", name="Work", resources=Resources(cpus=2)))
    with opened(bench) as executor:
        (tally,) = run(executor, bench.job("counts_its_threads")).outputs["tally"]

    assert tally.note == "2 2 2"


@pytest.mark.parametrize("how", ["uses_too_much", "lets_another_use_too_much"])
def test_a_node_that_uses_more_than_its_memory_is_ended_and_named(opened, tmp_path, how):
    """Alone or by programs that it starts: the message says who, how much, and what to type."""
    if opened is direct:
        pytest.skip("leaves that to the executor whose double it is")
    bench = Bench(tmp_path, Work(how="well", name="Work", resources=Resources(memory="400MiB")))
    with opened(bench) as executor:
        ended = run(executor, bench.job(how))
        after = run(executor, bench.job())

    assert ended.failure.cause == "memory"
    assert re.match(
        r"Work used more than its 400 MiB of memory \([0-9.]+ MiB\), so it was killed\. Ask for more: resources=Resour",
        ended.failure.message,
    )
    assert after.failure is None


def test_out_of_memory_is_called_so(executor, bench):
    """A MemoryError is told apart from other errors."""
    ended = run(executor, bench.job("runs_out_of_memory"))

    assert (ended.failure.message, ended.failure.cause) == ("It ran out of memory (MemoryError).", "memory")


def test_waiting_ends_when_somebody_wakes(executor):
    """`wake` from another thread ends a wait that would last for minutes, with nothing to report."""
    threading.Timer(0.05, executor.wake).start()

    began = time.monotonic()

    assert executor.wait(600.0) == []
    assert time.monotonic() - began < 500.0


def test_waking_a_closed_executor_does_nothing(opened, bench):
    """A heartbeat may find its lease lost after the executor was closed."""
    with opened(bench) as executor:
        executor.close()

        executor.wake()
