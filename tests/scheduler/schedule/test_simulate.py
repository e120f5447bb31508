from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from spanwise.orchestrator import Calendar, UsageError
from spanwise.scheduler.schedule import simulate as simulation
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.duration import Duration
from spanwise.scheduler.schedule.outcome import TickOutcome
from spanwise.scheduler.schedule.simulate import Simulation, simulate
from spanwise.scheduler.schedule.span_rule import SourceRule, days_before, hours_before, months_before
from spanwise.scheduler.schedule.ticks import ticks
from spanwise.scheduler.schedule.timetable import Catchup, OverrunPolicy, Timetable

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MARCH = datetime(2026, 3, 1, tzinfo=UTC)


def hourly(**terms: object) -> Timetable:
    return Timetable("flights", **{"cron": "0 * * * *", "span": hours_before(1), **terms})  # type: ignore[arg-type]


def outcomes(played: Simulation) -> str:
    """A letter for each tick."""
    return "".join(play.outcome.value[0] for play in played.plays)


def test_runs_that_end_in_time_all_run() -> None:
    """Each tick of the time, the first included and the last left out, with its span."""
    played = simulate(hourly(), MARCH, MARCH + DAY, Duration.parse("59m"))

    assert outcomes(played) == "r" * 24
    assert [play.tick for play in played.plays] == list(ticks(hourly(), MARCH - HOUR, MARCH + 23 * HOUR))
    assert played.lost == {}
    assert played.busy == pytest.approx(59 / 60)


def test_runs_that_begin_after_the_time_do_not_count_as_busy() -> None:
    """Their ticks come in it; the runs wait for jitter, or for others. It was running -1500 % of the time."""
    table = hourly(catchup=Catchup.ALL, catchup_limit=50)
    outage = (MARCH + 2 * HOUR, MARCH + 22 * HOUR)

    played = simulate(table, MARCH, MARCH + DAY, Duration.parse("4h"), outages=[outage])

    assert outcomes(played).count("r") > 6
    assert played.busy == pytest.approx((4 + 2) / 24)
    assert simulate(hourly(jitter_s=3500), MARCH, MARCH + HOUR / 60, Duration.parse("1h")).busy == 0


def test_allowtocomplete_skips_the_ticks_that_a_run_overruns() -> None:
    """A run of two and a half hours lets every third tick run; which run was in the way is told."""
    played = simulate(hourly(), MARCH, MARCH + 9 * HOUR, Duration.parse("2h30m"))

    assert outcomes(played) == "rssrssrss"
    assert played.plays[1].why == "the run of 2026-03-01T00:00Z had not ended"
    assert played.totals == {TickOutcome.RAN: 3, TickOutcome.SKIPPED: 6}
    assert len(played.lost[""]) == 6


def test_killandrun_ends_the_run_for_the_tick() -> None:
    """None comes to its end, but the last; each is ended at the next tick and no two overlap."""
    table = hourly(overrun=OverrunPolicy.KILL_AND_RUN)

    played = simulate(table, MARCH, MARCH + 5 * HOUR, Duration.parse("2h30m"))

    assert outcomes(played) == "kkkkr"
    assert [play.ended for play in played.plays[:4]] == [MARCH + n * HOUR for n in range(1, 5)]
    assert played.plays[0].why == "ended for 2026-03-01T01:00Z"


@pytest.mark.parametrize("policy", OverrunPolicy)
@pytest.mark.parametrize("catchup", Catchup)
def test_no_two_runs_overlap_and_each_tick_has_one_outcome(policy: OverrunPolicy, catchup: Catchup) -> None:
    """Under every policy, with outages and with runs that take a quarter of an hour or half a day."""
    table = hourly(overrun=policy, catchup=catchup, catchup_limit=5, jitter_s=600, zone="Australia/Lord_Howe")
    outages = [(MARCH + 20 * HOUR, MARCH + 31 * HOUR), (MARCH + 60 * HOUR, MARCH + 61 * HOUR)]

    played = simulate(table, MARCH, MARCH + 40 * DAY, Duration.parse("lognormal(50m,4h)"), seed=3, outages=outages)

    runs = [(play.began, play.ended) for play in played.plays if play.began is not None]
    assert all(before[1] <= after[0] for before, after in pairwise(runs))  # type: ignore[operator]
    assert all(began >= play.tick.at for play in played.plays if (began := play.began) is not None)
    assert all(not down < began < up for began, _ in runs if began for down, up in outages)
    expected = [tick.name for tick in ticks(table, MARCH - HOUR / 3600, MARCH + 40 * DAY - HOUR / 3600)]
    assert [play.tick.name for play in played.plays] == expected


