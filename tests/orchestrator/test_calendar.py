"""Calendars: how spans are labelled, read and summed up."""

import re
from datetime import date, datetime, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.errors import UsageError

DATED = st.sampled_from([calendar for calendar in Calendar if calendar is not Calendar.NUMBER])
FIRST = datetime(1, 1, 1)  # noqa: DTZ001  a wall time
WALLS = st.integers(0, 3_652_059 * 86_400 - 1).map(lambda seconds: FIRST + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("editions", "calendar", "told"),
    [
        ([], Calendar.DAY, ""),
        ([(15_710, 1)], Calendar.DAY, "2013-01-05 v1"),
        ([(671, 1), (672, 1)], Calendar.MONTH, "2025-12 to 2026-01 v1"),
        ([(15_710, 2), (15_711, 1), (15_712, 1)], Calendar.DAY, "2013-01-05 v2, 2013-01-06 to 2013-01-07 v1"),
        ([(3, None), (4, None), (6, None)], Calendar.NUMBER, "3 to 4, 6"),
        ([(span, 1) for span in range(0, 18, 2)], Calendar.NUMBER, "9 spans, 0 to 16"),
    ],
)
def test_spans_are_summed_up(editions, calendar, told):
    """Neighbours of one version as a range; of too many ranges only the ends."""
    assert format_versions(editions, calendar) == told


@pytest.mark.parametrize(
    ("name", "calendar"), [("hour", Calendar.HOUR), ("moon", Calendar.NUMBER), (None, Calendar.NUMBER)]
)
def test_a_calendar_is_known_by_its_name(name, calendar):
    """As a run or an artifact records it; what is unknown is counted in numbers."""
    assert Calendar.from_name(name) is calendar


