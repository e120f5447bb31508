"""ExampleValidator and AnomalyGate: what is odd about a span is told, kept, and stops what comes after."""

import json
import math
import re

import numpy as np
import pyarrow as pa
import pytest

from spanwise.components import AnomalyGate, ExampleValidator, Importer, SchemaGen, StatisticsGen
from spanwise.components.statistics.anomalies import (
    Anomaly,
    read,
    validate,
    worst,
    write,
)
from spanwise.components.statistics.schema import AnomalyCheck, DataSchema, FeatureSchema, Severity
from spanwise.components.statistics.schema_gen import infer
from spanwise.components.statistics.span_statistics import SpanStatistics, SplitCounts, count_column
from spanwise.orchestrator import Component, Input, InputError, Output, ParameterError, Report, Schema, State, past
from spanwise.orchestrator import Examples as ExamplesArtifact
from spanwise.resolvers import Latest, Previous
from tests.components.day import Day
from tests.components.flow import Bench, only


def split(name="train", **columns):
    """Statistics of one split with these columns."""
    arrays = {column: pa.array(values) for column, values in columns.items()}
    found = {f.name: f for column, values in arrays.items() for f in count_column(column, values)}
    return SplitCounts(name=name, rows=max(map(len, arrays.values()), default=0), features=found)


def span(*splits, **columns):
    """Statistics of these splits, or of one with these columns."""
    found = splits or (split(**columns),)
    return SpanStatistics(splits={s.name: s for s in found})


def schema(**features):
    """A schema of these features."""
    return DataSchema(features={name: FeatureSchema(**{"type": "int64", **said}) for name, said in features.items()})


def only_anomaly(*given, **known):
    """The one anomaly there is."""
    (found,) = validate(*given, **known)
    return found


def test_a_span_as_expected_has_no_anomalies():
    """What fits the schema is not told."""
    wanted = schema(x={"min": 0, "max": 9}, y={"type": "string", "values": ("a", "b")})

    assert validate(span(x=[0, 9], y=["a", "b"]), wanted) == ()


ODD = [
    ({"y": [1]}, {"x": {}, "y": {}}, AnomalyCheck.MISSING_COLUMN, "the column is missing; its type was int64"),
    ({"x": [1], "y": [1]}, {"x": {}}, AnomalyCheck.NEW_COLUMN, "the column is not in the schema; its type is int64"),
    ({"x": ["1"]}, {"x": {}}, AnomalyCheck.TYPE, "its type is string; the schema says int64"),
    ({"x": [1, None]}, {"x": {"present": 0.9}}, AnomalyCheck.MISSING_VALUES, "50.00% of 2 are missing; 10.00% may be"),
    ({"x": pa.nulls(2)}, {"x": {}}, AnomalyCheck.MISSING_COLUMN, "the column has no values in 2 rows"),
    ({"x": [math.nan, 1.0]}, {"x": {"type": "double"}}, AnomalyCheck.NOT_FINITE, "1 NaN and 0 infinite"),
    (
        {"x": ["a", "c"]},
        {"x": {"type": "string", "values": ("a", "b")}},
        AnomalyCheck.VALUES,
        "1 values .50.00%. .*: 'c' .1.",
    ),
    ({"x": [1, 20]}, {"x": {"max": 9}}, AnomalyCheck.RANGE, "from 1 to 20; any to 9 is allowed. About 50.00%"),
    ({"x": [-1, 2]}, {"x": {"min": 0}}, AnomalyCheck.RANGE, "from -1 to 2; 0 to any is allowed"),
    (
        {"x": [[]]},
        {"x": {"type": "list<item: null>", "min_length": 1}},
        AnomalyCheck.LENGTH,
        "the shortest has length 0",
    ),
    ({"x": ["abc"]}, {"x": {"type": "string", "max_length": 2}}, AnomalyCheck.LENGTH, "the longest has length 3"),
    ({"x": []}, {"x": {}}, AnomalyCheck.EMPTY_SPLIT, "it has no rows"),
]