def test_what_an_outage_missed_is_made_up_for_as_the_schedule_says() -> None:
    """None, the latest, or each in turn, in which the ticks that come meanwhile wait."""
    outage = [(MARCH + 2 * HOUR, MARCH + 5 * HOUR + HOUR / 2)]

    def played(catchup: Catchup) -> Simulation:
        return simulate(hourly(catchup=catchup), MARCH, MARCH + 9 * HOUR, Duration.parse("40m"), outages=outage)

    assert outcomes(played(Catchup.SKIP)) == "rrmmmmrrr"
    assert outcomes(played(Catchup.LATEST)) == "rrmmmrsrr"
    assert outcomes(played(Catchup.ALL)) == "rrrrrrrrr"
    caught_up = played(Catchup.ALL).plays
    assert [play.began for play in caught_up[2:6]] == [outage[0][1] + n * timedelta(minutes=40) for n in range(4)]


def test_an_outage_of_years_is_summed_up() -> None:
    """Ticks that are too many to list are counted, about, and told as missed."""
    table = hourly(cron="* * * * *", catchup=Catchup.ALL, overrun=OverrunPolicy.ALLOW_TO_COMPLETE)

    played = simulate(
        table, MARCH, MARCH + 400 * DAY, Duration.parse("30s"), outages=[(MARCH, MARCH + 400 * DAY - HOUR)]
    )

    assert played.older == 580_000
    assert played.totals[TickOutcome.RAN] > 60
    assert played.totals[TickOutcome.MISSED] == 580_000


def test_one_seed_gives_one_play_and_one_tick_the_same_duration_under_both_policies() -> None:
    """So that policies can be compared."""
    table, duration = hourly(), Duration.parse("normal(50m,20m)")
    other = replace(table, overrun=OverrunPolicy.KILL_AND_RUN)

    first, again = (simulate(table, MARCH, MARCH + 5 * DAY, duration, seed=1) for _ in range(2))
    killing = simulate(other, MARCH, MARCH + 5 * DAY, duration, seed=1)

    assert first == again
    assert first != simulate(table, MARCH, MARCH + 5 * DAY, duration, seed=2)
    took = {p.tick.name: p.ended - p.began for p in first.plays if p.began and p.ended}
    both = [p for p in killing.plays if p.outcome is TickOutcome.RAN and p.tick.name in took and p.began and p.ended]
    assert both
    assert all(p.ended - p.began == took[p.tick.name] for p in both if p.began and p.ended)


def test_days_on_which_the_clock_is_changed_are_played_as_they_are() -> None:
    """The tick in the gap once, at 03:00; told in the zone of the schedule, with its span."""
    zone = ZoneInfo("America/New_York")
    table = Timetable("flights", cron="30 2 * * *", zone="America/New_York", span=days_before(1))

    played = simulate(table, datetime(2026, 3, 1, tzinfo=zone), datetime(2026, 4, 1, tzinfo=zone), Duration.parse("2h"))
    text = simulation.format_simulation(played, Calendar.DAY)

    assert outcomes(played) == "r" * 31
    assert "2026-03-08T02:30  2026-03-08 03:00:00 EDT  2026-03-07  ran      2 h 00 min  gap: 02:30" in text
    assert text.endswith("31 ticks: 31 ran. The pipeline was running 8% of the time.")


