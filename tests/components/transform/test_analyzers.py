"""Analyzers: accumulate, merge, finish; and what an expression asks of them."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.components.transform.analyzers import (
    Analyzer,
    Boundaries,
    Count,
    Extremes,
    MeanAndDeviation,
    PreprocessingError,
    Quantile,
    Terms,
    Total,
    plain,
)
from spanwise.components.transform.preprocessing import (
    Columns,
    analyze,
    bucketize,
    mean,
    quantile,
    scale_to_z_score,
)
from spanwise.components.transform.trace import PreprocessingTrace, trace_function

ALL = [Count(), MeanAndDeviation(), Total(), Extremes(), Boundaries(4), Quantile(0.5), Terms()]


def learned(analyzer, *batches):
    """What an analyzer learns of batches, each state packed and unpacked on the way."""
    states = [analyzer.unpack(analyzer.pack(analyzer.accumulate(batch))) for batch in batches]
    return analyzer.finish(analyzer.merge(states))


class Limit(Analyzer[int]):
    """An analyzer that is no dataclass."""

    def __init__(self, most):
        self.most = most


@dataclass(frozen=True)
class Share(Analyzer[int]):
    """An analyzer with one field."""

    at: float


class ShareOfMost(Share):
    """One more parameter, which is no field."""

    def __init__(self, at, most):
        super().__init__(at)
        object.__setattr__(self, "most", most)


numbers = st.lists(st.none() | st.integers(-1000, 1000), max_size=40)


@given(numbers, st.integers(0, 40))
@settings(max_examples=40)
@pytest.mark.parametrize("analyzer", ALL, ids=lambda analyzer: analyzer.label)
def test_the_cut_into_batches_does_not_show(analyzer, values, cut):
    """However the rows are cut, and though each part is packed and unpacked, an analyzer learns the same."""
    whole = pl.Series(values, dtype=pl.Int64)

    found = learned(analyzer, whole[:cut], whole[cut:])

    expected = learned(analyzer, whole)
    if isinstance(analyzer, MeanAndDeviation) and found["mean"] is not None:
        assert found == {name: pytest.approx(value, abs=1e-9) for name, value in expected.items()}
    else:
        assert found == expected


TYPES = [pl.Int8(), pl.UInt64(), pl.Float32(), pl.Float64(), pl.Boolean(), pl.Null(), pl.Decimal(10, 2)]


@pytest.mark.parametrize(("analyzer", "type_"), [(a, t) for a in ALL for t in TYPES if a.refusal(t) is None])
def test_no_values_at_all_give_nothing_and_no_failure(analyzer, type_):
    """A column without rows, or with nothing but nulls, of any type, has a state and a value."""
    found = learned(analyzer, pl.Series([], dtype=type_), pl.Series([None, None], dtype=type_))

    nothing = {"Count": 0, "Total": 0, "Terms": [], "Boundaries": [], "Quantile": None}
    either = nothing.get(type(analyzer).__name__, "a dict")
    assert found == either or all(value is None for value in found.values())


def test_nan_and_infinities_are_passed_over():
    """Mean, extremes and quantiles are those of the finite numbers alone."""
    values = pl.Series([1.0, float("nan"), 3.0, float("inf"), float("-inf"), None])

    assert learned(MeanAndDeviation(), values) == {"mean": 2.0, "standard_deviation": 1.0}
    assert learned(Extremes(), values) == {"minimum": 1.0, "maximum": 3.0}
    assert learned(Quantile(1.0), values) == 3.0
    assert learned(Total(), values) == 4.0


def test_sums_of_whole_numbers_do_not_overflow():
    """The sum of the largest integers is exact beyond 64 bits, and that of small types beyond their own."""
    assert learned(Total(), pl.Series([2**63 - 1] * 3)) == 3 * (2**63 - 1)
    assert learned(Total(), pl.Series([127] * 3, dtype=pl.Int8)) == 381
    assert learned(Total(), pl.Series([2**64 - 1] * 3, dtype=pl.UInt64)) == 3 * (2**64 - 1)


def test_a_mean_is_the_total_over_the_count():
    """Count, total and mean leave out the same values: nulls, and of floats NaN and infinities."""
    values = pl.Series([0.1, None, float("nan"), 0.1, float("inf"), 0.1, 0.1])

    assert learned(Count(), values) == 4
    assert learned(Total(), values) == 0.4
    assert learned(MeanAndDeviation(), values) == {"mean": 0.1, "standard_deviation": 0.0}
    assert learned(Count(), pl.Series([1, None, 3])) == 2


def test_boundaries_cut_into_groups_of_equal_size():
    """A hundred values in ten buckets have ten each."""
    values = pl.Series(range(100))

    found = learned(Boundaries(10), values)

    sizes = np.bincount(np.searchsorted(found, values.to_numpy(), side="right"))
    assert len(found) == 9
    assert all(9 <= size <= 11 for size in sizes)


def test_terms_come_by_count_and_then_by_their_bytes():
    """Vocabulary order is the same everywhere: most frequent first, equals by their bytes; thresholds cut it."""
    first = pl.Series(["b", "a", "é", "é", None])
    second = pl.Series(["b", "a", "z", "é"])

    assert learned(Terms(), first, second) == ["é", "a", "b", "z"]
    assert learned(Terms(top_k=2), first, second) == ["é", "a"]
    assert learned(Terms(min_count=2), first, second) == ["é", "a", "b"]


def test_extremes_know_times_and_texts():
    """The smallest and largest of dates, times and texts keep their type."""
    days = pl.Series([date(2013, 1, 2), None, date(2013, 1, 1)])

    assert learned(Extremes(), days) == {"minimum": date(2013, 1, 1), "maximum": date(2013, 1, 2)}
    assert learned(Extremes(), pl.Series(["b", "a"])) == {"minimum": "a", "maximum": "b"}


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**70),
        0.1,
        float("inf"),
        "text",
        b"\x00\xff",
        date(2013, 1, 1),
        datetime(2013, 1, 1, 1, 2, 3, 4, tzinfo=UTC),
        timedelta(microseconds=7),
        Decimal("1.10"),
        [1, [2.5, None]],
        {"a": {"b": ["c"]}},
    ],
)
def test_plain_values_come_back_as_they_were(value):
    """Every plain value survives the file that keeps it, type and all."""
    assert plain.loads(plain.dumps(value)) == value


def test_what_is_not_plain_is_refused_by_name():
    """A value that JSON could not bring back is refused."""
    with pytest.raises(TypeError, match="object is not plain"):
        plain.dumps([object()])


def trace(function, known=None):
    return trace_function(function, PreprocessingTrace(columns=Columns({"x": pl.Float64()}), known=known or {}))


def test_the_same_question_is_asked_once():
    """An analyzer over the same expression is computed once, however many features need it."""
    found = trace(
        lambda columns: {"a": scale_to_z_score(columns["x"]), "b": mean(columns["x"]), "c": mean(columns["x"] + 1)}
    )

    assert [question.text for question in found.pending.values()] == [
        'MeanAndDeviation of col("x")',
        'MeanAndDeviation of [(col("x")) + (dyn int: 1)]',
    ]


def test_a_nested_question_waits_for_the_inner_one():
    """What depends on an unanswered question is asked a phase later, with the answer inside."""

    def preprocess(columns):
        return {"bucket": bucketize(scale_to_z_score(columns["x"]), 4)}

    first = trace(preprocess)
    ((key, question),) = first.pending.items()
    second = trace(preprocess, {key: {"mean": 2.0, "standard_deviation": 4.0}})

    assert question.analyzer == MeanAndDeviation()
    ((_, then),) = second.pending.items()
    assert then.analyzer == Boundaries(4)
    assert "2.0" in then.text
    assert "4.0" in then.text
    assert first.waiting() == {key: ["bucket"]}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda columns: {"y": scale_to_z_score(columns["y"])}, "no column 'y'; they have: x"),
        (lambda columns: {"y": 3}, "feature 'y' is int 3"),
        (lambda columns: {}, "returned dict, empty"),
        (lambda columns: {"": columns["x"]}, "name is a text"),
        (lambda columns: {"x\0": columns["x"]}, "name is a text without NUL"),
        (lambda columns: {"y": pl.all()}, "several columns"),
        (lambda columns: {"y": scale_to_z_score("x")}, "analyzes expressions such as columns"),
        (lambda columns: {"y": bucketize(columns["x"], 1)}, "at least 2 buckets"),
        (lambda columns: {"y": quantile(columns["x"], 7)}, "a share from 0 to 1"),
        (lambda columns: {"y": analyze(Terms())}, "needs something to analyze"),
        (lambda columns: {"y": analyze(Limit(3), columns["x"])}, "Limit has 'most', which is no field"),
        (
            lambda columns: {"y": analyze(ShareOfMost(0.5, 3), columns["x"])},
            "ShareOfMost has 'most', which is no field",
        ),
        (lambda columns: {"y": columns["x"] / 0 + int("seven")}, "ValueError: invalid literal"),
    ],
)
def test_a_function_that_fails_is_told_in_its_own_terms(function, said):
    """What is wrong with a preprocessing function is said with the word or feature at fault."""
    with pytest.raises(PreprocessingError, match=said):
        trace(function)


def test_analyzers_are_for_preprocessing_functions():
    """A word that analyzes says where it belongs when it is called elsewhere."""
    with pytest.raises(PreprocessingError, match="only inside a preprocessing function"):
        mean(pl.col("x"))


def test_a_value_that_is_no_literal_needs_a_use():
    """An analyzer that gives a list says that `use` must make an expression of it."""
    question = trace(lambda columns: {"y": analyze(Boundaries(3), columns["x"])})
    (key,) = question.pending

    with pytest.raises(PreprocessingError, match="use=lambda value"):
        trace(lambda columns: {"y": analyze(Boundaries(3), columns["x"])}, {key: [1.0]})
