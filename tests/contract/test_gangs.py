"""Gangs: jobs of several replicas, on every executor that runs single jobs. Which executors: see test_executor."""

import json
import os
from pathlib import Path

import pytest

from spanwise.orchestrator.gang_executor import GangExecutor
from spanwise.orchestrator.replica import Gang
from tests.contract.executor_jobs import is_gone, until_ended, until_logged
from tests.contract.test_executor import bench, kubernetes, opened  # noqa: F401  fixtures


@pytest.fixture
def executor(opened, bench):  # noqa: F811
    with opened(bench) as below, GangExecutor(below) as executor:
        yield executor


def gang_job(bench, how, size=3, **changes):  # noqa: F811
    return bench.job(how, gang=Gang(size=size), **changes)


def run(executor, job, lost=None):
    executor.start(job)
    return until_ended(executor, lost=lost)


def test_all_replicas_meet_and_know_their_ranks(opened, executor, bench):  # noqa: F811
    """Each says something to all, finds the variables of `torchrun`, and what rank 0 makes is what the job makes."""
    job = gang_job(bench, "meets_its_gang")

    (tally,) = run(executor, job).outputs["tally"]

    said = json.loads(tally.note)
    alone = opened is kubernetes and "SPANWISE_TEST_KUBERNETES_NODES" in os.environ  # a pod has its own network
    assert [(each["RANK"], each["WORLD_SIZE"], each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"]) for each in said] == [
        (str(rank), "3", "0" if alone else str(rank), "1" if alone else "3") for rank in range(3)
    ]
    assert alone != (said[0]["MASTER_ADDR"] == "127.0.0.1")
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in said}) == 1
    assert sorted(path.name for path in tally.path.iterdir()) == ["of-0", "rows"]


def test_the_log_of_a_gang_has_the_rank_before_each_line(executor, bench):  # noqa: F811
    """Also before a last line without an end, and no file beside it is left."""
    job = gang_job(bench, "meets_its_gang")

    run(executor, job)

    lines = Path(job.log).read_text().splitlines()
    said = [line for line in lines if "I am" in line or line.endswith("of 3")]
    assert sorted(said) == sorted(f"[rank {rank}] {text}" for rank in range(3) for text in (f"I am {rank}", "of 3"))
    left = {path.name for path in Path(job.scratch).parent.iterdir()}
    assert left - {Path(job.checkpoints).name} == {"logs"}  # the controller removes what the next attempt would find


def test_the_others_reach_rank_0(executor, bench):  # noqa: F811
    """At the address and port that all of them were given."""
    assert run(executor, gang_job(bench, "serves_its_gang")).failure is None


def test_when_one_is_killed_all_end(executor, bench):  # noqa: F811
    """The error says which one was killed, not what the others made of it, and no process is left."""
    job = gang_job(bench, "loses_rank_1")

    ended = run(executor, job)

    assert ended.failure.message.startswith("rank 1 of 3: It was killed by SIGKILL")
    pids = next(line for line in Path(job.log).read_text().splitlines() if "pids" in line).split()[3:]
    assert len(pids) == 3
    assert all(is_gone(int(pid)) for pid in pids)


def test_what_one_raises_is_the_error_of_all(executor, bench):  # noqa: F811
    """With its rank and its lines; the others would wait for ever."""
    ended = run(executor, gang_job(bench, "raises_in_rank_1"))

    assert ended.failure.message == "rank 1 of 3: ValueError: too small"
    assert "too small" in ended.failure.trace


def test_what_one_raises_is_the_error_where_others_abort(executor, bench):  # noqa: F811
    """Whichever ends first: the error names what was raised, and who aborted."""
    ended = run(executor, gang_job(bench, "aborts_where_rank_1_raises", size=2))

    assert ended.failure.message == "rank 1 of 2: ValueError: too small (rank 0: It was killed by SIGABRT.)"
    assert "too small" in ended.failure.trace


def test_one_that_returns_while_others_wait_for_it_is_an_error(executor, bench):  # noqa: F811
    """Nothing else would end them before their time limit."""
    ended = run(executor, gang_job(bench, "leaves_rank_1_out"))

    assert ended.failure.message.startswith("rank 1 of 3: It has returned, while rank")


def test_each_of_a_gang_asks_about_the_fence(executor, bench):  # noqa: F811
    """A lease that is lost ends all of them."""
    assert run(executor, gang_job(bench, "asks_in_each_rank")).failure is None
    lost = run(executor, gang_job(bench, "asks_in_each_rank"), lost="another run has taken over")
    assert lost.failure.message.endswith("another run has taken over")


def test_a_gang_is_stopped_as_one(executor, bench):  # noqa: F811
    """Each has the grace; the end comes once, when all have ended."""
    job = gang_job(bench, "ends_in_its_grace")
    executor.start(job)
    for rank in range(3):
        until_logged(executor, job, f"[rank {rank}] hanging\n")
    assert executor.running == (job.id,)

    executor.stop(job.id, "It took too long.", timed_out=True, grace_s=1000.0)
    ended = until_ended(executor)

    assert (ended.failure.message, ended.failure.timed_out) == ("It took too long.", True)
    assert Path(job.log).read_text().count("] asked to end\n") == 3
    assert executor.running == ()


def test_a_job_after_a_gang_runs(executor, bench):  # noqa: F811
    """A gang that failed leaves the executor as it was."""
    run(executor, gang_job(bench, "raises_in_rank_1"))

    assert run(executor, bench.job()).failure is None
