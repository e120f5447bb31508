"""The law of statistics: what is counted of columns of any type is what Python counts of their values, one by one.

Tables of one to three spans are drawn from a seed, with a column that some of them lack, and rows of any weight.
SPANWISE_TEST_STATISTICS is the number of tables; thousands find what is rare.
"""

import datetime as dt
import math
import os
from collections import Counter
from fractions import Fraction
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components.statistics.span_statistics import SpanStatistics, merge
from spanwise.components.statistics.statistics_gen import count
from spanwise.components.statistics.statistics_page import page
from tests.components.ingest.generated import build, draw_type, draw_value, has_missing_fixed_list

TABLES = int(os.environ.get("SPANWISE_TEST_STATISTICS", "40"))


class Places:
    """What Python knows of one feature: the values that stand in its places, None where one is missing."""

    def __init__(self, type_, values):
        self.type = type_
        self.count = len(values)
        self.there = [value for value in values if value is not None]

    @property
    def numbers(self):
        """The finite numbers, NaN and infinities apart; None of what has none."""
        types = pa.types
        if types.is_floating(self.type) or types.is_integer(self.type) or types.is_temporal(self.type):
            return self.there
        if types.is_boolean(self.type):
            return [int(value) for value in self.there]
        return [float(value) for value in self.there] if types.is_decimal(self.type) else None

    @property
    def lengths(self):
        types = pa.types
        plain = types.is_string(self.type) or types.is_binary(self.type) or types.is_fixed_size_binary(self.type)
        return [len(value) for value in self.there] if plain or types.is_list(self.type) or _is_fixed(self) else None

    @property
    def texts(self):
        """As frequent values are known; None of what has none."""
        types = pa.types
        if types.is_boolean(self.type):
            return [str(value).lower() for value in self.there]
        if types.is_date(self.type):
            return [(dt.date(1970, 1, 1) + dt.timedelta(days=value)).isoformat() for value in self.there]
        return [str(each) for each in self.there] if types.is_integer(self.type) or types.is_string(self.type) else None


def _is_fixed(places):
    return pa.types.is_fixed_size_list(places.type) or pa.types.is_map(places.type)


def list_features(name, type_, values):
    """Each feature of a column, with those within it."""
    yield name, Places(type_, values)
    there = [value for value in values if value is not None]
    types = pa.types
    if types.is_map(type_):
        pairs = [{"key": k, "value": v} for value in there for k, v in value]
        yield from list_features(f"{name}[]", pa.struct([type_.key_field, type_.item_field]), pairs)
    elif types.is_nested(type_) and not types.is_struct(type_):
        yield from list_features(f"{name}[]", type_.value_type, [each for value in there for each in value])
    elif types.is_struct(type_):
        for field in type_:
            yield from list_features(f"{name}.{field.name}", field.type, [value[field.name] for value in there])


def check(feature, places):
    """Compares what was counted of a feature with what Python knows of it."""
    assert (feature.count, feature.missing) == (places.count, places.count - len(places.there))
    numbers = places.numbers
    assert (feature.numbers is None) == (numbers is None or pa.types.is_null(places.type))
    if numbers is not None and feature.numbers is not None:
        finite = [each for each in numbers if math.isfinite(each)]
        assert feature.nan == sum(math.isnan(each) for each in numbers)
        assert feature.infinite == sum(math.isinf(each) for each in numbers)
        assert feature.zeros == (0 if feature.kind == "time" else finite.count(0))
        check_numbers(feature.numbers, finite)
        assert feature.unique == len({float(each) if isinstance(each, float) else each for each in finite})
    lengths = places.lengths
    assert (feature.lengths is None) == (lengths is None)
    if lengths is not None:
        check_numbers(feature.lengths, lengths)
    texts = places.texts
    assert (feature.frequent is None) == (texts is None)
    if texts is not None:
        assert {each.value: each.count for each in feature.top(None)} == Counter(texts)
        assert feature.unique == len(set(texts))


def check_numbers(found, finite):
    exact = [Fraction(each) for each in finite]
    assert found.count == len(exact)
    assert (found.least, found.greatest) == ((min(finite), max(finite)) if finite else (None, None))
    if not exact:
        assert math.isnan(found.mean)
        assert math.isnan(found.std)
        return
    mean = sum(exact) / len(exact)
    variance = sum((each - mean) ** 2 for each in exact) / len(exact)
    assert found.mean == float(mean)
    assert abs(Fraction(found.std) ** 2 - variance) <= variance / 2**50 + Fraction(1, 2**1100)
    ordered = sorted(map(float, finite))
    for share in (0.0, 0.25, 0.5, 1.0):
        rank = max(1, math.ceil(Fraction(share) * len(ordered)))
        assert found.quantile(share) == ordered[rank - 1]


