"""Calendars: how spans are labelled, read and summed up."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.errors import UsageError


@pytest.mark.parametrize(
    ("editions", "calendar", "told"),
    [
        ([], Calendar.DAY, ""),
        ([(15_710, 1)], Calendar.DAY, "2013-01-05 v1"),
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
        ],
    )
    def test_a_span_is_read_from_its_label_or_its_number(self, calendar, text, span):
        """Dates count from 1970-01-01, and earlier ones are negative; the plain number is accepted as well."""
        assert calendar.parse(text) == span

    @given(st.integers(-719_162, 2_932_896))
    def test_the_label_of_a_day_is_read_back(self, span):
        """Every day of the years 1 to 9999 survives being shown and typed."""
        assert Calendar.DAY.parse(Calendar.DAY.label(span)) == span

    @given(st.integers(-719_162 * 24, 2_932_896 * 24 + 23))
    def test_the_label_of_an_hour_is_read_back(self, span):
        """Every hour of the years 1 to 9999 survives being shown and typed."""
        assert Calendar.HOUR.parse(Calendar.HOUR.label(span)) == span

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
            (Calendar.DAY, "\u0662\u0660\u0661\u0663-01-05", "2013-01-05"),
        ],
    )
    def test_wrong_text_is_refused_with_an_example(self, calendar, text, example):
        """Text that is not a span is a usage error with an example."""
        with pytest.raises(UsageError, match=f"for example {re.escape(example)}"):
            calendar.parse(text)

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
