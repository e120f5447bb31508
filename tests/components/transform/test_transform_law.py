"""The law of transforms: features are what Python computes of the rows of a window, in bulk and row by row.

Windows are drawn from a seed: spans of no rows and of one, ties, NaN, infinities, texts that differ in their bytes alone,
weights of 0. SPANWISE_TEST_TRANSFORMS is the number of windows; hundreds find what is rare.
"""

import math
import os
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from random import Random

import polars as pl
import pyarrow as pa

from spanwise.components.transform.graph import Preprocessor
from spanwise.components.transform.preprocessing import (
    bucketize,
    impute_mean,
    one_hot,
    quantile,
    vocabulary,
)
from spanwise.components.transform.window_transform import transform_window
from tests.components.transform.test_window_transform import Windows

WINDOWS = int(os.environ.get("SPANWISE_TEST_TRANSFORMS", "8"))

SCHEMA = pa.schema([("text", pa.string()), ("whole", pa.int64()), ("x", pa.float64()), ("weight", pa.float64())])
TEXTS = ["", "a", "A", "é", "e\u0301", "z\0", "NA", " a", None]
WHOLE = [0, -1, 7, 2**53 + 1, -(2**63), None]
NUMBERS = [0.0, -0.0, 1.5, math.nan, math.inf, None, -3.25, 1e300, 5e-324]


def preprocess(columns):
    text, x, weight = columns["text"], columns["x"], columns["weight"]
    return {
        "few": vocabulary(text, top_k=3, min_count=2, out_of_vocabulary=0),
        "heavy": vocabulary(text, weight=weight, top_k=2, min_count=1.5),
        "hot": one_hot(text, top_k=2),
        "number": vocabulary(columns["whole"]),
        "filled": impute_mean(x),
        "quarter": quantile(x, 0.25),
        "middle": quantile(x, 0.5, weight=weight),
        "group": bucketize(x, 3, weight=weight),
    }


class Learned:
    """What Python learns of all rows."""

    def __init__(self, rows):
        texts = Counter(row["text"] for row in rows if row["text"] is not None)
        weights = defaultdict(float)
        for row in rows:
            if row["text"] is not None:
                weights[row["text"]] += row["weight"]
        ordered = _by_count(texts)
        self.few = [text for text in ordered if texts[text] >= 2][:3]
        self.heavy = [text for text in _by_count(weights) if weights[text] >= 1.5][:2]
        self.hot = ordered[:2]
        self.number = _by_count(Counter(str(row["whole"]) for row in rows if row["whole"] is not None))
        finite = [row for row in rows if row["x"] is not None and math.isfinite(row["x"])]
        self._sorted = sorted((row["x"], row["weight"]) for row in finite)
        self.mean = float(sum(Fraction(x) for x, _ in self._sorted) / len(finite)) if finite else None
        self.quarter = self._sorted[math.ceil(len(finite) / 4) - 1][0] if finite else None
        self.middle = self._weigh(Fraction(1, 2))
        self.ends = sorted({self._weigh(Fraction(part, 3)) for part in (1, 2)} - {None})

    def _weigh(self, share):
        total = sum(Fraction(weight) for _, weight in self._sorted)
        up_to = Fraction(0)
        for x, weight in self._sorted:
            up_to += Fraction(weight)
            if weight and up_to >= share * total:
                return x
        return None

    def features(self, row):
        text, x = row["text"], row["x"]
        is_odd = x is None or math.isnan(x)
        return {
            "few": self.few.index(text) if text in self.few else None,
            "heavy": None if text is None else (*self.heavy, text).index(text),
            "hot": [int(text == each) for each in self.hot] + [int(text is not None and text not in self.hot)],
            "number": None if row["whole"] is None else self.number.index(str(row["whole"])),
            "filled": self.mean if is_odd else x,
            "quarter": self.quarter,
            "middle": self.middle,
            "group": None if is_odd else sum(end < x for end in self.ends),
        }


def _by_count(counts):
    return sorted(counts, key=lambda text: (-counts[text], text.encode()))


def draw_span(random):
    rows = random.choice([0, 1, 4, 12])
    drawn = {"text": TEXTS, "whole": WHOLE, "x": NUMBERS, "weight": [0.0, 0.5, 1.0, 2.0]}
    return pa.table({name: random.choices(values, k=rows) for name, values in drawn.items()}, schema=SCHEMA)


def test_features_are_those_that_python_computes(tmp_path):
    """Of every span; a graph that is loaded gives the same features, of all rows at once and of each alone."""
    for seed in range(WINDOWS):
        random = Random(f"transform {seed}")
        windows = Windows(tmp_path / str(seed))
        tables = [draw_span(random) for _ in range(random.choice([1, 2, 3]))]
        plan = windows.plan([windows.span(number, table) for number, table in enumerate(tables)], preprocess)

        transform_window(plan)

        learned = Learned([row for table in tables for row in table.to_pylist()])
        graph = Preprocessor.load(plan.graph)
        for table, place in zip(tables, plan.destinations, strict=True):
            found = pl.read_parquet(Path(place, "Split-eval", "part-00000.parquet")).to_dicts()
            alone = [graph.apply(table.slice(row, 1)).to_pylist()[0] for row in range(len(table))]
            assert repr(graph.apply(table).to_pylist()) == repr(alone) == repr(found), (seed, tables)
            wanted = [learned.features(row) for row in table.to_pylist()]
            assert _plain(found) == _plain(wanted), (seed, tables)


def _plain(rows):
    """Features as texts, in which NaN equals itself, and 0.0 and -0.0 are one."""
    return [{name: repr(value).replace("-0.0", "0.0") for name, value in row.items()} for row in rows]
