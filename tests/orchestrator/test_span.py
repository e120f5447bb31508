"""Spans: what a listing contains, and which one a run ingests."""

import glob

import pytest

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import AmbiguousSpan, PatternError, SpanNotFound
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
