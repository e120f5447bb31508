"""Reports: self-contained pages that show what they are given, whatever it is called."""

import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

from spanwise.components.report import Cell, Line, ReportPage, Series, bars, histogram, lines
from spanwise.components.statistics.anomalies import validate
from spanwise.components.statistics.anomalies_page import page as anomalies_page
from spanwise.components.statistics.schema import DataSchema, FeatureSchema
from spanwise.components.statistics.span_statistics import SpanStatistics, SplitCounts, count_column
from spanwise.components.statistics.statistics_page import PLOTS, compare, page

NASTY = "<script>alert('ü')</script> & \"名\""


def span(**columns):
    """Statistics of one split with these columns."""
    arrays = {name: pa.array(values) for name, values in columns.items()}
    found = {f.name: f for name, values in arrays.items() for f in count_column(name, values)}
    return SpanStatistics(
        splits={"train": SplitCounts(name="train", rows=len(next(iter(arrays.values()))), features=found)}
    )


class Read(HTMLParser):
    """What a page shows, and what it would fetch."""

    def __init__(self, text):
        super().__init__()
        self.text, self.tags, self.fetched, self.open = "", [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in ("meta", "input"):
            self.open.append(tag)
        self.fetched += [value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def everything():
    """A page with a column of every kind."""
    return page(
        span(
            **{NASTY: [NASTY, "b"] * 10},
            number=[0.5, 1.5, math.nan, None] * 5,
            month=[1, 2, 3, 12] * 5,
            missing=pa.nulls(20),
            flag=[True, False] * 10,
            tags=[["a"], []] * 10,
            when=pa.array(range(20), pa.timestamp("s")),
            blob=[b"\xff"] * 20,
            interval=pa.array([(1, 2, 3)] * 20, pa.month_day_nano_interval()),
            huge=[1.7e308, -1.7e308] * 10,
        ),
        title="2013-01-01",
    )


def test_a_page_needs_nothing_but_itself(everything):
    """No script, style, font or image is fetched from anywhere."""
    assert Read(everything).fetched == []
    assert not re.search(r"@import|url\(|https?:", everything)


def test_a_page_is_whole(everything):
    """Every tag that is opened is closed, and every feature has a row."""
    read = Read(everything)

    assert read.open == []
    assert read.tags.count("section") == 11


def test_names_and_values_are_text_never_markup(everything):
    """A name that looks like a script is shown as it is, and does not run."""
    read = Read(everything)

    assert NASTY in read.text
    assert "alert" not in "".join(re.findall(r"<script>(.*?)</script>", everything, re.DOTALL))


def test_what_is_wrong_with_a_feature_is_said(everything):
    """All-missing columns, NaN, and types that are not looked at are noted."""
    text = Read(everything).text

    assert "all missing in train" in text
    assert "NaN or infinite in train" in text
    assert "values of this type are not analyzed" in text


def test_two_spans_stand_side_by_side():
    """A comparison has a column of figures for each span, and names what only one has."""
    text = Read(compare(span(x=[1], old=[1]), span(x=[2.5]), names=("Monday", "Tuesday"))).text

    assert "Monday 1 rows, Tuesday 1 rows" in text
    assert "types differ: double, int64" in text
    assert "not in Tuesday" in text


def test_thousands_of_columns_have_figures_and_some_have_plots():
    """A page of very many features stays small enough to open."""
    text = page(span(**{f"c{i}": [i, i + 1] for i in range(PLOTS + 10)}), title="wide")

    assert text.count("<section") == PLOTS + 10
    assert text.count("<svg") == PLOTS


def test_a_span_without_anomalies_says_so():
    """Nothing odd is good news, and is told as such."""
    assert "None. The span agrees" in Read(anomalies_page((), span(x=[1]), None, title="7")).text


def test_anomalies_are_listed_with_their_features():
    """Each anomaly has a row, and each feature concerned its figures beside those of the span before."""
    wanted = DataSchema(features={"x": FeatureSchema(type="int64", max=5), "gone": FeatureSchema(type="int64")})
    now, before = span(x=[9]), span(x=[1])

    text = Read(anomalies_page(validate(now, wanted), now, before, title="8", before="7")).text

    assert "2 of severity error" in text
    assert "values range from 9 to 9; any to 5 is allowed" in text
    assert "the column is missing" in text


SERIES = [Series("a", (0.1, 0.0, 0.9)), Series("b", (math.nan, 0.5, 0.5))]


@pytest.mark.parametrize(
    "svg",
    [
        histogram([0, 1, 2, 3], SERIES, ends=("0", "<3>"), marks=[(1.5, "here & now")]),
        histogram([0, 1], [Series("none", (0.0,))], ends=("", "")),
        bars(["x", NASTY, "a label that is much too long to be shown"], SERIES),
        bars([], []),
        lines([Line("a", ((0, 0), (1, 1))), Line("b", ((0.5, math.nan), (1, 0)))], diagonal=True, x_label="<x>"),
        lines([]),
        lines([Line("flat", ((2, 3), (2, 3)))]),
    ],
)
def test_plots_are_well_formed_and_finite(svg):
    """A plot is valid XML without a single NaN, whatever it is given."""
    root = ET.fromstring(svg)

    assert root.tag == "svg"
    assert not re.search(r"nan|inf\b", svg)


def test_a_histogram_reaches_the_top_where_the_greatest_share_is():
    """The highest bin touches the line that is labelled with its share."""
    assert "90.0%" in histogram([0, 1, 2, 3], SERIES, ends=("0", "3"))
    assert "V12.0H" in histogram([0, 1, 2, 3], SERIES, ends=("0", "3"))


def test_a_page_is_written_from_top_to_bottom():
    """Headings, paragraphs, tables and plots come in the order they were added."""
    made = ReportPage("Title")
    made.heading("First")
    made.paragraph("Then")
    made.table(("", "n"), [("row", Cell("5", "bad"))])
    made.plot(bars(["last"], [Series("s", (1.0,))]))

    words = ["First", "Then", "row", "last"]
    assert sorted(words, key=Read(made.html()).text.index) == words
