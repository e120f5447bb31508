"""Metrics: what a scheduler counts and measures, read from its page as Prometheus does."""

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from spanwise.orchestrator import PushedModel, Run, State, Trigger
from spanwise.orchestrator.serving import claim_pushes
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.alerts import alert, outbox
from spanwise.scheduler.alerts.alert import Site
from spanwise.scheduler.daemon.description import ScheduleDescription
from spanwise.scheduler.daemon.metrics import LOOK_S, SchedulerMetrics, span_end
from spanwise.scheduler.daemon.open_tick import OpenTick
from spanwise.scheduler.daemon.pipeline_scheduler import PipelineScheduler
from spanwise.scheduler.daemon.services import SchedulerServices
from spanwise.scheduler.ledger.heartbeat import HeartbeatWatch
from spanwise.scheduler.ledger.schedules import ScheduleRecord
from spanwise.scheduler.ledger.ticks import TickRecord
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.ticks import Tick
from spanwise.scheduler.schedule.timetable import Timetable
from tests.scheduler.conftest import PROJECT, start_warm
from tests.scheduler.records import DAY, NOON, Clock, begun, ended, published

TIMETABLE = Timetable(
    "flights", cron="0 3 * * *", zone="America/New_York", span=days_before(1), freshness=timedelta(days=2)
)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(Clock())


@pytest.fixture
def watched(tmp_path: Path) -> PipelineScheduler:
    described = ScheduleDescription(
        timetable=TIMETABLE, source="/flights.py", calendar="day", pushes=("Pusher/pushed_model",)
    )
    known = ScheduleRecord(
        timetable=TIMETABLE,
        since=NOON,
        calendar="day",
        pushes=("Pusher/pushed_model",),
    )
    services = SchedulerServices(root=tmp_path, config=None, site=Site(host="here", folder=tmp_path))
    return PipelineScheduler(described, known, services, HeartbeatWatch())


@pytest.fixture
def metrics(tmp_path: Path, watched: PipelineScheduler) -> SchedulerMetrics:
    """Of a scheduler that looks after one pipeline."""
    found = SchedulerMetrics(tmp_path, clock=lambda: NOON + timedelta(hours=1))
    found.watch({"flights": watched})
    return found


def read(page: bytes) -> Mapping[str, float]:
    """Every sample by its name and labels, those of the process left out."""
    return {
        f"{s.name}{{{','.join(f'{k}={v}' for k, v in sorted(s.labels.items()))}}}": s.value
        for family in families(page.decode())
        for s in family.samples
        if s.name.startswith("spanwise_")
    }


def samples(metrics: SchedulerMetrics) -> Mapping[str, float]:
    return read(metrics.page("")[0])


def tick(outcome: TickOutcome, run: Run | None = None) -> TickRecord:
    return TickRecord(
        key="flights",
        tick=Tick(at=NOON, name="2013-01-08T03:00", wall=NOON, span=DAY),
        number=1,
        taken=NOON,
        after_run=0,
        holder=1,
        attempts=1,
        end=TickEnd(outcome=outcome, run=None if run is None else run.number),
        ended=NOON,
    )


def pushing(store: MemoryStore) -> Run:
    """A run of three minutes that has pushed its model."""
    run = begun(store, span=DAY)
    published(store, run, "Trainer")
    facts = {"pushed": 1, "pushed_destination": "/srv", "model": "flights/Trainer/model/1"}
    pushed = PushedModel("/root/pushed", properties=facts)
    store.claim(*claim_pushes(store, published(store, run, "Pusher", outputs={"pushed_model": pushed}), [pushed]))
    return ended(store, run)


def test_ticks_are_counted_by_outcome(metrics: SchedulerMetrics, store: MemoryStore) -> None:
    """One counter for each pipeline and outcome."""
    for outcome in (TickOutcome.SKIPPED, TickOutcome.SKIPPED, TickOutcome.MISSED):
        metrics.tick_ended(store, tick(outcome))

    found = samples(metrics)

    assert found["spanwise_ticks_total{outcome=skipped,pipeline=flights}"] == 2
    assert found["spanwise_ticks_total{outcome=missed,pipeline=flights}"] == 1


def test_counters_begin_at_zero(metrics: SchedulerMetrics, store: MemoryStore, watched: PipelineScheduler) -> None:
    """The first failure is a step from 0 to 1, which a rate sees; a counter that appears with 1 is none."""
    metrics.look(store, watched, 0.0)

    found = samples(metrics)

    assert {found[f"spanwise_ticks_total{{outcome={o.value},pipeline=flights}}"] for o in TickOutcome} == {0.0}
    assert found["spanwise_loop_errors_total{pipeline=flights}"] == 0
    assert found["spanwise_loop_errors_total{pipeline=}"] == 0


