"""Spans: patterns, calendars, and which block a run ingests."""

import fnmatch
import glob
import re
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.orchestrator.calendar import Calendar, format_versions
from spanwise.orchestrator.errors import AmbiguousSpan, PatternError, SpanNotFound, UsageError
from spanwise.orchestrator.span import choose, list_spans
from spanwise.orchestrator.span_pattern import SpanPattern

DAYS = "data/{YYYY}-{MM}-{DD}/v{VERSION}/*.csv"


def lake(tmp_path, *paths):
    """A listing of real files, as `choose` takes it; remembers what it was asked."""
    for path in paths:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def listing(pattern):
        listing.asked.append(pattern)
        found = glob.glob(pattern, root_dir=tmp_path, recursive=True)  # noqa: PTH207  Path.glob knows no root_dir
        return [path for path in found if (tmp_path / path).is_file()]

    listing.asked = []
    return listing


def one(pattern):
    return {"all": SpanPattern.parse(pattern)}


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


class TestParse:
    @pytest.mark.parametrize(
        ("text", "calendar", "has_span", "has_version"),
        [
            ("root/day-{SPAN}/attempt{VERSION}/*", Calendar.NUMBER, True, True),
            ("span{SPAN:2}/*", Calendar.NUMBER, True, False),
            ("span{SPAN:}/*", Calendar.NUMBER, True, False),
            (DAYS, Calendar.DAY, True, True),
            ("{YYYY}{MM}{DD}{HH}/*", Calendar.HOUR, True, False),
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
            ("{YYYY}-{MM}/*", "exactly once each"),
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
        ("text", "instead"), [("{DAY}", "{DD}"), ("{Span}", "{SPAN}"), ("{VERSON}", "{VERSION}"), ("{DATE}", "{YYYY}")]
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

    def test_a_glob_has_stars_for_placeholders(self):
        """What is listed is every file that may belong to a span."""
        assert SpanPattern.parse(DAYS).glob() == "data/*-*-*/v*/*.csv"

    @pytest.mark.parametrize(
        ("pattern", "span", "narrow"),
        [
            (DAYS, 15710, "data/2013-01-05/v*/*.csv"),
            ("{YYYY}{MM}{DD}{HH}", -1, "1969123123"),
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


class TestChoose:
    def test_the_newest_version_of_the_newest_span_is_chosen(self, tmp_path):
        """Spans and versions are compared as numbers; newest is the highest."""
        listing = lake(tmp_path, "s9/v9/a", "s10/v9/a", "s10/v10/b", "s10/v10/a")

        block = choose(one("s{SPAN}/v{VERSION}/*"), listing)

        assert (block.span, block.version) == (10, 10)
        assert block.files == {"all": ("s10/v10/a", "s10/v10/b")}
        assert block.calendar is Calendar.NUMBER
        assert block.strays == ()

    def test_a_named_span_gets_its_newest_version(self, tmp_path):
        """ExampleGen always picks up the input data corresponding to the latest Version of the span (RFC)."""
        listing = lake(tmp_path, "s1/v1/a", "s1/v2/a", "s2/v1/a")

        block = choose(one("s{SPAN}/v{VERSION}/*"), listing, 1)

        assert (block.span, block.version, block.files["all"]) == (1, 2, ("s1/v2/a",))

    def test_a_named_day_does_not_list_history(self, tmp_path):
        """Only the day's own folder is listed, however many there are."""
        listing = lake(tmp_path, "data/2013-01-05/v1/a.csv", "data/2013-01-06/v1/a.csv")

        choose(one(DAYS), listing, 15710)

        assert listing.asked == ["data/2013-01-05/v*/*.csv"]

    def test_padded_folders_are_found_by_number(self, tmp_path):
        """Without a width, span 7 is in the folder `07`, and the real paths are returned."""
        listing = lake(tmp_path, "s07/a", "s17/a")

        block = choose(one("s{SPAN}/*"), listing, 7)

        assert block.files["all"] == ("s07/a",)

    def test_one_span_under_two_names_is_refused(self, tmp_path):
        """`s7` and `s07` are the same span, and reading both could read rows twice."""
        listing = lake(tmp_path, "s07/a", "s7/a")

        with pytest.raises(AmbiguousSpan, match=r"'s07/\*', 's7/\*'"):
            choose(one("s{SPAN}/*"), listing, 7)

    def test_strays_are_told_and_do_not_stop_the_run(self, tmp_path):
        """A path that says no span, or no date of the calendar, is passed over and reported."""
        listing = lake(tmp_path, "20130105/a", "20130230/a", "notadate/a", "20130105/b/c")

        block = choose(one("{YYYY}{MM}{DD}/*"), listing)

        assert block.span == 15710
        assert block.strays == ("20130230/a", "notadate/a")

    def test_empty_folders_are_not_seen(self, tmp_path):
        """A newer folder without files is no newer span."""
        listing = lake(tmp_path, "s1/a")
        (tmp_path / "s2").mkdir()

        assert choose(one("s{SPAN}/*"), listing).span == 1

    def test_a_pattern_without_placeholders_is_span_0(self, tmp_path):
        """Everything is one block, without a version."""
        block = choose(one("data/*.csv"), lake(tmp_path, "data/a.csv", "data/b.csv"))

        assert (block.span, block.version, block.calendar) == (0, None, Calendar.NUMBER)
        assert block.files["all"] == ("data/a.csv", "data/b.csv")

    def test_a_pattern_without_placeholders_cannot_be_asked_for_a_span(self, tmp_path):
        """Naming a span where there are none is a mistake, not span 0."""
        with pytest.raises(PatternError, match="span 5 cannot be selected"):
            choose(one("data/*.csv"), lake(tmp_path, "data/a.csv"), 5)

    @pytest.mark.parametrize("pattern", ["data/*.csv", "s{SPAN}/*", DAYS])
    def test_no_file_at_all_is_an_error(self, tmp_path, pattern):
        """A run without input fails, also when the pattern has no span."""
        with pytest.raises(SpanNotFound, match="There are no spans at all"):
            choose(one(pattern), lake(tmp_path))

    def test_a_missing_span_is_answered_with_those_that_exist(self, tmp_path):
        """Few spans are all named, with the nearest and what to type."""
        listing = lake(tmp_path, *(f"data/2013-01-0{day}/v1/a.csv" for day in (1, 2, 5)))

        with pytest.raises(SpanNotFound) as missing:
            choose(one(DAYS), listing, 15708)

        message = str(missing.value)
        assert "no file of span 2013-01-03" in message
        assert "'data/2013-01-03/v*/*.csv'" in message
        assert "2013-01-01, 2013-01-02, 2013-01-05" in message
        assert "Nearest: 2013-01-02, 2013-01-05" in message
        assert "--span 2013-01-02" in message

    def test_many_spans_are_summed_up(self, tmp_path):
        """A long history is told by its number, both ends and what is nearest."""
        listing = lake(tmp_path, *(f"s{span}/a" for span in range(1, 41) if span != 20))

        with pytest.raises(SpanNotFound) as missing:
            choose(one("s{SPAN}/*"), listing, 20)

        assert "1, 2, 3 ... 38, 39, 40 (39 in all)" in str(missing.value)
        assert "Nearest: 19, 21" in str(missing.value)

    def test_an_example_of_a_stray_explains_an_empty_lake(self, tmp_path):
        """When nothing parses, the message shows a path that did not."""
        with pytest.raises(SpanNotFound, match=r"1 path was ignored.*'s1/a'"):
            choose(one("s{SPAN:2}/*"), lake(tmp_path, "s1/a"))

    def test_blocks_are_everything_that_is_there(self, tmp_path):
        """All spans and versions are listed in ascending order."""
        listing = lake(tmp_path, "s2/v1/a", "s1/v2/a", "s1/v10/a", "sx/v1/a")

        found = list_spans(one("s{SPAN}/v{VERSION}/*"), listing)

        assert [(span, list(versions)) for span, versions in found.spans.items()] == [(1, [2, 10]), (2, [1])]
        assert found.spans[1][10] == {"all": ("s1/v10/a",)}
        assert found.strays == ("sx/v1/a",)


class TestSplits:
    def patterns(self, text="s{SPAN}/v{VERSION}/"):
        return {name: SpanPattern.parse(f"{text}{name}/*") for name in ("train", "eval")}

    def test_splits_that_agree_are_one_block(self, tmp_path):
        """Every split brings its own files of the same span and version."""
        block = choose(self.patterns(), lake(tmp_path, "s1/v1/train/a", "s1/v1/eval/a"))

        assert block.files == {"train": ("s1/v1/train/a",), "eval": ("s1/v1/eval/a",)}

    def test_an_incomplete_newest_span_is_refused(self, tmp_path):
        """The message names each split's answer and the spans that are complete."""
        listing = lake(tmp_path, "s1/v1/train/a", "s1/v1/eval/a", "s2/v1/train/a")

        with pytest.raises(AmbiguousSpan, match=r"train has 2, eval has 1\. Complete in all splits: 1\..*--span 1"):
            choose(self.patterns(), listing)

    def test_an_incomplete_newest_version_is_refused(self, tmp_path):
        """Splits of different versions do not belong together; the message looks beyond the span that was asked for."""
        listing = lake(tmp_path, "s1/v1/train/a", "s1/v1/eval/a", "s1/v2/train/a", "s2/v1/train/a", "s2/v1/eval/a")

        with pytest.raises(AmbiguousSpan, match=r"version of span 1: train has 2, eval has 1.*in all splits: 2\."):
            choose(self.patterns(), listing, 1)

    def test_span_0_in_one_split_does_not_give_way_to_another(self, tmp_path):
        """Span 0 is a span like any other when splits are compared."""
        listing = lake(tmp_path, "a/s0/x", "b/s5/x")
        patterns = {name: SpanPattern.parse(name + "/s{SPAN}/*") for name in ("a", "b")}

        with pytest.raises(AmbiguousSpan, match="a has 0, b has 5"):
            choose(patterns, listing)

    def test_an_older_span_may_be_named_while_the_newest_is_incomplete(self, tmp_path):
        """Naming a complete span is the way out of an incomplete one."""
        listing = lake(tmp_path, "s1/v1/train/a", "s1/v1/eval/a", "s2/v1/train/a")

        assert choose(self.patterns(), listing, 1).span == 1

    @pytest.mark.parametrize("span", [None, 1])
    def test_a_split_without_files_is_named(self, tmp_path, span):
        """The message says which split has nothing."""
        with pytest.raises(SpanNotFound, match="split 'eval'"):
            choose(self.patterns(), lake(tmp_path, "s1/v1/train/a"), span)

    def test_splits_count_alike(self, tmp_path):
        """A split by date cannot go with one by number."""
        patterns = {"train": SpanPattern.parse("t/{SPAN}/*"), "eval": SpanPattern.parse("e/{YYYY}{MM}{DD}/*")}

        with pytest.raises(PatternError, match="same kinds of placeholders"):
            choose(patterns, lake(tmp_path))

    def test_there_is_at_least_one_split(self, tmp_path):
        """No pattern at all is a mistake in the pipeline."""
        with pytest.raises(PatternError, match="no input"):
            choose({}, lake(tmp_path))
