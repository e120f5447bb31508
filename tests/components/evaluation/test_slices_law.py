"""The law of slices: rows are in one slice if and only if they have one value, of whatever type the column is.

Windows are drawn from a seed. SPANWISE_TEST_SLICES is their number; thousands find what is rare.
"""

import json
import os
from collections import Counter
from random import Random

import pyarrow as pa
import pytest

from spanwise.components.evaluation.results import plain_slice
from spanwise.orchestrator import ParameterError
from tests.components.evaluation.test_measurement import answer
from tests.components.flow import written
from tests.components.ingest.generated import (
    build,
    canonical_value,
    draw_type,
    draw_value,
    has_missing_fixed_list,
)
from tests.components.statistics.test_statistics_law import is_stored

WINDOWS = int(os.environ.get("SPANWISE_TEST_SLICES", "25"))


def draw_window(random):
    """A type, and the values of each span; None for a span that lacks the column."""
    type_ = draw_type(random, random.choice([0, 0, 1]))
    while not is_stored(type_):
        type_ = draw_type(random, 0)
    spans = [[draw_value(random, type_) for _ in range(random.choice([1, 3, 9]))] for _ in range(random.choice([1, 2]))]
    if any(has_missing_fixed_list(value, type_) for values in spans for value in values):
        return draw_window(random)
    return type_, spans, len(spans) > 1 and random.random() < 0.2


def name_value(value, type_):
    """What tells a value from others; 0.0 and -0.0 are one."""
    found = json.dumps(canonical_value(value, type_), default=repr)
    return '"0.0"' if found == '"-0.0"' else found


@pytest.mark.parametrize("memory_rows", [10**6, 0])
def test_a_slice_is_the_rows_of_one_value(tmp_path, memory_rows):
    """Over batches and spans, one of which may lack the column; no two slices have one name, and null is what is missing."""
    for seed in range(WINDOWS):
        random = Random(f"slices {seed}")
        type_, spans, is_lacking = draw_window(random)
        examples, values = [], []
        for number, found in enumerate(spans):
            half = [0.5] * len(found)
            table = pa.table({"y": half, "new": half, "o": build(found, type_)})
            lacks = is_lacking and number == 1
            values += [None] * len(found) if lacks else found
            table = table.drop_columns("o") if lacks else table
            examples.append(written(tmp_path / f"{seed}-{number}", number, {"eval": table}))
        asked = {"models": {"new": tmp_path / "new"}, "names": ("count", "mae"), "replicates": 0}
        try:
            found = answer(
                examples, slicings=(("o",),), memory_rows=memory_rows, batch_rows=random.choice([1, 4, 99]), **asked
            ).slices[0]
        except ParameterError:
            assert pa.types.is_nested(type_), (seed, type_, spans)
            assert "[ns" in str(type_), (seed, type_, spans)
            continue
        names = [json.dumps(plain_slice(each)) for each in found.groups]
        assert sorted(found.sizes) == sorted(Counter(name_value(v, type_) for v in values).values()), (
            seed,
            type_,
            spans,
        )
        assert len(set(names)) == len(names), (seed, type_, names)
        assert ('{"o": null}' in names) == (None in values), (seed, type_, names)