def test_durations_are_of_runs_and_nodes(metrics: SchedulerMetrics, store: MemoryStore) -> None:
    """By the stamps in the metadata, in seconds, by how they ended."""
    run = pushing(store)
    metrics.tick_ended(store, tick(TickOutcome.RAN, run))

    found = samples(metrics)

    assert found["spanwise_run_duration_seconds_sum{pipeline=flights,state=complete}"] == 180
    assert found["spanwise_run_duration_seconds_bucket{le=60.0,pipeline=flights,state=complete}"] == 0
    assert found["spanwise_run_duration_seconds_bucket{le=300.0,pipeline=flights,state=complete}"] == 1
    assert found["spanwise_node_duration_seconds_count{node=Trainer,pipeline=flights,state=complete}"] == 1


def test_the_lag_is_from_the_end_of_the_span_to_the_push(metrics: SchedulerMetrics, store: MemoryStore) -> None:
    """The day 2013-01-05 ends in New York at 05:00 UTC on the 6th; the model was pushed at noon on the 8th."""
    metrics.tick_ended(store, tick(TickOutcome.RAN, pushing(store)))

    assert samples(metrics)["spanwise_push_lag_seconds{pipeline=flights}"] == (2 * 24 + 7) * 3600


def test_a_run_that_pushes_nothing_has_no_lag(metrics: SchedulerMetrics, store: MemoryStore) -> None:
    """Nothing is told that was not measured."""
    run = begun(store, span=DAY)
    published(store, run, "Pusher", outputs={"pushed_model": PushedModel("/root/kept", properties={"pushed": 0})})
    metrics.tick_ended(store, tick(TickOutcome.RAN, ended(store, run)))

    assert "spanwise_push_lag_seconds{pipeline=flights}" not in samples(metrics)


def test_what_the_metadata_know_is_read_now_and_then(
    metrics: SchedulerMetrics, store: MemoryStore, watched: PipelineScheduler
) -> None:
    """The last success and push, of whomever; at once after a tick of ours, else once a minute."""
    metrics.look(store, watched, 0.0)
    before = samples(metrics)
    pushing(store)
    metrics.look(store, watched, LOOK_S - 1)
    between = samples(metrics)
    metrics.look(store, watched, LOOK_S)
    after = samples(metrics)

    assert "spanwise_last_push_timestamp_seconds{pipeline=flights}" not in before
    assert between == before
    assert after["spanwise_last_push_timestamp_seconds{pipeline=flights}"] == NOON.timestamp()
    assert after["spanwise_last_success_timestamp_seconds{pipeline=flights}"] == NOON.timestamp() + 180
    assert after["spanwise_model_age_seconds{pipeline=flights}"] == 3600
    assert after["spanwise_model_age_limit_seconds{pipeline=flights}"] == 2 * 86400


def test_the_last_success_is_known_after_any_number_of_failures(
    metrics: SchedulerMetrics, store: MemoryStore, watched: PipelineScheduler
) -> None:
    """A rule that looks at its age would find nothing, and end its alert."""
    ended(store, begun(store))
    for _ in range(30):
        ended(store, begun(store), State.FAILED)

    metrics.look(store, watched, 0.0)

    found = samples(metrics)
    assert found["spanwise_last_success_timestamp_seconds{pipeline=flights}"] == NOON.timestamp() + 180


def test_the_last_success_of_a_part_is_of_that_part(
    metrics: SchedulerMetrics, store: MemoryStore, watched: PipelineScheduler
) -> None:
    """Ingesting each hour hid that nothing had been trained for weeks; so did a run by hand of a few nodes, and a replay."""
    watched.update(replace(watched.description, nodes=("Recent", "Trainer", "Evaluator", "Pusher")), watched.record)
    trained = begun(store, nodes=("Recent", "Trainer", "Evaluator", "Pusher"))
    store.update_run(replace(trained, state=State.COMPLETE, ended=NOON))
    for nodes in (("ExampleGen",), ("Recent", "Trainer"), ("Pusher",)):
        ended(store, begun(store, nodes=nodes))
    ended(store, begun(store, nodes=("Recent", "Trainer", "Evaluator", "Pusher"), replay=True))

    metrics.look(store, watched, 0.0)

    found = samples(metrics)
    assert found["spanwise_last_success_timestamp_seconds{pipeline=flights}"] == NOON.timestamp()


