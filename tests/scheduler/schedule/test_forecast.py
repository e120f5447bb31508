import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator import Execution, Run, State
from spanwise.orchestrator.run import Trigger
from spanwise.orchestrator.store import Claim, MemoryStore
from spanwise.scheduler.ledger.past_runs import list_past_runs, measure_run
from spanwise.scheduler.ledger.schedule_status import read_forecast
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule, retire_schedule
from spanwise.scheduler.ledger.ticks import claim_tick
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.forecast import (
    DurationTrend,
    PastRun,
    find_trend,
    forecast_document,
    format_forecast,
    make_forecast,
    shortest_interval,
)
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.schedule_key import format_cause
from spanwise.scheduler.schedule.ticks import Tick, ticks
from spanwise.scheduler.schedule.timetable import Timetable

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
LOAD = 0.8  # the default of the settings
NOW = datetime(2026, 5, 1, tzinfo=UTC)
HOURLY = Timetable("flights", cron="0 * * * *")


def history(
    growth_s: float = 0.0, *, days: int = 60, noise_s: float = 60.0, base_s: float = 1800.0, seed: int = 1
) -> list[PastRun]:
    """A run a day up to now, the newest first, of which the last takes `base_s` and the trainer two thirds of each."""
    dice = random.Random(seed)
    took = [(NOW - day * DAY, base_s - growth_s * day + dice.gauss(0, noise_s)) for day in range(1, days + 1)]
    return [PastRun(started=at, took_s=s, nodes_s={"Trainer": s * 2 / 3, "Transform": 60.0}) for at, s in took]


def test_the_median_and_the_95th_percentile_are_those_of_the_runs() -> None:
    """Between the two runs around it, as NumPy has it."""
    found = find_trend([(NOW - day * DAY, float(day)) for day in range(1, 8)], NOW)

    assert (found.count, found.median_s) == (7, 4.0)
    assert found.p95_s == pytest.approx(6.7)
    assert find_trend([(NOW, 5.0)], NOW) == DurationTrend(count=1, median_s=5.0, p95_s=5.0, now_s=5.0, high_s=5.0)


def test_growth_is_found_and_odd_runs_do_not_move_it() -> None:
    """Twenty seconds a day, though every tenth run took three times as long."""
    runs = history(20.0)
    odd = [replace(each, took_s=each.took_s * 3) if n % 10 == 3 else each for n, each in enumerate(runs)]

    for given in (runs, odd):
        found = make_forecast(HOURLY, given, NOW).run
        assert found is not None
        assert found.growth_s == pytest.approx(20, abs=3)
        assert found.now_s == pytest.approx(1800, abs=100)
        assert found.median_s < found.now_s


def test_runs_that_do_not_grow_are_seldom_taken_to() -> None:
    """One history in a hundred, by chance."""
    grown = sum(bool(find_trend([(r.started, r.took_s) for r in history(seed=n)], NOW).growth_s) for n in range(200))

    assert grown <= 8


def test_of_a_few_runs_no_growth_is_said() -> None:
    """Three that happen to be longer each time are no trend."""
    found = make_forecast(HOURLY, history(60.0, days=7, noise_s=0.0), NOW).run

    assert found is not None
    assert found.growth_s == 0.0


def test_the_first_overrun_is_when_one_run_in_twenty_takes_longer_than_the_interval() -> None:
    """Half an hour is left, of which the runs take a minute more each day."""
    found = make_forecast(HOURLY, history(60.0, noise_s=1.0), NOW)

    assert found.first_overrun is not None
    assert abs(found.first_overrun - (NOW + 29 * DAY)) < 2 * DAY
    assert found.overran == 0
    assert found.load == pytest.approx(0.52, abs=0.02)


def test_runs_that_do_not_grow_never_overrun_until_they_take_too_long() -> None:
    """Then at any tick."""
    steady = make_forecast(HOURLY, history(), NOW)
    long = make_forecast(HOURLY, history(base_s=3700.0), NOW)
    shrinking = make_forecast(HOURLY, history(-10.0), NOW)

    assert steady.first_overrun is None
    assert shrinking.first_overrun is None
    assert long.first_overrun == NOW
    assert long.overran > 30


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (history(), ""),
        (history(base_s=3000.0), "a run takes up to 51 min"),
        (history(2.0), ""),
        (history(60.0, noise_s=1.0), "at this rate, overruns begin about 2026-05-"),
        (history(base_s=5000.0), "any tick may overrun"),
        ([], ""),
    ],
)
def test_it_is_told_when_runs_come_close_to_the_interval_or_soon_will(runs: list[PastRun], said: str) -> None:
    """Above four fifths of the time between two ticks, or when the first overrun is less than a month away."""
    found = make_forecast(HOURLY, runs, NOW).alarm(LOAD)

    assert said in found
    assert bool(found) == bool(said)


