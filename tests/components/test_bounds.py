"""Bounds: a limit is met by numbers that equal it on paper, and by none that are beyond it."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from spanwise.components.bounds import format_apart, is_at_least, is_at_most
from spanwise.components.evaluation.threshold import Threshold, judge
from spanwise.components.statistics.anomalies import validate
from spanwise.components.statistics.schema import DataSchema, Distance, FeatureSchema
from spanwise.components.statistics.span_statistics import SpanStatistics, SplitCounts, count_column


def span(values, type_=None):
    """The statistics of a span with one column `x`."""
    (found,) = count_column("x", pa.array(values, type_))
    return SpanStatistics(splits={"train": SplitCounts(name="train", rows=len(values), features={"x": found})})


def refused(threshold, metric, baseline):
    (finding,) = judge({"accuracy": threshold}, {"accuracy": metric}, {"accuracy": baseline})
    return not finding.passed


PERCENT = [(base, drop) for base in range(50, 100) for drop in range(1, 11)]


@pytest.mark.parametrize("off", [0, 1e-6])
def test_a_drop_of_exactly_the_bound_is_allowed(off):
    """`max_drop=0.03` allows 0.90 after 0.93, whatever doubles make of it; a millionth more is refused."""
    found = [refused(Threshold(max_drop=d / 100), (b - d) / 100 - off, b / 100) for b, d in PERCENT]
    ratios = [refused(Threshold(max_drop_ratio=d / b), (b - d) / 100 - off, b / 100) for b, d in PERCENT]
    rises = [refused(Threshold(max_rise=d / 100), b / 100 + off, (b - d) / 100) for b, d in PERCENT]

    assert found == ratios == rises == [bool(off)] * len(PERCENT)


@pytest.mark.parametrize("off", [0, 1])
def test_a_share_of_exactly_the_bound_is_allowed(off):
    """So many values missing, outside of a range or of the values, or moved, as the schema allows; one more is not."""
    for rows, k in ((size, k) for size in (10, 100, 1000) for k in range(1, size // 10 + 1)):
        share = k / rows
        more = k + off
        missing = FeatureSchema(type="int64", present=round(1 - share, 3))
        ranged = FeatureSchema(type="int64", max=10, min=0, outside=share)
        listed = FeatureSchema(type="string", values=("a",), outside=share)

        found = [
            validate(span([1] * (rows - more) + [None] * more, pa.int64()), DataSchema(features={"x": missing})),
            validate(span([5] * (rows - more) + [50] * more), DataSchema(features={"x": ranged})),
            validate(span(["a"] * (rows - more) + ["b"] * more), DataSchema(features={"x": listed})),
        ]

        assert [bool(each) for each in found] == [bool(off)] * 3, (rows, k, found)


def test_a_bound_that_allows_none_is_exact():
    """One missing value in ten thousand million is one too many, if none may be missing."""
    found = replace(span([1]).splits["train"].features["x"], count=10**10, missing=1)
    split = SplitCounts(name="train", rows=10**10, features={"x": found})

    (anomaly,) = validate(
        SpanStatistics(splits={"train": split}), DataSchema(features={"x": FeatureSchema(type="int64")})
    )

    assert "0.00000001% of 10,000,000,000 are missing; 0.00000000% may be" in anomaly.message


def test_a_drift_of_exactly_the_bound_is_allowed():
    """A share that moved by exactly what is allowed has not drifted."""
    before = span(["a"] * 50 + ["b"] * 50)

    for k in range(1, 50):
        wanted = DataSchema(features={"x": FeatureSchema(type="string", drift=Distance(l_infinity=k / 100))})
        assert validate(span(["a"] * (50 + k) + ["b"] * (50 - k)), wanted, before) == ()
        assert validate(span(["a"] * (51 + k) + ["b"] * (49 - k)), wanted, before) != ()


def test_undefined_and_infinite_numbers_are_within_no_bound():
    """NaN satisfies nothing, and infinity is above every finite limit."""
    assert not is_at_most(math.nan, 1)
    assert not is_at_least(math.nan, 1)
    assert not is_at_most(math.inf, 1)
    assert not is_at_most(0.5, -math.inf)
    assert is_at_most(math.inf, math.inf)
    assert is_at_least(0, -math.inf)


def test_a_message_shows_that_the_numbers_differ():
    """No message says that 90.00 % is not the 90.00 % that is allowed."""
    assert format_apart(0.9, 0.90000004, 2, "%") == ("90.000000%", "90.000004%")
    assert format_apart(0.5, 0.5, 3, "f") == ("0.500", "0.5")
    assert len(set(format_apart(1.0, float(np.nextafter(1, 2)), 3, "f"))) == 2
