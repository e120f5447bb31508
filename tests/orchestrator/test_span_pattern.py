"""Span patterns: what is valid, what is listed, and which span a path belongs to."""

import fnmatch
import re
from datetime import date, datetime, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import PatternError, UsageError
from spanwise.orchestrator.span_pattern import SpanPattern

FIRST = datetime(1, 1, 1)  # noqa: DTZ001  a wall time
LABELS = {
    Calendar.HOUR: "{YYYY}-{MM}-{DD}T{HH}",
    Calendar.DAY: "{YYYY}-{MM}-{DD}",
    Calendar.WEEK: "{GGGG}-W{WW}",
    Calendar.MONTH: "{YYYY}-{MM}",
    Calendar.QUARTER: "{YYYY}-Q{Q}",
}
DAYS = "data/{YYYY}-{MM}-{DD}/v{VERSION}/*.csv"


class TestParse:
    @pytest.mark.parametrize(
        ("text", "calendar", "has_span", "has_version"),
        [
            ("root/day-{SPAN}/attempt{VERSION}/*", Calendar.NUMBER, True, True),
            ("span{SPAN:2}/*", Calendar.NUMBER, True, False),
            ("span{SPAN:}/*", Calendar.NUMBER, True, False),
            (DAYS, Calendar.DAY, True, True),
            ("{YYYY}{MM}{DD}{HH}/*", Calendar.HOUR, True, False),
            ("{GGGG}-W{WW}/v{VERSION}/*", Calendar.WEEK, True, True),
            ("rides-{YYYY}{MM}.csv", Calendar.MONTH, True, False),
            ("year={YYYY}/month={MM}/*", Calendar.MONTH, True, False),
            ("{YYYY}-Q{Q}/*", Calendar.QUARTER, True, False),
            ("data/*.csv", Calendar.NUMBER, False, False),
            ("data/[{]x[}]/*.csv", Calendar.NUMBER, False, False),
        ],
    )
    def test_placeholders_say_how_spans_are_counted(self, text, calendar, has_span, has_version):
        """A pattern knows its calendar and whether it has spans and versions."""
        pattern = SpanPattern.parse(text)

        assert (pattern.text, pattern.calendar) == (text, calendar)
        assert (pattern.has_span, pattern.has_version) == (has_span, has_version)

    @pytest.mark.parametrize(
        ("text", "wrong"),
        [
            ("{SPAN}/{SPAN}/*", "occurs 2 times"),
            ("{SPAN}/{SPAN:2}/*", "occurs 2 times"),
            ("{SPAN}/v{VERSION}/{VERSION:3}", "occurs 2 times"),
            ("{SPAN}/{YYYY}{MM}{DD}/*", "both {SPAN} and a date"),
            ("{SPAN}/{YYYY}", "both {SPAN} and a date"),
            ("{YYYY}-{DD}/*", "exactly once each"),
            ("{YYYY}/*", "a year is a number"),
            ("{YYYY}-W{WW}/*", "an ISO week needs {GGGG}"),
            ("{WW}/*", "an ISO week needs {GGGG}"),
            ("{GGGG}/*", "an ISO week needs {GGGG}"),
            ("{GGGG}-W{WW}-{DD}/*", "no other date"),
            ("{GGGG}-Q{Q}/*", "an ISO week needs {GGGG}"),
            ("Q{Q}/*", "a quarter needs {YYYY} and {Q}"),
            ("{YYYY}-Q{Q}/{MM}/*", "no other date"),
            ("{YYYY}-{MM}T{HH}/*", "{HH} needs {YYYY}, {MM} and {DD}"),
            ("{SPAN}/{GGGG}-W{WW}/*", "both {SPAN} and a date"),
            ("{SPAN}/{Q}/*", "both {SPAN} and a date"),
            ("{GGGG}-W{WW:2}/*", "takes no width"),
            ("{YYYY}-{MM}-{DD}-{MM}/*", "exactly once each"),
            ("{YYYY}/{MM}/{DD}/{HH}/{HH}", "occurs 2 times"),
            ("{HH}/*", "{HH} needs a date"),
            ("a/version{VERSION}/*", "{VERSION} needs a span"),
            ("{SPAN:x}/*", "not a positive number"),
            ("{SPAN:0}/*", "not a positive number"),
            ("{SPAN:-2}/*", "not a positive number"),
            ("{SPAN:99}/*", "more than 18 digits"),
            ("{SPAN}/{VERSION:x}/*", "not a positive number"),
            ("{YYYY:2}{MM}{DD}/*", "takes no width"),
            ("{YYYY}-{MM}-{DAY}/*", "unknown placeholder {DAY}"),
            ("{span}/*", "unknown placeholder {span}"),
            ("{}/*", "unknown placeholder {}"),
            ("{a,b}/{SPAN}", "unknown placeholder {a,b}"),
            ("{SPAN/*", "is unmatched"),
            ("SPAN}/*", "is unmatched"),
            ("{{SPAN}}/*", "is unmatched"),
            ("{SPAN}{VERSION}/*", "is ambiguous"),
            ("data**/{SPAN}", "is not a whole folder"),
            ("***/{SPAN}", "is not a whole folder"),
        ],
    )
    def test_a_misuse_is_quoted_with_what_is_wrong_and_a_pattern_that_works(self, text, wrong):
        """Every misuse of a placeholder is refused, and the example in the message is accepted."""
        with pytest.raises(PatternError) as refused:
            SpanPattern.parse(text)

        message = str(refused.value)
        assert repr(text) in message
        assert wrong in message
        for example in re.findall(r"for example '(.*)'$", message):
            SpanPattern.parse(example)
        assert "for example" in message or "write {" in message

    @given(
        st.lists(
            st.sampled_from(
                [
                    "{SPAN}",
                    "{SPAN:2}",
                    "{VERSION}",
                    "{YYYY}",
                    "{MM}",
                    "{DD}",
                    "{HH}",
                    "{GGGG}",
                    "{WW}",
                    "{Q}",
                    "*",
                    "**",
                    "?",
                    "[!a]",
                    "[--a]",
                    "[z-a]",
                    "[[x]",
                    "[",
                    "]",
                    "{",
                    "}",
                    "/",
                    "\\",
                    ".",
                    "1",
                    "-",
                ]
            ),
            max_size=9,
        ).map("".join),
        st.text("a1-/.x02", max_size=12),
    )
    def test_any_text_is_a_pattern_or_a_pattern_error(self, text, path):
        """No pattern crashes, and what it matches can be filled in and listed again."""
        try:
            pattern = SpanPattern.parse(text)
        except PatternError:
            return

        found = pattern.match(path)

        if found is not None and pattern.has_span and "**" not in text:
            assert pattern.fill(path)
            assert fnmatch.fnmatchcase(path, pattern.glob(found[0]))

    @pytest.mark.parametrize("text", ["", "  "])
    def test_an_empty_pattern_is_refused(self, text):
        """Nothing says where nothing is."""
        with pytest.raises(PatternError, match="empty"):
            SpanPattern.parse(text)

    @pytest.mark.parametrize(
        ("text", "instead"),
        [
            ("{DAY}", "{DD}"),
            ("{Span}", "{SPAN}"),
            ("{VERSON}", "{VERSION}"),
            ("{DATE}", "{YYYY}"),
            ("{WEEK}", "{GGGG}-W{WW}"),
        ],
    )
    def test_a_near_miss_is_named(self, text, instead):
        """A placeholder that is nearly right is answered with the right one."""
        with pytest.raises(PatternError, match=f"write {re.escape(instead)}"):
            SpanPattern.parse(text)


