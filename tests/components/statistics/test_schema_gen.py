"""SchemaGen: sensible schemas from statistics, and curated ones as they are."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from spanwise.components import ExampleValidator, Importer, SchemaGen, StatisticsGen
from spanwise.components.statistics.anomalies import validate
from spanwise.components.statistics.schema import AnomalyCheck, DataSchema, Distance, FeatureSchema
from spanwise.components.statistics.schema_gen import infer, merge_newest
from spanwise.components.statistics.span_statistics import SpanStatistics, SplitCounts, count_column
from spanwise.orchestrator import Schema, State, past
from spanwise.resolvers import Latest, Previous
from tests.components.day import Day
from tests.components.flow import Bench, only


def statistics(**columns):
    """Statistics of one split with these columns."""
    found = {f.name: f for name, values in columns.items() for f in count_column(name, pa.array(values))}
    return SpanStatistics(
        splits={"train": SplitCounts(name="train", rows=len(next(iter(columns.values()))), features=found)}
    )


def inferred(values, **settings):
    """What is inferred of one column."""
    return infer(statistics(x=values), **settings).features["x"]


def test_a_column_of_few_texts_has_a_domain():
    """The values of a text with few of them are listed, in order."""
    found = inferred(["b", "a"] * 50)

    assert found.values == ("a", "b")
    assert found.drift == Distance(l_infinity=0.2)


@pytest.mark.parametrize(
    "values",
    [
        [f"id {i}" for i in range(1000)],  # more than max_values
        ["a", "b", "c"],  # too few of each
        [None] * 10,
    ],
)
def test_texts_without_a_clear_domain_have_none(values):
    """Where rarer values are likely to follow, no list is inferred."""
    assert infer(statistics(x=pa.array(values, pa.string()))).features["x"].values is None


def test_how_many_values_may_be_listed_is_a_parameter():
    """`max_values` bounds the list."""
    assert inferred(["b", "a"] * 50, max_values=1).values is None


def test_numbers_have_a_range_that_allows_as_much_again():
    """A range is widened by its own width, without crossing zero; doubles are rounded outwards."""
    assert (inferred([10, 20]).min, inferred([10, 20]).max) == (0, 30)
    assert (inferred([-5, 5]).min, inferred([-5, 5]).max) == (-15, 15)
    assert (inferred([-20.0, -10.0]).min, inferred([-20.0, -10.0]).max) == (-30.0, 0.0)
    assert (inferred([0.0, 0.123]).min, inferred([0.0, 0.123]).max) == (0.0, 0.25)


def test_a_narrow_range_of_great_numbers_stays_narrow():
    """Doubles are rounded to two digits of the width, not of the number: a pressure of 1013 ± 5 is not 990 to 1100."""
    assert (inferred([1008.0, 1018.2]).min, inferred([1008.0, 1018.2]).max) == (997.0, 1029.0)
    day = inferred([1.7776e9 + 0.25, 1.7776e9 + 86399.75])
    assert (day.min, day.max) == (1.7776e9 - 87000, 1.7776e9 + 173000)
    assert (inferred([0.0, 5e-324]).min, inferred([0.0, 5e-324]).max) == (0.0, 1e-323)
    assert (inferred([-1e308, 1e308]).min, inferred([-1e308, 1e308]).max) == (None, None)


def test_a_constant_has_no_range_and_no_drift():
    """A number that is the same in all rows is most likely the date, which will change."""
    assert inferred([2013] * 200) == FeatureSchema(type="int64", present=0.95)


def test_identifiers_have_no_range_and_no_drift():
    """Whole numbers that are nearly all different grow from span to span; doubles that are, do not."""
    assert inferred(list(range(1000))) == FeatureSchema(type="int64", present=0.95)
    assert inferred([i / 7 for i in range(1000)]).max is not None


def test_twice_the_missing_share_may_be_missing():
    """What is missing may be missing twice as often, and five percent more."""
    assert inferred([None, 1, 2, 3, 4, 5, 6, 7, 8, 9]).present == 0.75
    assert inferred([None, 1, 2]).present == 0.28
    assert inferred([None, None, None, 1]).present == 0.0


def checks(found, *spans):
    """The anomalies of a span by what the spans before it suggest."""
    merged, taken = merge_newest(spans)
    return [(a.feature, a.check) for a in validate(found, infer(merged, spans=taken))]


def test_a_column_that_often_lacks_values_and_suddenly_has_none_is_an_anomaly():
    """Some are always there, however many are missing: not fewer than usual, but none at all is a missing column."""
    often = [statistics(x=["a"] * some + [None] * (100 - some)) for some in (40, 30, 50)]

    assert inferred(["a"] * 30 + [None] * 70).present == 0.03
    assert checks(statistics(x=["a"] * 5 + [None] * 95), *often) == []
    assert checks(statistics(x=pa.nulls(100, pa.string())), *often) == [("x", AnomalyCheck.MISSING_COLUMN)]


def test_a_new_column_that_suddenly_has_no_value_is_an_anomaly():
    """Spans from before it was there say nothing of how much of it may be missing."""
    spans = [statistics(x=[1] * 100)] * 5 + [statistics(x=[1] * 100, y=["a"] * 100)]

    assert checks(statistics(x=[1] * 100, y=pa.nulls(100, pa.string())), *spans) == [("y", AnomalyCheck.MISSING_COLUMN)]


def test_a_column_that_had_no_values_in_a_split_or_few_may_have_none():
    """A split without labels is regular; that a column had ten values in no split says that it may have none."""
    label, rare = pa.array(["a"] * 100), pa.array(["a"] * 9 + [None] * 91)
    train, test = statistics(label=label, rare=rare), statistics(label=pa.nulls(100, pa.string()), rare=rare)
    span = SpanStatistics(splits={**train.splits, "test": replace(test.splits["train"], name="test")})

    assert checks(statistics(label=pa.nulls(100, pa.string()), rare=pa.nulls(100, pa.string())), span) == []


def test_nan_is_allowed_where_it_was():
    """A column with NaN may have NaN; one without may not."""
    assert not inferred([1.0, math.nan]).finite
    assert inferred([1.0, 2.0]).finite


def test_lists_have_their_lengths():
    """Lists of one length keep it; lists that are never empty stay so."""
    schema = infer(statistics(same=[[1, 2], [3, 4]], some=[[1], [1, 2]], any=[[], [1]]))

    assert (schema.features["same"].min_length, schema.features["same"].max_length) == (2, 2)
    assert (schema.features["some"].min_length, schema.features["some"].max_length) == (1, None)
    assert (schema.features["any"].min_length, schema.features["any"].max_length) == (None, None)


def test_lists_and_structs_that_were_empty_may_be_filled():
    """Nothing is known of what they would hold: neither its type, nor how much of it is missing, nor how long it is."""
    empty = statistics(tags=pa.array([[]], pa.list_(pa.null())), place=pa.array([{"x": 1, "note": None}] * 9))
    filled = statistics(tags=[["a", None, "b"], []], place=[{"x": 2, "note": "hm"}, {"x": 1, "note": "no"}])

    assert checks(filled, empty) == []
    assert checks(empty, filled) == [("place.note", AnomalyCheck.MISSING_COLUMN)]
    assert checks(filled, empty, filled, empty) == []
    assert checks(statistics(tags=[[1]], place=[{"x": 1, "note": "hm"}]), empty, filled) == [
        ("tags", AnomalyCheck.TYPE),
        ("tags[]", AnomalyCheck.TYPE),
    ]


def test_every_kind_of_column_can_be_inferred():
    """Whatever the columns, what is inferred of a span finds nothing odd in it."""
    rng = np.random.default_rng(0)
    found = statistics(
        null=pa.nulls(300),
        huge=[2**63 - 1, -(2**63)] * 150,
        wide=[1.7e308, -1.7e308] * 150,
        tiny=[5e-324, 1e-323] * 150,
        odd=[math.nan, math.inf, 1.0] * 100,
        texts=[f"ü {i}" for i in range(300)],
        blob=[b"\xff"] * 300,
        when=pa.array(range(300), pa.timestamp("us")),
        nested=[{"a": [1], "b": None}] * 300,
        flag=[True, False, None] * 100,
        one=rng.normal(size=300),
    )

    assert validate(found, infer(found), previous=found) == ()


def test_what_is_inferred_is_written_and_read(tmp_path):
    """The file of an inferred schema holds all of it."""
    schema = infer(statistics(x=[1, 2], y=["a", None], z=[1e300, -1e300]))
    (tmp_path / "schema.toml").write_text(schema.toml())

    assert DataSchema.load(tmp_path) == schema


ROWS = {
    1: {"train": {"x": list(range(100)) * 2}},
    2: {"train": {"x": list(range(5000, 5100)) * 2}},
}


def pipeline(curated):
    """The nodes up to the schema."""
    day = Day(rows=ROWS)
    statistics_gen = StatisticsGen(examples=day["examples"])
    resolver = curated()
    schema = SchemaGen(statistics=statistics_gen["statistics"], curated=next(iter(resolver.outputs.values())))
    return [day, statistics_gen, resolver, schema]


def test_the_first_schema_holds_for_later_spans(tmp_path):
    """Given on by `Latest`, what the first span suggested is what later spans are held against."""
    bench = Bench(tmp_path)

    def nodes():
        return pipeline(lambda: Latest(past("SchemaGen", "schema", Schema)))

    first = only(bench.run(*nodes(), span=1).executions["SchemaGen"], "schema")
    second = only(bench.run(*nodes(), span=2).executions["SchemaGen"], "schema")

    assert DataSchema.load(first.path).features["x"].max == 198
    assert DataSchema.load(second.path) == DataSchema.load(first.path)


def test_a_curated_schema_wins_and_keeps_its_comments(tmp_path):
    """A file from git is published to the byte."""
    curated = tmp_path / "flights.toml"
    curated.write_text("# mind the gap\n[features.x]\ntype = 'int64'\n")

    made = Bench(tmp_path).run(*pipeline(lambda: Importer(uri=str(curated), kind=Schema)), span=1)

    assert (only(made.executions["SchemaGen"], "schema").path / "schema.toml").read_text() == curated.read_text()


def test_a_curated_schema_with_a_fault_stops_the_node(tmp_path):
    """A fault in the file is found before anything is held against it."""
    curated = tmp_path / "flights.toml"
    curated.write_text("[features.x]\n")

    made = Bench(tmp_path).run(*pipeline(lambda: Importer(uri=str(curated), kind=Schema)), span=1)

    assert made.executions["SchemaGen"].state is State.FAILED
    assert "features.x.type: Field required" in made.executions["SchemaGen"].error


def wide(curated=None, settled_after=3):
    """The nodes up to the anomalies of a span, with a schema inferred from the spans before it."""
    day = Day(rows={n: {"train": {"x": [*range(100)] * 2}} for n in range(1, 9)} | {9: {"train": {"x": [900] * 200}}})
    counted = StatisticsGen(examples=day["examples"])
    earlier = Previous(counted["statistics"], n=5, name="Earlier")
    schema = SchemaGen(statistics=counted["statistics"], earlier=earlier["statistics"], settled_after=settled_after)
    validator = ExampleValidator(statistics=counted["statistics"], schema=schema["schema"])
    return [day, counted, earlier, schema, validator]


@pytest.mark.parametrize(("before", "severity"), [(1, "warning"), (2, "warning"), (3, "error"), (7, "error")])
def test_a_range_from_few_spans_warns_and_becomes_an_error(tmp_path, before, severity):
    """Inferred from the accepted spans before, it is no law until `settled_after` of them agree."""
    bench = Bench(tmp_path)
    for span in range(1, before + 1):
        assert bench.run(*wide(), span=span).succeeded

    made = bench.run(*wide(), span=9).executions

    found = only(made["ExampleValidator"], "anomalies")
    text = (only(made["SchemaGen"], "schema").path / "schema.toml").read_text()
    assert found.properties["severity"] == severity
    assert ("# Inferred from" in text) == (severity == "warning")


def test_types_and_missing_columns_are_errors_from_the_first_span_on():
    """A column that is gone, that has another type, or that is blank, is no matter of how many spans were seen."""
    schema = infer(statistics(x=[1, 2], y=["a", "b"], z=[1, 2]), settled=False)

    found = validate(statistics(y=[1, 2], z=pa.nulls(2, pa.int64())), schema)

    assert [(a.feature, a.check.value, a.severity.value) for a in found] == [
        ("x", "missing_column", "error"),
        ("y", "type", "error"),
        ("z", "missing_column", "error"),
    ]


def test_a_column_that_the_newest_span_no_longer_has_may_be_absent():
    """Once a span without it was accepted, its absence is no anomaly."""
    merged, spans = merge_newest([statistics(x=[1], y=[2]), statistics(x=[1], y=[2]), statistics(x=[1])])

    schema = infer(merged, spans=spans)

    assert len(spans) == 3
    assert (schema.features["x"].column, schema.features["y"].column) == (True, False)


def test_spans_before_a_change_of_type_are_left_out():
    """The newest spans that fit together suggest the schema."""
    merged, spans = merge_newest([statistics(x=["a"]), statistics(x=[1]), statistics(x=[50])])

    assert len(spans) == 2
    assert infer(merged).features["x"].type == "int64"


def test_spans_before_a_change_of_type_are_left_out_whatever_their_splits_are_called():
    """A split that only older spans have is of the same columns as the splits of today."""
    old = statistics(x=["a"]).splits["train"]
    renamed = SpanStatistics(splits={"learn": replace(old, name="learn")})

    merged, spans = merge_newest([renamed, statistics(x=[1])])

    assert len(spans) == 1
    assert infer(merged).features["x"].type == "int64"


def test_what_a_person_wrote_is_an_error_at_once(tmp_path):
    """A curated schema keeps its severities, whatever the number of spans."""
    curated = tmp_path / "flights.toml"
    curated.write_text("format = 1\n[features.x]\ntype = 'int64'\nmax = 10\n")

    made = Bench(tmp_path).run(*pipeline(lambda: Importer(uri=str(curated), kind=Schema)), span=1)

    schema = DataSchema.load(only(made.executions["SchemaGen"], "schema").path)
    assert schema.severity_of(AnomalyCheck.RANGE).value == "error"