def test_the_threshold_can_be_set() -> None:
    """For who wants to know earlier."""
    assert make_forecast(HOURLY, history(), NOW).alarm(0.5)
    assert not make_forecast(HOURLY, history(60.0, noise_s=1.0), NOW).alarm(LOAD, horizon=10 * DAY)


def test_each_node_has_a_course_of_its_own() -> None:
    """So that one can see which of them grows."""
    found = make_forecast(HOURLY, history(30.0), NOW)

    assert found.nodes["Trainer"].growth_s == pytest.approx(20, abs=4)
    assert found.nodes["Transform"].growth_s == 0.0


def test_a_forecast_for_people_is_a_few_facts() -> None:
    """The run against the interval, where that leads, and the nodes that take longest."""
    facts = format_forecast(make_forecast(HOURLY, history(60.0, noise_s=0.0), NOW))

    assert facts == {
        "a run takes": "30 min 00 s (95 %: 30 min 00 s), grows by 1 min 00 s a day; based on 60 runs",
        "of the interval": "50% of 1 h 00 min",
        "first overrun": "at this rate, overruns begin about 2026-05-31",
        "slowest nodes": "Trainer 20 min 00 s (95 %: 20 min 00 s), grows by 40.0 s a day; "
        "Transform 1 min 00 s (95 %: 1 min 00 s)",
    }
    long = format_forecast(make_forecast(HOURLY, history(base_s=5000.0), NOW))
    assert long["of the interval"].endswith("of 1 h 00 min; 60 of those runs took longer")
    assert long["first overrun"] == "any tick may overrun"


def test_of_a_few_runs_nobody_is_told() -> None:
    """A percentile of them is none; that they overran has been told."""
    assert not make_forecast(HOURLY, history(base_s=5000.0, days=7), NOW).alarm(LOAD)
    assert make_forecast(HOURLY, history(base_s=5000.0, days=8), NOW).alarm(LOAD)


def test_the_interval_is_the_shortest_between_coming_ticks_without_jitter() -> None:
    """A schedule of working hours has the hour, not the night; one that has ended has none."""
    office = Timetable("flights", cron="0 9-17 * * *", jitter_s=600)

    assert shortest_interval(office, NOW) == timedelta(minutes=50)
    assert shortest_interval(replace(office, end=NOW), NOW) is None


@pytest.mark.parametrize(
    ("cron", "jitter_s"), [("*/15 * * * *", 900), ("0 2,3 * * *", 3600), ("30 1,2,13 * * *", 3600)]
)
def test_jitter_that_leaves_a_run_no_time_is_forecast_as_an_overrun(cron: str, jitter_s: float) -> None:
    """Where it is as long as the interval, or longer in the night in which the clock is put forward."""
    table = Timetable("flights", cron=cron, jitter_s=jitter_s, zone="America/New_York")
    runs = history()

    found = make_forecast(table, runs, datetime(2026, 3, 7, tzinfo=UTC))

    assert found.interval == timedelta(seconds=1)
    assert "of the 1.0 s between two ticks; any tick may overrun" in found.alarm(LOAD)
    assert format_forecast(found)["first overrun"] == "any tick may overrun"


def test_without_runs_nothing_is_forecast() -> None:
    """And it says why."""
    found = make_forecast(HOURLY, [], NOW)

    assert (found.run, found.load, found.first_overrun) == (None, None, None)
    assert format_forecast(found) == {"a run takes": "unknown, since no run of the whole pipeline is complete"}
    assert forecast_document(found, LOAD)["run"] is None
    part = make_forecast(replace(HOURLY, pipeline="flights:train", division=HALVES), [], NOW)
    assert format_forecast(part) == {"a run takes": "unknown, since no scheduled run of this part is complete"}


def test_a_schedule_that_is_over_overruns_nothing() -> None:
    """As long as a tick of it is missed, it is shown; that any tick may overrun was said of it, though none comes."""
    store = MemoryStore()
    put_schedule(store, ScheduleRecord(timetable=HOURLY, since=NOW - 2 * DAY))
    tick = next(ticks(HOURLY, NOW - DAY))
    claim_tick(store, "flights", tick, holder=1, now=NOW, end=TickEnd(outcome=TickOutcome.FAILED))
    store.begin_run(Run(pipeline="flights", state=State.COMPLETE, started=NOW - 9 * HOUR, ended=NOW - 7 * HOUR))
    before = read_forecast(store, "flights", NOW)

    retire_schedule(store, "flights")

    over = read_forecast(store, "flights", NOW)
    assert (before.first_overrun, over.first_overrun) == (NOW, None)
    assert over.run == before.run


def test_a_forecast_for_programs_has_the_figures() -> None:
    """In seconds, and the first overrun in UTC."""
    document = forecast_document(make_forecast(HOURLY, history(60.0, noise_s=1.0), NOW), LOAD)

    assert document["interval_s"] == 3600.0
    assert str(document["first_overrun"]).startswith("2026-05-")
    assert document["alarm"]
    assert list(document["nodes"]) == ["Trainer", "Transform"]  # type: ignore[arg-type]