def test_a_resumed_run_that_completes_a_part_is_a_success_of_it(
    metrics: SchedulerMetrics, store: MemoryStore, watched: PipelineScheduler
) -> None:
    """It has done the rest of the run that it resumes; a Pusher by hand on what an older run has trained has not."""
    watched.update(replace(watched.description, nodes=("Recent", "Trainer", "Pusher")), watched.record)
    failed = ended(store, begun(store, nodes=("Recent", "Trainer", "Pusher")), State.FAILED)
    rest = begun(store, nodes=("Trainer", "Pusher"), trigger=Trigger.RESUME, cause=failed.name, base=failed.number)
    store.update_run(replace(rest, state=State.COMPLETE, ended=NOON))
    ended(store, begun(store, nodes=("Pusher",), base=failed.number))

    metrics.look(store, watched, 0.0)

    assert samples(metrics)["spanwise_last_success_timestamp_seconds{pipeline=flights}"] == NOON.timestamp()


def test_runs_that_have_ended_are_read_once(
    metrics: SchedulerMetrics, store: MemoryStore, watched: PipelineScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a part that is trained once a week, all runs since then were read each minute, and after each hour's tick."""
    watched.update(replace(watched.description, nodes=("Trainer",)), watched.record)
    read: list[int] = []
    runs = store.runs

    def note(run: Run) -> Run:
        read.append(run.number)
        return run

    monkeypatch.setattr(store, "runs", lambda *given: map(note, runs(*given)))
    for nodes in (("Trainer",), ("Trainer",), ("ExampleGen",), ("ExampleGen",)):
        ended(store, begun(store, nodes=nodes))
    training = begun(store, nodes=("Trainer",))
    metrics.look(store, watched, 0.0)
    metrics.look(store, watched, LOOK_S)
    ended(store, training)
    metrics.look(store, watched, 2 * LOOK_S)

    assert read == [5, 4, 3, 2, 5, 4, 5]
    found = samples(metrics)
    assert found["spanwise_last_success_timestamp_seconds{pipeline=flights}"] == NOON.timestamp() + 180


def test_a_push_by_name_is_no_success_of_the_pipeline(
    metrics: SchedulerMetrics, store: MemoryStore, watched: PipelineScheduler
) -> None:
    """Nothing was ingested or trained in it, though the Pusher is the last node: a rollback hid that no run succeeds."""
    watched.update(replace(watched.description, nodes=("Pusher",)), watched.record)
    trained = begun(store, nodes=("ExampleGen", "Trainer", "Pusher"))
    store.update_run(replace(trained, state=State.COMPLETE, ended=NOON))
    ended(store, begun(store, nodes=("Pusher",), trigger=Trigger.PUSH))

    metrics.look(store, watched, 0.0)

    assert samples(metrics)["spanwise_last_success_timestamp_seconds{pipeline=flights}"] == NOON.timestamp()


def test_what_goes_on_is_read_when_asked(metrics: SchedulerMetrics, watched: PipelineScheduler) -> None:
    """Running runs, open ticks and the next tick are those of the moment."""
    watched.due_at, entry = NOON, tick(TickOutcome.RAN)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        watched.open.update({"a": OpenTick(entry, child=child), "b": OpenTick(entry)})
        during = samples(metrics)
    watched.open.clear()
    after = samples(metrics)

    assert during["spanwise_running_runs{pipeline=flights}"] == 1
    assert during["spanwise_open_ticks{pipeline=flights}"] == 2
    assert during["spanwise_next_tick_timestamp_seconds{pipeline=flights}"] == NOON.timestamp()
    assert after["spanwise_running_runs{pipeline=flights}"] == 0


def test_alerts_in_the_outbox_are_counted(metrics: SchedulerMetrics, tmp_path: Path) -> None:
    """Those that nobody has got yet."""
    before = samples(metrics)["spanwise_alerts_waiting{}"]
    site = Site(host="here", folder=tmp_path)
    outbox.put(tmp_path, alert.trouble_alert("the test", at=NOON, site=site, error="as asked for"))

    assert (before, samples(metrics)["spanwise_alerts_waiting{}"]) == (0, 1)


def test_failures_of_the_loop_are_counted(metrics: SchedulerMetrics) -> None:
    """Those of one pipeline, and those of all."""
    metrics.failed("flights")
    metrics.failed()
    metrics.failed()

    found = samples(metrics)

    assert found["spanwise_loop_errors_total{pipeline=flights}"] == 1
    assert found["spanwise_loop_errors_total{pipeline=}"] == 2


def test_two_schedulers_in_a_process_do_not_mix(metrics: SchedulerMetrics, tmp_path: Path) -> None:
    """Each has a registry of its own."""
    metrics.turned(1.0)

    assert samples(SchedulerMetrics(tmp_path))["spanwise_loop_duration_seconds_count{}"] == 0


def test_names_follow_the_conventions(
    metrics: SchedulerMetrics, store: MemoryStore, watched: PipelineScheduler
) -> None:
    """Base units and suffixes as Prometheus wants them, a help text each."""
    metrics.look(store, watched, 0.0)
    metrics.tick_ended(store, tick(TickOutcome.RAN, pushing(store)))
    ours = [f for f in families(metrics.page("")[0].decode()) if f.name.startswith("spanwise_")]

    assert len(ours) > 10
    for family in ours:
        assert family.documentation.endswith("."), family.name
        if family.type == "counter":
            assert {s.name for s in family.samples} == {f"{family.name}_total"}
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        assert not re.search(r"_(ms|minutes|hours|days|kb|mb)\b", family.name)


def test_the_page_about_metrics_names_all_of_them(metrics: SchedulerMetrics) -> None:
    """What is documented is there, and what is there is documented."""
    page = (PROJECT / "docs" / "how-to" / "monitor.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(spanwise_\w+)`", page, re.MULTILINE))
    ours = [f for f in families(metrics.page("")[0].decode()) if f.name.startswith("spanwise_")]
    told = {f.name + ("_total" if f.type == "counter" else "") for f in ours}

    assert listed == told
    assert {re.sub("_bucket$", "", name) for name in re.findall(r"spanwise_[a-z]\w+", page)} == listed