def test_of_many_ticks_only_the_notable_are_told() -> None:
    """Unless all are asked for."""
    played = simulate(hourly(), MARCH, MARCH + 10 * DAY, Duration.parse("normal(45m,10m)"), seed=1)

    short, whole = (
        simulation.format_simulation(played, Calendar.HOUR),
        simulation.format_simulation(played, Calendar.HOUR, whole=True),
    )

    skipped = played.totals[TickOutcome.SKIPPED]
    assert skipped > 3
    assert len(short.splitlines()) == skipped + 5
    assert len(whole.splitlines()) == 240 + 4
    assert f"240 ticks: {240 - skipped} ran, {skipped} skipped." in short
    assert f"Without a run to the end: {skipped} spans, 2026-03-0" in short


def test_a_simulation_for_programs_has_every_tick() -> None:
    """With its outcome, and the totals."""
    played = simulate(hourly(), MARCH, MARCH + 3 * HOUR, Duration.parse("90m"))

    document = simulation.simulation_document(played, Calendar.HOUR)

    assert document["totals"] == {"ran": 2, "skipped": 1}
    assert [tick["outcome"] for tick in document["ticks"]] == ["ran", "skipped", "ran"]  # type: ignore[index,union-attr,call-overload]
    assert document["lost"] == [{"span": played.plays[1].tick.span, "span_label": "2026-03-01T00"}]


def test_the_lost_spans_of_every_node_that_ingests_are_named() -> None:
    """Where each has a rule of its own: only those of the first node were, though days of the other had no run."""
    months, days = months_before(1), days_before(1)
    sources = (SourceRule("prices", months), SourceRule("clicks", days))
    table, long = hourly(cron="0 3 * * *", span=months, sources=sources), Duration.parse("30h")
    played = simulate(table, MARCH, MARCH + 4 * DAY, long)
    away = [(MARCH, MARCH + 36 * HOUR)]
    never = simulate(replace(table, catchup=Catchup.SKIP), MARCH, MARCH + 2 * DAY, long, outages=away)

    assert outcomes(played) == "rsrs"
    assert "Without a run to the end: clicks 2026-03-01, 2026-03-03." in simulation.format_simulation(
        played, Calendar.MONTH
    )
    assert simulation.simulation_document(played, Calendar.MONTH)["lost"] == [
        {"node": "clicks", "span": Calendar.DAY.parse(f"2026-03-0{day}"), "span_label": f"2026-03-0{day}"}
        for day in (1, 3)
    ]
    assert [label for _, _, label in simulation.list_lost(never, Calendar.MONTH)] == [
        "2026-02",
        "2026-02-28",
        "2026-03-01",
    ]


def test_a_part_is_played_alone_and_says_so() -> None:
    """Its ticks would wait for the runs of the other parts, which are not played."""
    part, whole = (
        simulate(table, MARCH, MARCH + 3 * HOUR, Duration.parse("90m"))
        for table in (replace(hourly(), pipeline="flights:train", division=HALVES), hourly())
    )
    texts = [simulation.format_simulation(played, Calendar.HOUR) for played in (part, whole)]

    assert [simulation.simulation_document(p, Calendar.HOUR)["alone"] for p in (part, whole)] == [True, False]
    assert ["without the runs of the other parts" in text for text in texts] == [True, False]


def test_a_custom_span_rule_is_asked() -> None:
    """By whoever has imported it."""
    played = simulate(hourly(span=None), MARCH, MARCH + 2 * HOUR, Duration.parse("1m"), rule=lambda tick: tick.hour)

    assert [play.tick.span for play in played.plays] == [0, 1]


def test_a_time_that_ends_before_it_begins_is_refused() -> None:
    """With both."""
    with pytest.raises(UsageError, match="nothing to simulate"):
        simulate(hourly(), MARCH, MARCH, Duration.parse("1m"))


def test_a_year_of_hourly_ticks_is_played() -> None:
    """With changes of the clock and spans; `benchmarks/scheduler.py` has what it may take."""
    table = hourly(zone="America/New_York")

    played = simulate(table, MARCH, MARCH + 365 * DAY, Duration.parse("normal(40m,15m)"))

    assert len(played.plays) == 8760