@pytest.mark.parametrize(("columns", "features", "check", "told"), ODD)
def test_each_departure_is_told(columns, features, check, told):
    """A departure has its check, its severity and a sentence with the numbers."""
    wanted = schema(**features)

    (found, *others) = [a for a in validate(span(**columns), wanted) if a.feature != "x[]"]

    assert others == []
    assert (found.check, found.severity) == (check, wanted.severity_of(check))
    assert re.search(told, found.message)


@pytest.mark.parametrize(
    ("values", "said", "key"),
    [
        ([0.5], {"type": "double", "values": ("0.5",)}, "values"),
        ([0.5], {"type": "double", "drift": {"l_infinity": 0.1}}, "l_infinity"),
        (["a"], {"type": "string", "skew": {"jensen_shannon": 0.1}}, "jensen_shannon"),
        (["a"], {"type": "string", "max": 9}, "min and max"),
        ([1], {"max_length": 9}, "min_length and max_length"),
    ],
)
def test_a_key_that_would_check_nothing_is_refused(values, said, key):
    """What a schema says of a feature must be something that can be told of its type."""
    with pytest.raises(ParameterError, match=f"the schema has {key} for 'x'"):
        validate(span(x=values), schema(x=said))


def test_a_span_without_splits_is_empty():
    """Statistics of nothing at all are no clean bill."""
    assert only_anomaly(SpanStatistics(splits={}), schema(x={})).check is AnomalyCheck.EMPTY_SPLIT


def test_a_column_may_be_absent_when_the_schema_says_so():
    """`column = false` allows it."""
    assert validate(span(y=[1]), schema(x={"column": False}, y={})) == ()


def test_a_share_may_be_outside_when_the_schema_says_so():
    """`outside` allows a share of values to be none of the listed, or out of range."""
    text = schema(x={"type": "string", "values": ("a",), "outside": 0.5})
    number = schema(x={"max": 9, "outside": 0.5})

    assert validate(span(x=["a", "c"]), text) == ()
    assert validate(span(x=[1, 20]), number) == ()
    assert validate(span(x=["c", "c", "a"]), text) != ()


@pytest.mark.parametrize(("type_", "name"), [(pa.float32(), "float"), (pa.float16(), "halffloat")])
@pytest.mark.parametrize(
    "bounds", [(0.1, 0.3), (float(np.float32(0.1)), float(np.float32(0.3)))], ids=["typed", "read"]
)
def test_a_value_in_fewer_bits_on_a_bound_is_in_range(type_, name, bounds):
    """As doubles, 0.3 in 32 bits is above 0.3, and 0.1 in 16 bits below 0.1; a bound may also be such a double."""
    least, most = bounds
    values = pa.array(np.array([0.1, 0.2, 0.3], type_.to_pandas_dtype()))
    beyond = pa.array(np.array([0.1, 0.2, 0.31], type_.to_pandas_dtype()))
    wanted = schema(x={"type": name, "min": least, "max": most})

    assert validate(span(x=values), wanted) == ()
    assert only_anomaly(span(x=beyond), wanted).figures["share"] == pytest.approx(1 / 3)


def test_a_value_just_out_of_range_is_shown_with_the_digits_that_say_so():
    """Rather than as the bound itself."""
    found = only_anomaly(span(x=[0.1, 0.30001]), schema(x={"type": "double", "min": 0.1, "max": 0.3}))

    assert "range from 0.1 to 0.30001; 0.1 to 0.3 is allowed" in found.message


@pytest.mark.parametrize("bounds", [{"min": 2**60 + 1}, {"max": 2**60 - 1}, {"min": 2**60 + 1, "max": 2**61}])
def test_a_share_of_great_integers_is_compared_to_the_last_digit(bounds):
    """Beyond 2^53 many integers are one double; those on the wrong side of a bound are outside all the same."""
    found = only_anomaly(
        span(x=[2**60] * 60 + [bounds.get("min") or bounds["max"]] * 40), schema(x={**bounds, "outside": 0.5})
    )

    assert found.figures["share"] == 0.6


