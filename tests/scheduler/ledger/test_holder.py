"""Runs that are recorded as running: whether somebody still does them, and what is said where nobody does."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator import lease, process
from spanwise.orchestrator.lease import acquire
from spanwise.orchestrator.run import Run, State, Trigger
from spanwise.orchestrator.store import MemoryStore
from spanwise.orchestrator.testing import FakeClock
from spanwise.scheduler.ledger.holder import (
    LEFT_OPEN,
    find_holder,
    find_living,
    is_left_open,
    is_of_another_key,
    note_left_open,
)
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.timetable import Timetable
from spanwise.scheduler.web.queries.health import judge_health, list_latest_runs
from tests.scenario.deaths import InlineDeaths, dead_process
from tests.scenario.inline import run_inline


@pytest.fixture
def store():
    return MemoryStore()


def begun(store, pipeline="p"):
    """A run of this process, and its lease."""
    mine = acquire(store, pipeline, "a run")
    return store.begin_run(Run(pipeline=pipeline, token=mine.token)), mine


def test_a_run_of_a_living_process_runs(store):
    """Nothing is added to its record."""
    run, _ = begun(store)

    assert note_left_open(store, run) == run


def test_a_run_whose_process_is_dead_says_so(store, monkeypatch):
    """The record says that it runs until the next run closes it."""
    dead = dead_process()
    monkeypatch.setattr(process, "identity", lambda _pid=None: dead)
    run, _ = begun(store)

    assert note_left_open(store, run) == replace(run, error=LEFT_OPEN)


@pytest.fixture
def misdated(store, monkeypatch):
    """Makes runs on a host whose clock is two minutes behind, which beat or do not."""
    clock, slept, beating = FakeClock(), [], []

    def sleep(seconds):
        clock.sleep(seconds)
        slept.append(seconds)
        for claim in beating:
            store.amend(replace(claim, facts={**claim.facts, "beat": len(slept)}))

    def misdated(pipeline="p", *, beats):
        run, _ = begun(store, pipeline)
        claim = store.find_claim("lease", f"{pipeline}#1")
        then = (datetime.now(UTC) - timedelta(minutes=2)).isoformat()
        facts = {**claim.facts, "who": {**claim.facts["who"], "machine": "elsewhere/0/0"}, "last_beat": then}
        store.amend(replace(claim, facts=facts))
        beating.extend([replace(claim, facts=facts)] if beats else [])
        return run, slept

    monkeypatch.setattr(lease, "Clock", lambda: replace(clock.lease(), sleep=sleep, now=lambda: datetime.now(UTC)))
    return misdated


@pytest.mark.parametrize("beats", [True, False])
def test_a_holder_on_a_host_with_another_clock_lives_as_long_as_it_beats(store, misdated, beats):
    """Its last heartbeat looks old by the clock of this one."""
    misdated(beats=beats)

    assert find_holder(store, "p") is None
    assert (find_living(store, "p") is not None) is beats


def test_nothing_is_said_of_a_run_on_a_host_with_another_clock(store, misdated):
    """It was said to have no heartbeat, and its pipeline to be left open by a process that is gone."""
    run, _ = misdated(beats=True)

    health = judge_health(store, [run], [])

    assert note_left_open(store, run) == run
    assert health.word == "running"


def test_a_holder_that_does_not_beat_is_waited_for_once(store, misdated):
    """Not whenever a page is asked for again."""
    run, slept = misdated(beats=False)

    said = [note_left_open(store, run).error for _ in range(3)]

    assert ["no heartbeat from" in error for error in said] == [True] * 3
    assert sum(slept) < lease.TTL_S


def test_the_runs_of_a_host_that_is_silent_are_listened_to_at_once(store, misdated):
    """As where it died with many of them: a page of all pipelines waits as long as for one."""
    for pipeline in ("a", "b", "c"):
        _, slept = misdated(pipeline, beats=pipeline == "b")

    latest = list_latest_runs(store)
    words = {name: judge_health(store, runs, []).word for name, runs in latest.items()}

    assert words == {"a": "failing", "b": "running", "c": "failing"}
    assert sum(slept) < lease.TTL_S


def test_a_run_whose_lease_was_released_is_left_open(store):
    """Its end could not be recorded."""
    run, mine = begun(store)
    mine.release()

    assert is_left_open(store, run)


def test_a_run_that_ended_since_it_was_read_is_not_left_open(store):
    """It was read as running, then ended and released its lease."""
    run, mine = begun(store)
    store.update_run(replace(run, state=State.COMPLETE))
    mine.release()

    assert not is_left_open(store, run)


def test_of_a_run_elsewhere_its_silence_is_said(store, monkeypatch):
    """Whether its process lives cannot be seen from here."""
    run, _ = begun(store)
    monkeypatch.setattr(process, "is_alive", lambda _who: None)
    monkeypatch.setattr(lease, "Clock", FakeClock().lease)
    later = datetime.now(UTC) + timedelta(minutes=2)

    assert not is_left_open(store, run)
    assert "for 2 min" in (note_left_open(store, run, later).error or "")


PARTS = {"ingest": ("Ingest", "Check"), "train": ("Window", "Learn")}


@pytest.mark.parametrize(
    ("trigger", "cause", "nodes", "others"),
    [
        (Trigger.SCHEDULE, "train 2026-03-01T03:30", PARTS["train"], {"p:ingest"}),
        (Trigger.RESUME, "p/1", ("Learn",), {"p:ingest"}),
        (Trigger.RESUME, "p/2", ("Learn",), {"p:ingest"}),
        (Trigger.RESUME, "p/9", ("Learn",), {"p:ingest"}),  # not recorded
        (Trigger.RESUME, "p/3", ("Learn",), {"p:ingest", "p:train"}),
        (Trigger.MANUAL, "", PARTS["train"], {"p:ingest"}),
        (Trigger.MANUAL, "", ("Check",), {"p:train"}),
        (Trigger.MANUAL, "", ("Check", "Window"), set()),
        (Trigger.PUSH, "", ("Learn",), {"p:ingest"}),
        (Trigger.BACKFILL, "backfill 1", ("Ingest", "Check"), set()),
    ],
)
def test_a_run_is_of_the_part_that_it_resumes_or_whose_nodes_it_does(store, trigger, cause, nodes, others):
    """A tick of another part waits for it, whoever has started it, and neither kills it nor is skipped."""
    for part, its in PARTS.items():
        table = Timetable(f"p:{part}", cron="0 3 * * *", division=HALVES)
        put_schedule(store, ScheduleRecord(timetable=table, since=datetime(2026, 3, 1, tzinfo=UTC), nodes=its))
    for first in ("train 2026-03-01T03:30", "", "data 2026-03-01"):
        store.begin_run(Run(pipeline="p", trigger=Trigger.SCHEDULE if first else Trigger.RESUME, cause=first or "p/1"))

    run = store.begin_run(Run(pipeline="p", trigger=trigger, cause=cause, nodes=nodes))

    assert {key for key in ("p:ingest", "p:train") if is_of_another_key(store, run, key)} == others


def test_lists_and_logs_know_of_a_dead_controller(folder, spanwise, monkeypatch):
    """`runs` and `show` say so, as text and as JSON, and `logs --follow` ends."""
    (folder / "p.py").write_text(
        "from spanwise import Component, Output, Pipeline, Report\n\n\n"
        "class Make(Component):\n"
        "    def run(self, report: Output[Report]) -> None:\n"
        '        (report.path / "x").touch()\n\n\n'
        'p = Pipeline("p", [Make()])\n'
    )
    deaths = InlineDeaths(folder, run_inline(monkeypatch), monkeypatch)
    deaths.kill_during(lambda: spanwise("run", "p.py"), 0.05)

    said = {line: spanwise(*line.split())[1] for line in ("runs", "runs --json", "show p", "show p --json")}
    followed, _, _ = spanwise("logs", "p", "--follow")

    assert all(LEFT_OPEN in out for out in said.values()), said
    assert json.loads(said["runs --json"])[0]["state"] == "running"
    assert followed == 0