def draw_spans(random):
    """The types of columns, and of each span its rows: values by column; a column may be absent."""
    names = ["a", "b"][: random.choice([1, 2])]
    types = {}
    for name in names:
        type_ = draw_type(random)
        while not is_stored(type_):
            type_ = draw_type(random)
        types[name] = type_
    spans = []
    for _ in range(random.choice([1, 2, 3])):
        rows = random.choice([0, 1, 2, 7])
        there = [name for name in names if random.random() < 0.9]
        spans.append((rows, {name: [draw_value(random, types[name]) for _ in range(rows)] for name in there}))
    return types, spans


def is_stored(type_):
    """Whether examples have columns of this type, rather than of one that it is made."""
    types = pa.types
    text = str(type_)
    odd = ("dictionary", "large", "view", "date64", "[s]", "[s,", "null")
    return not any(each in text for each in odd) and not (types.is_decimal256(type_) and type_.precision <= 38)


def test_statistics_are_those_that_python_counts(tmp_path):
    """Of every type and at every depth, of rows in any row groups, of spans that are merged and read again."""
    for seed in range(TABLES):
        random = Random(f"statistics {seed}")
        types, spans = draw_spans(random)
        try:
            check_spans(random, types, spans, tmp_path / str(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}: {types} {spans}")
            raise


def check_spans(random, types, spans, place):
    counted, known = [], []
    for number, (rows, values) in enumerate(spans):
        if any(has_missing_fixed_list(v, types[name]) for name, each in values.items() for v in each):
            return
        weights = [random.choice([0.0, 1.0, 0.5, 3.0]) for _ in range(rows)]
        table = pa.table({**{n: build(v, types[n]) for n, v in values.items()}, "w": pa.array(weights, pa.float64())})
        (place / f"s{number}").mkdir(parents=True)
        half = random.randrange(rows + 1)
        for file, part in enumerate((table.slice(0, half), table.slice(half))):
            pq.write_table(part, place / f"s{number}" / f"part-{file}.parquet", row_group_size=random.choice([1, 3]))
        found = count({"train": place / f"s{number}"}, scratch=place, weight="w")
        (place / f"out{number}").mkdir()
        found.write(place / f"out{number}")
        counted.append(SpanStatistics.load(place / f"out{number}"))
        known.append((rows, {**values, "w": weights}))
    assert page(merge(counted), title="a window")
    found = merge(counted).splits["train"]
    assert found.rows == sum(rows for rows, _ in known)
    features = {}
    for name, type_ in {**types, "w": pa.float64()}.items():
        if any(name in values for _, values in known):
            every = [each for rows, values in known for each in values.get(name, [None] * rows)]
            features |= dict(list_features(name, type_, every))
            check_weights(found.features[name], type_, every, [w for _, values in known for w in values["w"]])
    assert set(found.features) == set(features)
    for name, places in features.items():
        check(found.features[name], places)


def check_weights(feature, type_, values, weights):
    """Compares the weighted figures of a column with exact fractions."""
    pairs = [(value, Fraction(weight)) for value, weight in zip(values, weights, strict=True)]
    total = sum(weight for _, weight in pairs)
    missing = sum(weight for value, weight in pairs if value is None)
    assert feature.weighted.missing_share == pytest.approx(float(missing / total) if total else 0.0, rel=1e-12)
    if feature.numbers is None:
        return
    numbers = zip(
        Places(type_, [v for v, _ in pairs if v is not None]).numbers,
        (w for v, w in pairs if v is not None),
        strict=True,
    )
    counted = [(Fraction(value), weight) for value, weight in numbers if weight and math.isfinite(value)]
    weight = sum(weight for _, weight in counted)
    if not weight:
        assert math.isnan(feature.weighted.mean)
        return
    mean = sum(value * weight for value, weight in counted) / weight
    far = max(abs(float(value)) for value, _ in counted)
    assert feature.weighted.mean == pytest.approx(float(mean), rel=1e-12, abs=far * 1e-14)
    variance = sum((value - mean) ** 2 * weight for value, weight in counted) / weight
    assert abs(Fraction(feature.weighted.std) ** 2 - variance) <= variance / 10**9 + Fraction(far * 1e-14) ** 2
