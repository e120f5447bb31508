"""Gangs on Ray: replicas get their places together or not at all. The cluster has two machines of two processors.

`make test-training` runs these.
"""

import json
import os
from pathlib import Path

import pytest

from spanwise.orchestrator import Resources
from spanwise.orchestrator.agents.placed_executor import PlacedExecutor
from spanwise.orchestrator.agents.ray_engine import RayEngine
from spanwise.orchestrator.gang_executor import GangExecutor
from tests.contract.executor_jobs import Bench, Work, until_ended, until_logged
from tests.contract.ray_cluster import start_ray
from tests.contract.test_gangs import gang_job, run

if "SPANWISE_TEST_RAY" not in os.environ:
    pytest.skip("make test-training runs these", allow_module_level=True)


@pytest.fixture(scope="module")
def cluster():
    with start_ray(cpus=0) as cluster:
        cluster.add("one", "two", cpus=2)
        yield cluster


@pytest.fixture
def spread(tmp_path, cluster):
    bench = Bench(tmp_path, Work(how="well", name="Work", resources=Resources(spread=True)))
    engine = RayEngine(cluster.address)
    below = PlacedExecutor(bench.pipeline, engine, root=bench.root, away=bench.pipeline.order)
    with GangExecutor(below) as executor:
        yield bench, executor


def test_each_replica_gets_a_machine_of_its_own(spread):
    """Also where one machine had room for both; and again, when the first gang has given back its places."""
    bench, executor = spread
    for _ in range(2):
        (tally,) = run(executor, gang_job(bench, "names_its_machine", size=2)).outputs["tally"]
        assert len(set(json.loads(tally.note))) == 2


def test_none_starts_where_not_all_have_a_place(spread):
    """Three machines are asked of two, so nothing is begun; and the places are free again when that is stopped."""
    bench, executor = spread
    job = gang_job(bench, "hangs", size=3)
    executor.start(job)
    for _ in range(10):
        assert executor.wait(0.5) == []
    assert not Path(job.log).exists()

    executor.stop(job.id, "stopped", grace_s=0.0)
    assert until_ended(executor).failure.message == "stopped"

    assert run(executor, gang_job(bench, "names_its_machine", size=2)).failure is None


def test_a_machine_that_is_lost_is_why_its_gang_ends(spread, cluster):
    """And no failure of the node: the one of rank 0 only followed."""
    bench, executor = spread
    cluster.add("three", cpus=2)
    job = gang_job(bench, "loses_rank_1", size=3)
    ended = run(executor, job)
    assert ended.failure.message.startswith("rank 1 of 3: It was killed by SIGKILL")

    job = gang_job(bench, "hangs", size=3)
    executor.start(job)
    for rank in range(3):
        until_logged(executor, job, f"[rank {rank}] hanging\n")
    cluster.kill("three")
    ended = until_ended(executor)

    assert ended.failure.cause == "preempted"
    assert "Its machine is gone" in ended.failure.message