def test_of_many_unknown_values_the_most_frequent_are_named():
    """Among 100,000 distinct strings the count of unknown ones is right, and a few are named."""
    values = [*["a"] * 10, *["new"] * 5000, *[f"other {i}" for i in range(100_000)]]

    found = only_anomaly(span(x=values), schema(x={"type": "string", "values": ("a",)}))

    assert found.figures["outside"] == pytest.approx(105_000, rel=0.01)
    assert found.message.split(": ", 1)[1].startswith("'new' (")


def test_the_absence_of_a_struct_is_told_once():
    """Where a struct is gone, its fields are not told as well."""
    wanted = schema(a={"type": "struct<b: int64>"}, **{"a.b": {}}, x={})

    assert [a.feature for a in validate(span(x=[1]), wanted)] == ["a"]


def test_a_column_with_a_dot_in_its_name_lies_in_no_other():
    """Only structs and lists have features in them: `price.usd` is missed also where an optional `price` is absent."""
    wanted = schema(price={"column": False}, **{"price.usd": {}}, x={})

    assert [a.feature for a in validate(span(x=[1]), wanted)] == ["price.usd"]


def test_drift_of_texts_is_the_greatest_change_of_a_share():
    """A value that has become much more frequent than in the span before is named."""
    wanted = schema(x={"type": "string", "drift": {"l_infinity": 0.2}})
    now, before = span(x=["a"] * 80 + ["b"] * 20), span(x=["a"] * 50 + ["b"] * 50)

    found = only_anomaly(now, wanted, before)

    assert (found.check, found.severity) == (AnomalyCheck.DRIFT, Severity.WARNING)
    assert found.figures["distance"] == pytest.approx(0.3)
    assert "'a' differs by 0.300 from the span before; 0.2 is allowed" in found.message


def test_drift_of_numbers_is_their_divergence():
    """Numbers that have moved are told; numbers of the same distribution are not."""
    wanted = schema(x={"type": "double", "drift": {"jensen_shannon": 0.1}})
    rng = np.random.default_rng(0)
    before, same, moved = (span(x=rng.normal(mean, size=1000)) for mean in (0, 0, 2))

    assert validate(same, wanted, before) == ()
    assert only_anomaly(moved, wanted, before).figures["distance"] > 0.4


def test_the_first_span_does_not_drift():
    """Without a span before there is nothing to drift from."""
    assert validate(span(x=[1] * 200), schema(x={"drift": {"jensen_shannon": 0}})) == ()


def spread(size, values):
    return [f"v{place * 7919 % values}" for place in range(size)]


@pytest.mark.parametrize(("listed", "outside"), [(2000, 0.01), (5000, 0.1)])
def test_a_list_that_all_values_are_in_finds_nothing_however_long(listed, outside):
    """Counters for 1,536 values know no more than that no other value was seen: what they forgot is not outside."""
    wanted = schema(x={"type": "string", "values": tuple(f"v{n}" for n in range(listed)), "outside": outside})

    assert validate(span(x=spread(60_000, listed)), wanted) == ()


def test_a_long_list_without_a_share_says_that_rare_values_are_not_known():
    """Where none may be outside, it is not known whether one that the counters forgot was."""
    wanted = schema(x={"type": "string", "values": tuple(f"v{n}" for n in range(2000))})

    found = only_anomaly(span(x=spread(60_000, 2000)), wanted)

    assert found.message.startswith(
        "it has more than 1,536 different values, so rare ones that are not among the 2000 "
    )


@pytest.mark.parametrize(("values", "listed", "outside"), [(2500, 2400, 0.01), (2500, 2000, 0.1), (1600, 1500, 0.01)])
def test_values_outside_of_a_long_list_are_seen(values, listed, outside):
    """Counts that may each be too high do not make up for values that are outside of the list."""
    wanted = schema(x={"type": "string", "values": tuple(f"v{n}" for n in range(listed)), "outside": outside})

    found = only_anomaly(span(x=spread(60_000, values)), wanted)

    assert found.check is AnomalyCheck.VALUES
    assert found.message.startswith("about ")
    assert found.figures["share"] == pytest.approx(1 - listed / values, abs=0.02)


LONG = "https://example.org/" + "a" * 180