@pytest.mark.parametrize(
    ("calendar", "span", "zone", "end"),
    [
        ("day", 20_520, "UTC", datetime(2026, 3, 9, tzinfo=UTC)),
        ("day", 20_520, "America/New_York", datetime(2026, 3, 9, 4, tzinfo=UTC)),  # the day has 23 hours
        ("day", 20_519, "America/New_York", datetime(2026, 3, 8, 5, tzinfo=UTC)),
        ("day", -1, "UTC", datetime(1970, 1, 1, tzinfo=UTC)),
        ("hour", 20_520 * 24 + 1, "America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
        ("week", 2931, "America/New_York", datetime(2026, 3, 9, 4, tzinfo=UTC)),  # 2026-W10 ends with a day of 23 hours
        ("month", 674, "America/New_York", datetime(2026, 4, 1, 4, tzinfo=UTC)),
        ("quarter", 223, "UTC", datetime(2026, 1, 1, tzinfo=UTC)),
        ("number", 7, "UTC", None),
        ("day", None, "UTC", None),
    ],
)
def test_a_span_ends_by_the_clock_of_the_schedule(
    calendar: str, span: int | None, zone: str, end: datetime | None
) -> None:
    """A day, week, month or quarter at its midnight there, an hour sixty minutes after it began; a number never."""
    run = Run(pipeline="flights", calendar=calendar, span=span)

    assert span_end(run, replace(TIMETABLE, zone=zone)) == end


SCHEDULE = """
from flow import flow
from spanwise.scheduler import Schedule

often = Schedule(flow, cron="* * * * * *")
"""


@pytest.fixture
def scheduler(project: Path) -> Iterator[subprocess.Popen[str]]:
    """A scheduler in a process of its own, with a tick each second."""
    (project / "often.py").write_text(SCHEDULE)
    child = start_warm("schedule", "start", "often.py", "--listen", "0", "--json", cwd=project)
    yield child
    child.kill()
    child.communicate()


@pytest.mark.slow
def test_a_scheduler_serves_what_it_does(scheduler: subprocess.Popen[str]) -> None:
    """From a real scheduler with real runs, by HTTP, at the address that its log names."""
    url = ""
    assert scheduler.stderr is not None
    for line in scheduler.stderr:
        said = json.loads(line)
        if said["event"] == "metrics-served":
            url = said["url"]
        if said["event"] == "tick-ended":
            break
    found: Mapping[str, float] = {}
    deadline = time.monotonic() + 300
    # The first tick to end may be one that was skipped, and when the last run succeeded is read at the next look.
    wanted = {
        "spanwise_last_success_timestamp_seconds{pipeline=flow}",
        "spanwise_run_duration_seconds_count{pipeline=flow,state=complete}",
    }
    while not all(map(found.get, wanted)):
        assert time.monotonic() < deadline, found
        with urllib.request.urlopen(url, timeout=300) as page:
            found = read(page.read())
        time.sleep(0.1)
    with urllib.request.urlopen(url.replace("/metrics", "/healthz"), timeout=300) as page:
        healthy = page.status
    scheduler.send_signal(signal.SIGTERM)
    scheduler.communicate(timeout=300)

    assert healthy == 200
    assert found["spanwise_run_duration_seconds_count{pipeline=flow,state=complete}"] >= 1
    assert found["spanwise_node_duration_seconds_count{node=First,pipeline=flow,state=complete}"] >= 1
    assert found["spanwise_next_tick_timestamp_seconds{pipeline=flow}"] > 0
    assert found["spanwise_ticks_total{outcome=ran,pipeline=flow}"] >= 1
    assert found["spanwise_loop_duration_seconds_count{}"] > 1
    assert found["spanwise_loop_errors_total{pipeline=}"] == 0
