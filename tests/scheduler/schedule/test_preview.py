from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from spanwise.orchestrator import Calendar
from spanwise.scheduler.schedule import preview
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.timetable import Timetable

MARCH = datetime(2026, 3, 6, 12, tzinfo=UTC)


def daily(**terms: object) -> Timetable:
    given = {"cron": "30 2 * * *", "zone": "America/New_York", "span": days_before(1), **terms}
    return Timetable("flights", **given)  # type: ignore[arg-type]


def test_coming_ticks_are_told_with_their_spans_and_what_the_clock_does_to_them() -> None:
    """Times in the schedule's zone, the gap included."""
    gap = "gap: 02:30 does not exist that day, this is the first moment after it"

    text = preview.format_ticks(daily(), preview.list_coming(daily(), MARCH, 3), Calendar.DAY)

    assert text.splitlines() == [
        "TICK              DUE                      SPAN        NOTE",
        "2026-03-07T02:30  2026-03-07 02:30:00 EST  2026-03-06",
        f"2026-03-08T02:30  2026-03-08 03:00:00 EDT  2026-03-07  {gap}",
        "2026-03-09T02:30  2026-03-09 02:30:00 EDT  2026-03-08",
    ]


def test_jitter_is_shown_where_there_is_some() -> None:
    """When the run of a tick starts is told beside when the tick comes."""
    shaken = daily(jitter_s=1800)

    header, line = preview.format_ticks(shaken, preview.list_coming(shaken, MARCH, 1), Calendar.DAY).splitlines()

    assert header.split() == ["TICK", "DUE", "STARTS", "SPAN", "NOTE"]
    assert "2026-03-07 02:30:00 EST  2026-03-07 02:" in line


def test_a_schedule_without_spans_says_that_it_takes_the_newest() -> None:
    """Not a dash, which would be none; and that this is hardly meant."""
    table = daily(span=None)

    _, tick, doubt = preview.format_ticks(table, preview.list_coming(table, MARCH, 1), Calendar.DAY).splitlines()

    assert tick.endswith("EST  newest")
    assert doubt == table.warnings[0]


def test_a_custom_rule_is_asked_for_each_tick() -> None:
    """By whoever has imported it."""
    table = daily(span=None)

    found = preview.list_coming(table, MARCH, 2, rule=lambda tick: tick.day)

    assert [tick.span for tick in found] == [7, 8]


def test_an_ended_schedule_has_no_tick() -> None:
    """And says so."""
    table = daily(end=MARCH)

    assert preview.format_ticks(table, preview.list_coming(table, MARCH, 3), Calendar.DAY).startswith(
        "flights has no tick any more"
    )


def test_ticks_for_programs_have_times_in_utc() -> None:
    """And the span as a number and as people write it."""
    table = daily()

    document = preview.ticks_document(table, preview.list_coming(table, MARCH, 1), Calendar.DAY)

    assert document["ticks"] == [
        {
            "tick": "2026-03-07T02:30",
            "at": "2026-03-07T07:30:00+00:00",
            "starts": "2026-03-07T07:30:00+00:00",
            "span": 20518,
            "span_label": "2026-03-06",
            "note": "",
        }
    ]
    assert table.clock == ZoneInfo("America/New_York")