def test_long_texts_are_compared_to_their_end():
    """One that begins like an allowed text is not allowed; its message has as much of it as people read."""
    wanted = schema(x={"type": "string", "values": (LONG, LONG + "/good")})

    assert validate(span(x=[LONG, LONG + "/good"]), wanted) == ()
    found = only_anomaly(span(x=[LONG + "/good", LONG + "/evil"]), wanted)

    assert found.check is AnomalyCheck.VALUES
    assert f"are not among the 2 allowed: '{LONG}…' (1)." in found.message


def test_long_texts_are_compared_with_those_that_a_schema_was_inferred_from(tmp_path):
    """The schema has what they are known by, also when it was read from its file."""
    inferred = infer(span(x=[LONG + "/good"] * 20))
    (tmp_path / "schema.toml").write_text(inferred.toml())
    wanted = DataSchema.load(tmp_path / "schema.toml")

    assert validate(span(x=[LONG + "/good"] * 20), wanted) == ()
    assert only_anomaly(span(x=[LONG + "/evil"] * 20), wanted).check is AnomalyCheck.VALUES


def test_a_drift_between_long_texts_that_begin_alike_is_told():
    """They are different values."""
    wanted = schema(x={"type": "string", "drift": {"l_infinity": 0.1}})

    found = only_anomaly(span(x=[LONG + "/b"] * 100), wanted, span(x=[LONG + "/a"] * 100))

    assert f"the share of '{LONG}…' differs by 1.000" in found.message


def test_few_values_are_not_compared():
    """Distributions of less than a hundred values differ by chance, so nothing is said of them."""
    wanted = schema(x={"type": "string", "drift": {"l_infinity": 0.1}})

    assert validate(span(x=["a"] * 99), wanted, span(x=["b"] * 99)) == ()
    assert validate(span(x=["a"] * 100), wanted, span(x=["b"] * 100)) != ()


def test_skew_is_told_between_splits():
    """Two splits that differ are named."""
    wanted = schema(x={"type": "string", "skew": {"l_infinity": 0.1}})

    found = only_anomaly(span(split("train", x=["a"] * 100), split("eval", x=["b"] * 100)), wanted)

    assert found.check is AnomalyCheck.SKEW
    assert "between the splits train and eval" in found.message


def test_the_worst_comes_first():
    """Errors stand before warnings, and the worst severity is that of the span."""
    wanted = DataSchema(
        severity={AnomalyCheck.NEW_COLUMN: Severity.WARNING}, features={"x": FeatureSchema(type="int64", max=1)}
    )

    found = validate(span(a=[1], x=[5]), wanted)

    assert [a.severity for a in found] == [Severity.ERROR, Severity.WARNING]
    assert worst(found) is Severity.ERROR
    assert worst(()) is None


def test_anomalies_are_read_as_they_were_written(tmp_path):
    """The file has all that is known of an anomaly, in JSON."""
    found = validate(span(x=[1, 20], ü=[1]), schema(x={"max": 9}))

    write(found, tmp_path / "anomalies.json")

    assert read(tmp_path / "anomalies.json") == found
    assert json.loads((tmp_path / "anomalies.json").read_text())["anomalies"][0]["feature"] == "x"


def test_a_damaged_file_of_anomalies_is_named(tmp_path):
    """What is no list of anomalies is refused."""
    (tmp_path / "anomalies.json").write_text("{}")

    with pytest.raises(InputError, match=r"anomalies\.json"):
        read(tmp_path / "anomalies.json")


def test_an_anomaly_reads_as_a_sentence():
    """It says how bad, where and what."""
    found = Anomaly(check=AnomalyCheck.RANGE, severity=Severity.ERROR, feature="x", split="train", message="too far.")

    assert str(found) == "error: x of split train: too far."


class Train(Component):
    """Stands for what comes after."""

    def run(self, examples: Input[ExamplesArtifact], report: Output[Report]) -> None:
        (report.path / "trained").touch()


