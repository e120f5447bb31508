"""The law of served types: a column of another type than in training means the same, value by value, or is refused.

Pairs of types are drawn from a seed. SPANWISE_TEST_SERVED_TYPES is the number of pairs; thousands find what is rare.
"""

import math
import os
from fractions import Fraction
from random import Random

import polars as pl
import pyarrow as pa
import pytest

from spanwise.components.transform.analyzers import PreprocessingError
from spanwise.components.transform.graph import Preprocessor
from spanwise.components.transform.standalone import extract_source
from tests.components.ingest.generated import build, draw_value, raw_values

PAIRS = int(os.environ.get("SPANWISE_TEST_SERVED_TYPES", "250"))

_NUMBERS = [pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64(), pa.float32(), pa.float64()]
_ZONES = (None, "UTC", "Asia/Kolkata")
_MOMENTS = [pa.date32(), *(pa.timestamp(unit, zone) for unit in ("ms", "us", "ns") for zone in _ZONES)]
_OTHERS = [pa.string(), pa.bool_(), pa.binary(), pa.time64("us"), pa.duration("us")]


def as_it_is(columns):
    return {"x": columns["x"]}


def draw_alike(random):
    """Two types that are probably of one kind, both plain, or both nested in some way."""
    one, other = random.choices(random.choice([_NUMBERS, _MOMENTS, _NUMBERS + _MOMENTS + _OTHERS]), k=2)
    if random.random() < 0.7:
        return one, other
    nests = [pa.list_, lambda t: pa.list_(t, 1), lambda t: pa.struct({"a": t}), lambda t: pa.struct({"b": t, "a": t})]
    return random.choice(nests)(one), random.choice(nests)(other)


def meaning(value, type_):
    """What a value says, whatever its type: a number, a moment, what a clock on the wall shows."""
    types = pa.types
    if value is None:
        return None
    if types.is_struct(type_):
        return {field.name: meaning(value[field.name], field.type) for field in type_}
    if types.is_nested(type_):
        return [meaning(each, type_.value_type) for each in value]
    if types.is_temporal(type_):
        unit = 86_400 * 10**9 if types.is_date(type_) else {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[type_.unit]
        kind = "moment" if getattr(type_, "tz", None) else "".join(filter(str.isalpha, str(type_).partition("[")[0]))
        return kind.replace("timestamp", "date"), value * unit
    if types.is_boolean(type_) or not isinstance(value, int | float):
        return str(type_), value
    return Fraction(value) if math.isfinite(value) else repr(value)


def test_a_column_of_another_type_means_the_same_or_is_refused():
    """Numbers stay these numbers, and moments these moments; a time without a zone is none, also within a struct."""
    accepted = 0
    for seed in range(PAIRS):
        random = Random(f"served {seed}")
        trained, served = draw_alike(random)
        few = [draw_value(random, served) for _ in range(random.choice([1, 1, 2]))]
        if pa.types.is_fixed_size_list(served) and None in few:
            continue
        schema = pl.from_arrow(pa.table({"x": build([], trained)})).schema
        graph = Preprocessor.of(extract_source(as_it_is), "as_it_is", schema, {})
        try:
            found = graph.apply(pa.table({"x": build(few, served)}))["x"]
        except PreprocessingError:
            assert trained != served, (seed, trained, few)
            continue
        wanted = [meaning(value, served) for value in few]
        assert [meaning(value, found.type) for value in raw_values(found)] == wanted, (seed, trained, served, few)
        assert found.type == graph.apply(pa.table({"x": build([], trained)}))["x"].type, (seed, trained, served)
        accepted += 1
    assert accepted > PAIRS / 5


@pytest.mark.parametrize("made", [pa.table, pa.RecordBatch.from_pydict])
def test_columns_that_no_feature_is_made_of_may_have_types_that_polars_does_not_read(made):
    """They are in the examples as they were in training, where they were left out with a warning."""
    graph = Preprocessor.of(extract_source(as_it_is), "as_it_is", {"x": pl.Int64()}, {}, {"big": "decimal256(70, 0)"})
    rows = made({"big": pa.array([1], pa.decimal256(70, 0)), "x": pa.array([7])})

    assert graph.apply(rows)["x"].to_pylist() == [7]
    with pytest.raises(PreprocessingError, match="Polars cannot read one of the columns x"):
        graph.apply(made({"x": pa.array([1], pa.decimal256(70, 0))}))
