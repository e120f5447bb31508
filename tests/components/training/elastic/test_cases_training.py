"""The cases of the training loop, each a test named by its id."""

import json
import re
import threading
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.elastic_loop import DOCUMENT_S, LoopTimes
from spanwise.components.training.elastic.phases import Phase, Phases
from spanwise.components.training.elastic.worker import MasterClient
from tests.components.training.elastic import jobs

TESTS = Path(__file__).parents[3]


def test_every_case_is_a_test_or_a_difference():
    """No case of this area is left out, and none is both."""
    cases = json.loads((TESTS / "conformance" / "cases" / "data.json").read_text())
    ids = {case["id"] for case in cases if case["area"] == "training.loop"}
    tested = {"-".join(found) for found in re.findall(r"def test_([A-Z]{2})_(\d+)_", Path(__file__).read_text())}
    differ = tomllib.loads((TESTS / "pipelines" / "input" / "differences.toml").read_text()).keys() & ids

    assert ids - tested == differ
    assert tested <= ids


class LoopClock:
    """A clock that goes forward when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def measure_loop(durations, rest_s):
    """Goes once through the phases; returns what was measured, and the time of the whole loop."""
    clock, phases = LoopClock(), Phases()
    for phase, seconds in durations.items():
        with phases.during(phase, clock):
            clock.now += seconds
    clock.now += rest_s
    return phases.seconds, clock.now


def test_ED_01_the_phases_of_a_loop_have_these_shares():
    """Input 48 %, computing 29 %, the parameter server 20 %; 1.6 s are none of them."""
    seconds, total_s = measure_loop(DOCUMENT_S, 1.6)

    assert total_s == pytest.approx(51.0)
    assert (seconds[Phase.GET_BATCH] + seconds[Phase.INPUT_FN]) / total_s == pytest.approx(0.482, abs=5e-4)
    assert seconds[Phase.COMPUTE] / total_s == pytest.approx(0.29, abs=5e-4)
    assert (seconds[Phase.GET_MODEL] + seconds[Phase.REPORT]) / total_s == pytest.approx(0.196, abs=5e-4)
    assert total_s - sum(seconds.values()) == pytest.approx(1.6)


def test_ED_02_overlap_alone_is_bounded_by_the_longer_part():
    """24.6 s of input behind 26.4 s of the rest: 26.4 s, 1.93 times as fast."""
    times = LoopTimes(name="as it was", change="", step_s=51.0, seconds=DOCUMENT_S)

    assert times.full_overlap_s == pytest.approx(26.4)
    assert times.step_s / times.full_overlap_s == pytest.approx(1.93, abs=5e-3)


def test_ED_03_what_the_worker_is_not_busy_with_it_waits_for():
    """4.2 s, 5.4 s and 7.6 s of 23.8 s: 6.6 s are waiting for input, and the rest."""
    busy_s = {Phase.COMPUTE: 4.2, Phase.GET_MODEL: 5.4, Phase.REPORT: 7.6}
    seconds, total_s = measure_loop({Phase.GET_BATCH: 5.0, **busy_s}, 1.6)

    assert total_s == pytest.approx(23.8)
    assert sum(seconds[phase] for phase in busy_s) == pytest.approx(17.2)
    assert total_s - sum(seconds[phase] for phase in busy_s) == pytest.approx(6.6)


def test_ED_04_the_next_task_is_asked_for_before_the_last_batch_of_one_is_computed_on(tmp_path):
    """One dataset over ten tasks, two batches ahead: a task is reported when its last batch was computed, not made."""
    events = []
    asked = threading.Condition()

    class Told(MasterClient):
        """Notes when it is asked for a task, and when one is reported."""

        def ask(self, request, content=b""):
            with asked:
                events.append((request.kind, getattr(request, "task", None)))
                asked.notify_all()
            return super().ask(request, content)

    def gradient(parameters, batch):
        if batch["x"][-1] % 20 == 19:  # the last of a task
            number = sum(kind == "report_task" for kind, _ in events)
            with asked:
                ahead = asked.wait_for(lambda: sum(kind == "get_task" for kind, _ in events) > number + 1, 30)
            events.append(("computed the last of", ahead))
        return jobs.gradient(parameters, batch)

    job = replace(jobs.SUM, gradient=gradient, task_rows=20, ahead=2)
    task = jobs.task_of(tmp_path, spans=1, rows=200)
    with jobs.master_of(job, task) as master:
        jobs.worker_of(job, task, master, client=Told).run()

        assert master.outcome().parameters["rows"] == 200
    told = [event for event in events if event[0] in {"computed the last of", "report_task"}]
    assert told == [
        event for number in range(10) for event in (("computed the last of", True), ("report_task", number))
    ]