class TestMatch:
    @pytest.mark.parametrize(
        ("pattern", "path", "found"),
        [
            ("root/day-{SPAN}/attempt{VERSION}/*", "root/day-1/attempt2/data_updated", (1, 2)),
            ("span{SPAN}/*", "span007/a", (7, None)),
            ("span{SPAN}/*", "span-7/a", (-7, None)),
            ("span{SPAN}/*", "spanx/a", None),
            ("span{SPAN}/*", "span1/a/b", None),
            ("span{SPAN}/*", "old/span1/a", None),
            ("span{SPAN}/*", "span1/a\n", (1, None)),
            ("span{SPAN}/*", "span\u0663/a", None),
            ("span{SPAN}/*", f"span{'9' * 5000}/a", None),
            ("span{SPAN:2}/*", "span01/a", (1, None)),
            ("span{SPAN:2}/*", "span1/a", None),
            ("span{SPAN:2}/*", "span001/a", None),
            ("span{SPAN:3}/*", "span-01/a", (-1, None)),
            ("log-{YYYY}{MM}{DD}.data", "log-20170101.data", (17167, None)),
            ("log-{YYYY}{MM}{DD}.data", "log-20170101xdata", None),
            ("{YYYY}{MM}{DD}/*", "20130230/a", None),
            ("{YYYY}{MM}{DD}/*", "00000101/a", None),
            ("{DD}.{MM}.{YYYY}", "05.01.2013", (15710, None)),
            ("{YYYY}{MM}{DD}T{HH}/*", "20130105T13/a", (15710 * 24 + 13, None)),
            ("{YYYY}{MM}{DD}T{HH}/*", "20130105T24/a", None),
            ("{GGGG}-W{WW}/*", "2026-W01/a", (2922, None)),
            ("{GGGG}-W{WW}/*", "2025-W53/a", None),
            ("{GGGG}-W{WW}/*", "2026-W53/a", (2974, None)),
            ("{GGGG}-W{WW}/*", "2026-W00/a", None),
            ("{YYYY}-{MM}/v{VERSION}/*", "2026-11/v3/a", (682, 3)),
            ("{YYYY}-{MM}/*", "2026-13/a", None),
            ("{YYYY}-{MM}/*", "2026-11-03/a", None),
            ("{YYYY}-Q{Q}/*", "2026-Q4/a", (227, None)),
            ("{YYYY}-Q{Q}/*", "2026-Q5/a", None),
            ("{YYYY}{Q}/*", "20264/a", (227, None)),
            ("data/*.csv", "data/a.csv", (0, None)),
            ("data/*.csv", "data/acsv", None),
            ("a(b)c.d/span{SPAN}/*", "a(b)c.d/span3/x", (3, None)),
            ("a(b)c.d/span{SPAN}/*", "abcxd/span3/x", None),
            ("[{]{SPAN}[}]", "{5}", (5, None)),
            ("[!a-c]{SPAN}", "d5", (5, None)),
            ("[!a-c]{SPAN}", "b5", None),
            ("x[!a]{SPAN}", "x/5", None),
            ("[z-a]{SPAN}", "z5", None),
            ("a[b/{SPAN}", "a[b/5", (5, None)),
            ("?{SPAN}", "d5", (5, None)),
            ("*{SPAN}*", "day12.csv", (12, None)),
            ("*{SPAN}*", "day-12.csv", (12, None)),
            ("{SPAN}-{VERSION}", "3-5", (3, 5)),
            ("{SPAN:2}{VERSION}", "1234", (12, 34)),
            ("**/{SPAN}/*", "a/b/7/x", (7, None)),
            ("**/{SPAN}/*", "7/x", (7, None)),
            ("data/{SPAN}/**", "data/7/a/b", (7, None)),
            ("data/**/{SPAN}.csv", "data/7.csv", (7, None)),
            ("/abs/{SPAN}/*", "/abs/7/x", (7, None)),
            ("s3://bucket/{SPAN}/*", "s3://bucket/7/x", (7, None)),
            (r"a\d/{SPAN}", r"a\d/7", (7, None)),
            (r"a\d/{SPAN}", "a1/7", None),
        ],
    )
    def test_the_whole_path_says_span_and_version(self, pattern, path, found):
        """Placeholders read digits, glob characters match as in a glob, all else is literal."""
        assert SpanPattern.parse(pattern).match(path) == found

    @given(span=st.integers(-(10**9), 10**9), version=st.integers(0, 10**6), zeros=st.integers(0, 4))
    def test_what_is_written_is_read(self, span, version, zeros):
        """A span written with any number of leading zeros is read as the number it is."""
        sign, digits = ("-" if span < 0 else ""), str(abs(span)).zfill(zeros)
        path = f"lake/day_{sign}{digits}/v{version}/part"

        assert SpanPattern.parse("lake/day_{SPAN}/v{VERSION}/*").match(path) == (span, version)

    @given(
        written=st.sampled_from(
            [
                ("a/{SPAN}/*", "a/{0:07}/x"),
                ("*{SPAN}*", "day{0}.csv"),
                ("a/{SPAN:9}/*", "a/{0:09}/x"),
                ("{YYYY}-{MM}-{DD}", "{1:%Y-%m-%d}"),
                ("{DD}/{MM}/{YYYY}/*", "{1:%d/%m/%Y}/x"),
            ]
        ),
        span=st.integers(0, 2_932_896),
    )
    def test_the_narrow_glob_of_a_span_finds_its_files(self, written, span):
        """Whatever file belongs to a span is found by the glob for that span alone."""
        text, path = written[0], written[1].format(span, date(1970, 1, 1) + timedelta(days=span))
        pattern = SpanPattern.parse(text)

        assert pattern.match(path) == (span, None)
        assert fnmatch.fnmatchcase(path, pattern.glob(span))

    @given(
        st.sampled_from([calendar for calendar in Calendar if calendar is not Calendar.NUMBER]),
        st.integers(0, 3_652_059 * 24 - 1).map(lambda hours: FIRST + timedelta(hours=hours)),
        st.integers(0, 99),
    )
    def test_a_path_with_the_label_of_a_span_is_of_that_span(self, calendar, wall, version):
        """In every calendar, the pattern of its label reads what the label says, and its glob lists that alone."""
        span = calendar.span_at(wall)
        pattern = SpanPattern.parse(f"data/{LABELS[calendar]}/v{{VERSION}}/*")
        path = f"data/{calendar.label(span)}/v{version}/a"

        assert pattern.calendar is calendar
        assert pattern.match(path) == (span, version)
        assert pattern.glob(span) == f"data/{calendar.label(span)}/v*/*"

    @given(st.dates())
    def test_a_day_is_in_the_week_of_pythons_isocalendar(self, day):
        """A file named by `strftime("%G-W%V")` belongs to the week that the day is in."""
        iso = day.isocalendar()
        span = Calendar.WEEK.span_at(datetime.combine(day, time()))

        assert SpanPattern.parse("{GGGG}-W{WW}/*").match(f"{iso.year:04}-W{iso.week:02}/a") == (span, None)

    def test_a_glob_has_stars_for_placeholders(self):
        """What is listed is every file that may belong to a span."""
        assert SpanPattern.parse(DAYS).glob() == "data/*-*-*/v*/*.csv"

    @pytest.mark.parametrize(
        ("pattern", "span", "narrow"),
        [
            (DAYS, 15710, "data/2013-01-05/v*/*.csv"),
            ("{YYYY}{MM}{DD}{HH}", -1, "1969123123"),
            ("{GGGG}/W{WW}/*", 2922, "2026/W01/*"),
            ("{MM}.{YYYY}/*", 682, "11.2026/*"),
            ("{YYYY}/{Q}/*", 227, "2026/4/*"),
            ("s{SPAN:3}/*", 7, "s007/*"),
            ("s{SPAN:3}/*", -7, "s-07/*"),
            ("s{SPAN}/*", 7, "s*7/*"),
            ("s{SPAN}/*", -7, "s-*7/*"),
            ("*{SPAN}*", 7, "*7*"),
        ],
    )
    def test_a_glob_is_narrowed_to_one_span(self, pattern, span, narrow):
        """With a span named, other spans are not listed, however the folder is padded."""
        assert SpanPattern.parse(pattern).glob(span) == narrow

    def test_neighbouring_stars_do_not_descend_into_folders(self):
        """A placeholder beside a star is one star in the glob, not the `**` of whole trees."""
        assert SpanPattern.parse("a/*{SPAN}/x").glob() == "a/*/x"
        assert SpanPattern.parse("a/{SPAN}*/x").glob() == "a/*/x"

    def test_a_span_wider_than_its_placeholder_is_refused(self):
        """A span with more digits than the width belongs to no file, and the message shows a wider pattern."""
        with pytest.raises(UsageError, match=r"123 has 3 digits.*'span\{SPAN:3\}/\*'"):
            SpanPattern.parse("span{SPAN:2}/*").glob(123)

    def test_a_span_that_is_no_date_is_refused(self):
        """A date pattern cannot be selected a day after the year 9999."""
        with pytest.raises(UsageError, match="2013-01-05"):
            SpanPattern.parse(DAYS).glob(20130105)

    def test_a_pattern_is_filled_with_what_a_path_says(self):
        """The filled pattern keeps the padding of the path and the glob characters of the pattern."""
        pattern = SpanPattern.parse("span{SPAN}/v{VERSION:2}/*")

        assert pattern.fill("span007/v01/a") == "span007/v01/*"

    def test_a_path_that_does_not_match_fills_nothing(self):
        """Filling from a foreign path is refused."""
        with pytest.raises(PatternError, match="does not match"):
            SpanPattern.parse("span{SPAN}/*").fill("x")