# --- from the records


def run(store: MemoryStore, day: int, state: State = State.COMPLETE, **facts: object) -> Run:
    """A run of two nodes that began so many days ago and took an hour, the second node half of it in two attempts."""
    started = NOW - day * DAY
    begun = store.begin_run(Run(pipeline="flights", nodes=("Ingest", "Train"), started=started, **facts))  # type: ignore[arg-type]
    for node, attempt, minutes, ends in (
        ("Ingest", 1, (0, 30), State.CACHED),
        ("Train", 1, (30, 40), State.FAILED),
        ("Train", 2, (40, 60), State.COMPLETE),
    ):
        at, over = (started + timedelta(minutes=m) for m in minutes)
        execution = store.begin(Execution(pipeline="flights", run=begun.number, node=node, attempt=attempt, started=at))
        store.publish(replace(execution, state=ends, ended=over))
    ended = replace(begun, state=state, ended=started + HOUR)
    store.update_run(ended)
    return ended


def test_recent_runs_are_the_complete_ones_of_the_whole_pipeline() -> None:
    """Not those that failed, were partial or go on, nor those before a node was added; newest first, up to a limit."""
    store = MemoryStore()
    store.update_run(replace(run(store, 9), nodes=("Ingest",)))
    for day in (8, 7, 6):
        run(store, day)
    run(store, 5, State.FAILED)
    run(store, 4, State.CANCELED)
    run(store, 3, base=2)
    store.begin_run(Run(pipeline="flights", nodes=("Ingest", "Train"), started=NOW))

    found = list_past_runs(store, "flights")

    assert [each.started for each in found] == [NOW - day * DAY for day in (6, 7, 8)]
    assert len(list_past_runs(store, "flights", limit=2)) == 2


def test_runs_that_ingest_for_a_backfill_do_not_hide_the_runs_of_the_schedule() -> None:
    """Hundreds of partial runs are newer; the ticks of the schedule know its own."""
    store = MemoryStore()
    for day in (402, 401):
        at = NOW - day * DAY
        end = TickEnd(outcome=TickOutcome.RAN, run=run(store, day).number)
        tick = Tick(at=at, name=f"{at:%Y-%m-%d}", wall=at)
        assert claim_tick(store, "flights", tick, holder=1, now=at, end=end)
    for day in range(300, 100, -1):
        store.update_run(replace(run(store, day), nodes=("Ingest",)))

    found = list_past_runs(store, "flights")

    assert [each.started for each in found] == [NOW - day * DAY for day in (401, 402)]


def test_a_retry_that_does_the_rest_of_a_part_is_not_taken_for_the_part() -> None:
    """The node that had failed took five seconds, and the part was said to take these."""
    store = MemoryStore()
    nodes = ("Window", "Prepare", "Learn")
    for day, tick, ran, took_s, state in [
        (3, "a", nodes, 600, State.COMPLETE),
        (2, "b", nodes, 595, State.FAILED),
        (1, "b", nodes[-1:], 5, State.COMPLETE),
    ]:
        at, base = NOW - day * DAY, 2 if ran == nodes[-1:] else None
        cause = format_cause("flights:train", tick)
        wanted = Run(pipeline="flights", trigger=Trigger.SCHEDULE, cause=cause, nodes=ran, base=base, started=at)
        store.update_run(replace(store.begin_run(wanted), state=state, ended=at + timedelta(seconds=took_s)))

    assert [each.took_s for each in list_past_runs(store, "flights:train")] == [600.0]


def test_the_runs_of_a_schedule_are_found_without_asking_about_each_tick() -> None:
    """A tick takes ten questions, and a database on a server a millisecond for each."""
    asked = []

    class Counted(MemoryStore):
        def find_claim(self, kind: str, name: str) -> Claim | None:
            asked.append(kind)
            return super().find_claim(kind, name)

    store = Counted()
    for day in range(70, 0, -1):
        at = NOW - day * DAY
        tick = Tick(at=at, name=f"{at:%Y-%m-%d}", wall=at)
        ran = run(store, day, trigger=Trigger.SCHEDULE, cause=tick.name)
        assert claim_tick(
            store, "flights", tick, holder=1, now=at, end=TickEnd(outcome=TickOutcome.RAN, run=ran.number)
        )
    asked.clear()

    found = list_past_runs(store, "flights")

    assert [each.started for each in found] == [NOW - day * DAY for day in range(1, 61)]
    assert asked == []


def test_a_node_took_what_all_its_attempts_took_and_nothing_when_it_was_reused() -> None:
    """What came from the cache says nothing of how long the work takes."""
    store = MemoryStore()

    found = measure_run(run(store, 1), store.executions(store.run("flights", 1)))

    assert found == PastRun(started=NOW - DAY, took_s=3600.0, nodes_s={"Train": 1800.0})