class TestCalendar:
    @pytest.mark.parametrize(
        ("calendar", "text", "span"),
        [
            (Calendar.NUMBER, "7", 7),
            (Calendar.NUMBER, "-7", -7),
            (Calendar.NUMBER, "007", 7),
            (Calendar.DAY, "1970-01-01", 0),
            (Calendar.DAY, "2013-01-05", 15710),
            (Calendar.DAY, "15710", 15710),
            (Calendar.DAY, "1969-12-31", -1),
            (Calendar.HOUR, "1970-01-01T00", 0),
            (Calendar.HOUR, "2013-01-05T13", 15710 * 24 + 13),
            (Calendar.HOUR, "1969-12-31T23", -1),
            (Calendar.WEEK, "1970-W01", 0),
            (Calendar.WEEK, "1969-W52", -1),
            (Calendar.WEEK, "2026-W01", 2922),
            (Calendar.MONTH, "1970-01", 0),
            (Calendar.MONTH, "1969-12", -1),
            (Calendar.MONTH, "2026-11", 682),
            (Calendar.MONTH, "682", 682),
            (Calendar.QUARTER, "1970-Q1", 0),
            (Calendar.QUARTER, "1969-Q4", -1),
            (Calendar.QUARTER, "2026-Q4", 227),
        ],
    )
    def test_a_span_is_read_from_its_label_or_its_number(self, calendar, text, span):
        """Dates count from 1970-01-01, and earlier ones are negative; the plain number is accepted as well."""
        assert calendar.parse(text) == span

    @given(DATED, WALLS)
    def test_a_label_is_read_back(self, calendar, wall):
        """Every hour, day, week, month and quarter of the years 1 to 9999 survives being shown and typed."""
        span = calendar.span_at(wall)

        assert calendar.parse(calendar.label(span)) == span

    @given(DATED, WALLS)
    def test_the_span_of_a_moment_begins_at_or_before_it_and_the_next_one_after(self, calendar, wall):
        """Each moment is in one span, and no moment is between two."""
        span = calendar.span_at(wall)

        assert calendar.start_of(span) <= wall
        following = calendar.start_of(span + 1)
        assert following is None or following > wall  # none: after the year 9999

    @given(DATED, WALLS)
    def test_neighbours_differ_by_one(self, calendar, wall):
        """The period that begins when one ends has the next number, so that a window counts without gaps."""
        span = calendar.span_at(wall)
        following = calendar.start_of(span + 1)

        if following is not None:
            assert calendar.span_at(following - timedelta(microseconds=1)) == span
            assert calendar.span_at(following) == span + 1

    @given(st.dates())
    def test_weeks_are_those_of_pythons_isocalendar(self, day):
        """All days of a week have its span, and its label has the ISO year, not that of the date."""
        iso = day.isocalendar()
        span = Calendar.WEEK.span_at(datetime.combine(day, time()))

        assert Calendar.WEEK.label(span) == f"{iso.year:04}-W{iso.week:02}"

    @given(st.integers(2, 9998))
    def test_a_year_has_as_many_spans_as_its_weeks_months_and_quarters(self, year):
        """A year of 53 weeks is followed by the first week of the next, without a gap or a week that comes twice."""
        weeks = date(year, 12, 28).isocalendar().week
        first, last = Calendar.WEEK.parse(f"{year:04}-W01"), Calendar.WEEK.parse(f"{year:04}-W{weeks}")

        assert last - first == weeks - 1
        assert Calendar.WEEK.parse(f"{year + 1:04}-W01") == last + 1
        assert Calendar.MONTH.parse(f"{year + 1:04}-01") == Calendar.MONTH.parse(f"{year:04}-12") + 1
        assert Calendar.QUARTER.parse(f"{year + 1:04}-Q1") == Calendar.QUARTER.parse(f"{year:04}-Q4") + 1

    @given(st.integers(-(10**18), 10**18), DATED)
    def test_any_number_has_a_label(self, span, calendar):
        """Also a number without a date, so that a message about it can be written."""
        assert (calendar.label(span) == str(span)) == (calendar.start_of(span) is None)

    @pytest.mark.parametrize(
        ("calendar", "text", "reason"),
        [
            (Calendar.WEEK, "2025-W53", "the ISO year 2025 has 52 weeks"),
            (Calendar.WEEK, "2026-W54", "the ISO year 2026 has 53 weeks"),
            (Calendar.WEEK, "2026-W00", "the ISO year 2026 has 53 weeks"),
            (Calendar.WEEK, "0000-W01", "there is no such week"),
            (Calendar.MONTH, "2026-13", "there is no such month"),
            (Calendar.MONTH, "2026-00", "there is no such month"),
            (Calendar.QUARTER, "2026-Q5", "there is no such quarter"),
            (Calendar.QUARTER, "2026-Q0", "there is no such quarter"),
            (Calendar.DAY, "2013-02-30", "there is no such day"),
            (Calendar.HOUR, "2013-01-05T24", "there is no such hour"),
        ],
    )
    def test_a_date_that_does_not_exist_is_refused_with_the_reason(self, calendar, text, reason):
        """A label that is well formed and names nothing says why."""
        with pytest.raises(UsageError, match=re.escape(f"{text!r} is not a span: {reason}. A span is a")):
            calendar.parse(text)

    @pytest.mark.parametrize(
        ("calendar", "text", "example"),
        [
            (Calendar.NUMBER, "2013-01-05", "7"),
            (Calendar.NUMBER, "", "7"),
            (Calendar.NUMBER, "9" * 5000, "7"),
            (Calendar.DAY, "20130105", "2013-01-05"),
            (Calendar.DAY, "2013-02-30", "2013-01-05"),
            (Calendar.DAY, "2013-W01-1", "2013-01-05"),
            (Calendar.DAY, "2013-01-05T13", "2013-01-05"),
            (Calendar.HOUR, "2013-01-05", "2013-01-05T13"),
            (Calendar.HOUR, "2013-01-05T24", "2013-01-05T13"),
            (Calendar.WEEK, "2026-11", "2013-W01"),
            (Calendar.WEEK, "2026-w11", "2013-W01"),
            (Calendar.WEEK, "2025-W53", "2013-W01"),
            (Calendar.MONTH, "2026-11-03", "2013-01"),
            (Calendar.MONTH, "202611", "2013-01"),
            (Calendar.QUARTER, "2026-11", "2013-Q1"),
            (Calendar.QUARTER, "2026Q1", "2013-Q1"),
            (Calendar.DAY, "\u0662\u0660\u0661\u0663-01-05", "2013-01-05"),
        ],
    )
    def test_wrong_text_is_refused_with_an_example(self, calendar, text, example):
        """Text that is not a span is a usage error with an example."""
        with pytest.raises(UsageError, match=f"for example {re.escape(example)}"):
            calendar.parse(text)

    @pytest.mark.parametrize(
        ("calendar", "text", "meant"),
        [
            (Calendar.DAY, "20130105", "2013-01-05"),
            (Calendar.DAY, "2013-1-5", "2013-01-05"),
            (Calendar.DAY, "2013/01/05", "2013-01-05"),
            (Calendar.DAY, "2013.01.05", "2013-01-05"),
            (Calendar.HOUR, "2013-01-05t7", "2013-01-05T07"),
            (Calendar.WEEK, "2026-w9", "2026-W09"),
            (Calendar.MONTH, "2026/1", "2026-01"),
            (Calendar.QUARTER, "2026q1", "2026-Q1"),
        ],
    )
    def test_the_digits_of_a_date_are_recognized(self, calendar, text, meant):
        """Whoever writes dates in another way is shown this one."""
        with pytest.raises(UsageError, match=re.escape(f"Did you mean {meant}? A span is")):
            calendar.parse(text)

    @pytest.mark.parametrize(
        ("calendar", "text"),
        [
            (Calendar.DAY, "05.01.2013"),  # or the first of May
            (Calendar.DAY, "05/01/13"),
            (Calendar.DAY, "2013-01-" + "9" * 5000),
            (Calendar.DAY, "2013-W01-1"),
            (Calendar.DAY, "20130230"),
            (Calendar.DAY, "2013-01-05T07"),
            (Calendar.WEEK, "2026-11"),
            (Calendar.NUMBER, "2013-01-05"),
        ],
    )
    def test_no_date_is_guessed(self, calendar, text):
        """Where another day could be meant, or there is none."""
        with pytest.raises(UsageError) as refused:
            calendar.parse(text)

        assert "Did you mean" not in str(refused.value)

    def test_a_range_is_not_one_span(self):
        """Which a backfill takes, and a run does not."""
        with pytest.raises(UsageError, match="is a range of spans; one span is wanted here"):
            Calendar.DAY.parse("2013-01-05..2013-01-07")

    def test_a_span_without_a_date_is_shown_as_its_number(self):
        """A message about an impossible span can still be written."""
        assert Calendar.DAY.label(10**12) == "1000000000000"

    @pytest.mark.parametrize(
        ("calendar", "text", "both"),
        [
            (Calendar.NUMBER, "5", (5, 5)),
            (Calendar.NUMBER, "5..9", (5, 9)),
            (Calendar.NUMBER, "-3..-1", (-3, -1)),
            (Calendar.DAY, "2013-01-05..2013-01-09", (15710, 15714)),
            (Calendar.DAY, "2013-01-05", (15710, 15710)),
            (Calendar.WEEK, "2025-W52..2026-W01", (2921, 2922)),
            (Calendar.MONTH, "2025-12..2026-02", (671, 673)),
            (Calendar.QUARTER, "2025-Q4..2026-Q1", (223, 224)),
        ],
    )
    def test_a_range_has_both_ends(self, calendar, text, both):
        """`A..B` includes A and B; `A` alone is one span."""
        assert calendar.parse_range(text) == both

    @pytest.mark.parametrize("text", ["9..5", "5..", "..5", "..", "1..2..3", "a..b", ""])
    def test_a_range_without_spans_is_refused(self, text):
        """Reversed, open and unreadable ranges are usage errors."""
        with pytest.raises(UsageError):
            Calendar.NUMBER.parse_range(text)