GOOD = {"train": {"delay": list(range(100)) * 2, "carrier": ["AA", "DL"] * 100}}
DRIFTED = {"train": {"delay": list(range(100)) * 2, "carrier": ["AA"] * 199 + ["DL"]}}
BAD = {"train": {"delay": [10**6] * 200, "carrier": ["XX", "DL"] * 100}}
ROWS = {3: GOOD, 4: GOOD, 5: DRIFTED, 6: BAD, 8: DRIFTED}


def nodes(stop_at="error"):
    """The pipeline up to a trainer that waits for the gate."""
    day = Day(rows=ROWS)
    statistics = StatisticsGen(examples=day["examples"])
    known = Latest(past("SchemaGen", "schema", Schema))
    schema_gen = SchemaGen(statistics=statistics["statistics"], curated=known["schema"], settled_after=1)
    before = Previous(statistics["statistics"])
    validator = ExampleValidator(
        statistics=statistics["statistics"], schema=schema_gen["schema"], previous=before["statistics"]
    )
    gate = AnomalyGate(examples=day["examples"], anomalies=validator["anomalies"], stop_at=stop_at)
    train = Train(examples=gate["examples"])
    return [day, statistics, known, schema_gen, before, validator, gate, train]


def test_a_bad_span_stops_the_run_before_training_and_leaves_its_report(tmp_path):
    """The gate fails with the anomalies and the report in its message; the report is published, training skipped."""
    bench = Bench(tmp_path)
    bench.run(*nodes(), span=3)

    outcome = bench.run(*nodes(), span=6)

    anomalies = only(outcome.executions["ExampleValidator"], "anomalies")
    error = outcome.executions["AnomalyGate"].error
    assert (outcome.failed, outcome.skipped) == (("AnomalyGate",), ("Train",))
    assert "span 6 has 1 anomaly of severity error or worse:\n  error: delay of split train: values range" in error
    assert f"{anomalies.path}/anomalies.html" in error
    assert "<svg" in (anomalies.path / "anomalies.html").read_text()
    assert (anomalies.properties["span"], anomalies.properties["severity"]) == (6, "error")


def test_the_severity_that_stops_is_a_parameter(tmp_path):
    """A drift is a warning: it stops only a gate that is told to stop at warnings."""
    bench = Bench(tmp_path)
    bench.run(*nodes(), span=4)

    patient = bench.run(*nodes(), span=5)
    strict = bench.run(*nodes(stop_at="warning"), span=5)

    assert patient.succeeded
    assert strict.failed == ("AnomalyGate",)
    assert "carrier: the share of 'AA' differs by 0.495 from the span before" in strict.executions["AnomalyGate"].error


def test_a_span_is_compared_with_the_one_before_it(tmp_path):
    """A backfilled span is held against the span before it, not against the newest."""
    bench = Bench(tmp_path)
    for number in (3, 8):
        bench.run(*nodes(), span=number)

    outcome = bench.run(*nodes(), span=4)

    anomalies = only(outcome.executions["ExampleValidator"], "anomalies")
    (compared,) = outcome.executions["ExampleValidator"].inputs["previous"]
    assert compared.properties["span"] == 3
    assert anomalies.properties["found"] == 0


def test_the_first_run_has_nothing_odd(tmp_path):
    """A pipeline that has never run infers its schema, and passes its own gate at the strictest."""
    outcome = Bench(tmp_path).run(*nodes(stop_at="info"), span=3)

    assert outcome.succeeded
    assert outcome.executions["Train"].state is State.COMPLETE


def test_a_curated_schema_is_what_a_span_is_held_against(tmp_path):
    """A schema from a file decides what is odd."""
    (tmp_path / "schema.toml").write_text("[features.delay]\ntype = 'int64'\nmax = 10\n")
    day = Day(rows=ROWS)
    statistics = StatisticsGen(examples=day["examples"])
    curated = Importer(uri=str(tmp_path / "schema.toml"), kind=Schema)
    validator = ExampleValidator(statistics=statistics["statistics"], schema=curated["artifact"])

    outcome = Bench(tmp_path / "root").run(day, statistics, curated, validator, span=3)

    found = read(only(outcome.executions["ExampleValidator"], "anomalies").path / "anomalies.json")
    assert [(a.severity.value, a.feature) for a in found] == [("error", "delay"), ("info", "carrier")]
