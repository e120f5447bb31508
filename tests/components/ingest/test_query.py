"""Queries: placeholders become parameters, with values that fit the calendar."""

from datetime import UTC, date, datetime

import pytest

from spanwise.components.ingest.query import Query, span_of
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import ParameterError, UsageError

DAY = Calendar.DAY.parse("2013-01-05")
HOUR = Calendar.HOUR.parse("2013-01-05T13")


@pytest.mark.parametrize(
    ("calendar", "span", "values"),
    [
        (Calendar.DAY, DAY, (date(2013, 1, 5), date(2013, 1, 6), DAY)),
        (Calendar.DAY, -1, (date(1969, 12, 31), date(1970, 1, 1), -1)),
        (
            Calendar.HOUR,
            HOUR,
            (datetime(2013, 1, 5, 13, tzinfo=UTC), datetime(2013, 1, 5, 14, tzinfo=UTC), HOUR),
        ),
        (Calendar.WEEK, 2922, (date(2025, 12, 29), date(2026, 1, 5), 2922)),
        (Calendar.MONTH, 671, (date(2025, 12, 1), date(2026, 1, 1), 671)),
        (Calendar.QUARTER, 223, (date(2025, 10, 1), date(2026, 1, 1), 223)),
        (Calendar.NUMBER, 7, (7, 8, 7)),
    ],
)
def test_values_fit_the_calendar(calendar, span, values):
    """Days are dates, hours are instants in UTC, numbers are numbers; the end is where the next span begins."""
    query = Query.parse("SELECT * FROM t WHERE a >= {SPAN_START} AND a < {SPAN_END} AND s = {SPAN}", "q")

    assert query.bind(span, calendar) == ("SELECT * FROM t WHERE a >= ? AND a < ? AND s = ?\n", values)


def test_a_placeholder_may_stand_twice():
    """Its value is given as often as it stands there."""
    query = Query.parse("SELECT {SPAN}, {SPAN_END}, {SPAN};", "q")

    assert query.bind(7, Calendar.NUMBER) == ("SELECT ?, ?, ?\n", (7, 8, 7))


def test_values_may_be_read_from_settings():
    """Where a parameter would keep an answer from streaming, the text reads typed settings, which are bound."""
    query = Query.parse("SELECT {SPAN}, {SPAN_START} -- both", "q")

    assert query.bind_settings(DAY, Calendar.DAY) == (
        "SELECT (current_setting('spanwise.span')::bigint), (current_setting('spanwise.span_start')::date) -- both\n",
        {"spanwise.span": str(DAY), "spanwise.span_start": "2013-01-05"},
    )


def test_the_placeholders_of_tfx_are_understood():
    """Seconds since 1970 in UTC, and the date as a text of digits."""
    query = Query.parse("SELECT @span_begin_timestamp, @span_end_timestamp, @span_yyyymmdd_utc", "q")

    assert query.bind(2, Calendar.DAY)[1] == (172800, 259200, "19700103")
    assert query.fill(2, Calendar.DAY) == "SELECT 172800, 259200, '19700103'"


def test_the_filled_text_is_for_people():
    """It can be pasted into a console."""
    query = Query.parse("SELECT * FROM t WHERE d >= {SPAN_START} AND s = {SPAN}", "q")

    assert query.fill(DAY, Calendar.DAY) == f"SELECT * FROM t WHERE d >= '2013-01-05' AND s = {DAY}"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT '{}' AS a, \"{x}\" FROM t",
        "SELECT 1 -- {SPAN_START} comes later",
        "SELECT /* {SPAN} */ 1",
        "SELECT 'it''s {here}'",
        "SELECT $body$ it's $body$, a@b, @other FROM t",
        r"SELECT E'it\'s', 'a' -- {SPAN}",
        r"SELECT 'a' LIKE'\' -- {SPAN} '",
        "SELECT `it's` -- {SPAN}",
        "SELECT $v1$ it's $v1$ -- {SPAN}",
    ],
)
def test_other_braces_and_comments_are_left_alone(text):
    """Only placeholders are looked for; a query without any asks for no span."""
    query = Query.parse(text, "q")

    assert not query.has_span
    assert query.bind(0, Calendar.NUMBER) == (f"{text}\n", ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "q is empty"),
        ("SELECT {SPAN_STRAT}", r"q does not support the placeholder \{SPAN_STRAT\}; supported are \{SPAN_START\}"),
        ("SELECT @span_begin", "q does not support the placeholder @span_begin"),
        ("SELECT * FROM t WHERE d = '{SPAN_START}'", r"\{SPAN_START\} is inside quotes"),
        ("SELECT 'x @span_yyyymmdd_utc'", "@span_yyyymmdd_utc is inside quotes"),
        (r"SELECT E'it\'s {SPAN}'", r"\{SPAN\} is inside quotes"),
        ("SELECT `{SPAN}` FROM t", r"\{SPAN\} is inside quotes"),
    ],
)
def test_a_query_that_cannot_be_meant_is_refused(text, said):
    """A misspelt placeholder, and one that would be nothing but text."""
    with pytest.raises(ParameterError, match=said):
        Query.parse(text, "q")


def test_a_span_that_is_no_date_is_refused():
    """A day beyond the year 9999 is told as such."""
    with pytest.raises(UsageError, match="is not a day in the years 1 to 9999"):
        Query.parse("SELECT {SPAN_START}", "q").bind(20130105, Calendar.DAY)


@pytest.mark.parametrize(
    ("value", "calendar", "span"),
    [
        (date(2013, 1, 5), Calendar.DAY, DAY),
        (datetime(2013, 1, 5, 23, 59, tzinfo=UTC), Calendar.DAY, DAY),
        (datetime(2013, 1, 5, 13, 59), Calendar.HOUR, HOUR),  # noqa: DTZ001  as a database without zones gives it
        ("2013-01-05", Calendar.DAY, DAY),
        ("2026-W01", Calendar.WEEK, 2922),
        (date(2025, 12, 29), Calendar.WEEK, 2922),
        ("2025-12-31", Calendar.MONTH, 671),
        (datetime(2025, 12, 31, 23, 59, tzinfo=UTC), Calendar.QUARTER, 223),
        ("2013-01-05 13:59:00", Calendar.HOUR, HOUR),
        (7, Calendar.NUMBER, 7),
        (str(DAY), Calendar.DAY, DAY),
        ("1970-01-06", Calendar.DAY, 5),
        ("2013", Calendar.NUMBER, 2013),
    ],
)
def test_the_newest_span_may_be_a_date_or_a_number(value, calendar, span):
    """What a database gives as its newest day is a span."""
    assert span_of(value, calendar, "q") == span


@pytest.mark.parametrize(
    ("value", "calendar"),
    [
        ("soon", Calendar.DAY),
        (0.5, Calendar.NUMBER),
        (date(2013, 1, 5), Calendar.HOUR),
        ("2013-01-05", Calendar.HOUR),
        (2013, Calendar.MONTH),
        ("2013", Calendar.MONTH),
        (20130105, Calendar.DAY),
        ("20130105", Calendar.HOUR),
        (7, Calendar.DAY),
    ],
)
def test_what_is_no_span_is_told(value, calendar):
    """A text that is no date, a fraction, a date where hours are counted, a year or a date without dashes."""
    with pytest.raises(UsageError, match="q gives"):
        span_of(value, calendar, "q")
