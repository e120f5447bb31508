"""The law of anomalies: what is found of a span is what Python finds in its values, by a schema that is drawn for them.

Spans of a column of any type are drawn from a seed. SPANWISE_TEST_ANOMALIES is their number; thousands find what is rare.
"""

import math
import os
from fractions import Fraction
from random import Random

import pyarrow as pa

from spanwise.components.statistics.anomalies import read, validate, write
from spanwise.components.statistics.anomalies_page import page
from spanwise.components.statistics.schema import DataSchema, FeatureSchema
from spanwise.components.statistics.schema_gen import infer
from spanwise.components.statistics.span_statistics import SpanStatistics, SplitCounts, count_column
from spanwise.components.statistics.statistics_page import compare
from tests.components.ingest.generated import build, draw_type, draw_value, has_missing_fixed_list
from tests.components.statistics.test_statistics_law import is_stored, list_features

SPANS = int(os.environ.get("SPANWISE_TEST_ANOMALIES", "100"))


def draw_splits(random):
    """A type, and the values of one or two splits."""
    type_ = draw_type(random, 1)
    while not is_stored(type_):
        type_ = draw_type(random, 1)
    names = random.choice([["train"], ["train", "eval"]])
    splits = {
        name: [draw_value(random, type_, random.choice([0, 0.2, 1])) for _ in range(random.choice([0, 1, 3, 20]))]
        for name in names
    }
    odd = any(has_missing_fixed_list(value, type_) for values in splits.values() for value in values)
    return draw_splits(random) if odd else (type_, splits)


def count_splits(type_, splits):
    made = {}
    for name, values in splits.items():
        features = {f.name: f for f in count_column("x", build(values, type_))}
        made[name] = SplitCounts(name=name, rows=len(values), features=features)
    return SpanStatistics(splits=made)


def draw_schema(random, found, known):
    """What a feature should look like, by some of the keys that fit it, with bounds that are among its values."""
    features = {}
    for name, feature in next(iter(found.splits.values())).features.items():
        all_places = [places[name] for places in known.values()]
        said = {"type": feature.type, "present": random.choice([0.0, 0.5, 0.8, 1.0]), "outside": 0.0}
        numbers = [n for each in all_places for n in each.numbers or () if math.isfinite(n)]
        texts = sorted({text for each in all_places for text in each.texts or ()})
        lengths = [length for each in all_places for length in each.lengths or ()]
        if random.random() < 0.5:
            said["outside"] = random.choice([0.05, 0.1, 0.5, 1.0])
        if feature.numbers is not None:
            said["finite"] = random.random() < 0.5
        if feature.numbers is not None and numbers and random.random() < 0.5:
            said["min"], said["max"] = sorted(random.choices(numbers, k=2))
        if feature.frequent is not None and texts and random.random() < 0.5:
            said["values"] = tuple(random.sample(texts, random.randrange(1, len(texts) + 1)))
        if feature.lengths is not None and lengths and random.random() < 0.5:
            said["min_length"], said["max_length"] = sorted(random.choices(lengths, k=2))
        if random.random() < 0.9:
            features[name] = FeatureSchema(**said)
    return DataSchema(features=features)


def find_anomalies(schema, splits, known):
    """Check, feature and split of each anomaly, by the values themselves."""
    for split, values in splits.items():
        if not values:
            yield "empty_split", "", split
            continue
        for name, places in known[split].items():
            if name in schema.features:
                yield from ((check, name, split) for check in find_departures(schema.features[name], places))
            else:
                yield "new_column", name, split


def find_departures(wanted, places):
    there = len(places.there)
    missing = places.count - there
    if not there:
        if places.count and wanted.present > 0:
            yield "missing_column"
        return
    if missing and is_more(missing, places.count, 1 - Fraction(str(wanted.present))):
        yield "missing_values"
    numbers = places.numbers or []
    finite = [number for number in numbers if math.isfinite(number)]
    if wanted.finite and len(finite) < len(numbers):
        yield "not_finite"
    if wanted.min is not None:
        outside = sum(not wanted.min <= number <= wanted.max for number in finite)
        if outside and is_more(outside, len(finite), Fraction(str(wanted.outside))):
            yield "range"
    if wanted.values is not None:
        outside = sum(text not in wanted.values for text in places.texts)
        if outside and is_more(outside, there, Fraction(str(wanted.outside))):
            yield "values"
    if wanted.min_length is not None:
        lengths = places.lengths
        yield from ["length"] * ((min(lengths) < wanted.min_length) + (max(lengths) > wanted.max_length))


def is_more(count, places, allowed):
    return Fraction(count, places) > allowed


def test_anomalies_are_those_that_python_finds(tmp_path):
    """Of every type and at every depth; the schema is written and read, and so are the anomalies, which have a page."""
    before = None
    for seed in range(SPANS):
        random = Random(f"anomalies {seed}")
        type_, splits = draw_splits(random)
        statistics = count_splits(type_, splits)
        known = {split: dict(list_features("x", type_, values)) for split, values in splits.items()}
        schema = draw_schema(random, statistics, known)
        try:
            (tmp_path / "schema.toml").write_text(schema.toml(), encoding="utf-8")
            found = validate(statistics, DataSchema.load(tmp_path / "schema.toml"))

            told = sorted((each.check.value, each.feature, each.split) for each in found)
            assert told == sorted(find_anomalies(schema, splits, known))
            write(found, tmp_path / "anomalies.json")
            assert read(tmp_path / "anomalies.json") == found
            html = page(found, statistics, before, title="now", before="before")
            assert html.count("<tr>") > len(found) or not found
            assert before is None or compare(before, statistics)
        except BaseException as error:
            error.add_note(f"seed {seed}: {type_} {splits} {schema}")
            raise
        before = statistics  # of another type: the page shows both, and draws nothing of them beside each other


def test_what_is_inferred_of_a_span_finds_nothing_odd_in_its_splits():
    """Of every type, also where one split alone lacks values; a split without rows is odd by itself."""
    for seed in range(SPANS):
        type_, splits = draw_splits(Random(f"inferred {seed}"))
        statistics = count_splits(type_, splits)

        found = validate(statistics, infer(statistics), statistics)

        assert {each.check.value for each in found} <= {"empty_split", "skew"}, (seed, type_, splits, found)


def test_times_of_other_units_have_not_drifted():
    """Their numbers are others by a thousand; that the type has changed is told by itself."""
    moments = [10**15 + 10**9 * number for number in range(200)]
    now, before = (
        count_splits(pa.timestamp(unit), {"train": [moment // step for moment in moments]})
        for unit, step in (("us", 1), ("ms", 1000))
    )
    schema = DataSchema(features={"x": FeatureSchema(type="timestamp[us]", drift={"jensen_shannon": 0.1})})

    assert validate(now, schema, before) == ()
    assert [each.check.value for each in validate(before, schema, now)] == ["type"]
