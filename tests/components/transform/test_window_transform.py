"""Transforming windows: what is read, what is kept, and that neither shows in the result."""

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components.transform import window_plan
from spanwise.components.transform.analyzers import Analyzer
from spanwise.components.transform.graph import Preprocessor
from spanwise.components.transform.preprocessing import (
    analyze,
    bucketize,
    count,
    cross,
    hash_buckets,
    impute_mean,
    maximum,
    mean,
    minimum,
    one_hot,
    scale_to_0_1,
    scale_to_z_score,
    standard_deviation,
    total,
    vocabulary,
)
from spanwise.components.transform.standalone import extract_source
from spanwise.components.transform.window_plan import TransformPlan
from spanwise.components.transform.window_transform import transform_window
from spanwise.orchestrator.beam_settings import BeamSettings
from spanwise.orchestrator.errors import ColumnsChanged, NodeFailed, ParameterError, UnreadableInput
from tests.components.flow import written
from tests.components.warm_beam import use_warm_workers

COLUMNS = int(os.environ.get("SPANWISE_TEST_COLUMNS", "1000"))  # the long form: 5000


@dataclass(frozen=True)
class Longest(Analyzer[int]):
    """The longest text: an analyzer of the user's own."""

    def accumulate(self, *values):
        return values[0].str.len_chars().max() or 0

    def merge(self, states):
        return max(states)

    def finish(self, state):
        return state


def preprocess(columns):
    return {
        "distance": scale_to_z_score(columns["distance"]),
        "hour": bucketize(scale_to_0_1(columns["hour"]), 4),
        "carrier": vocabulary(columns["carrier"], top_k=2),
        "length": columns["carrier"].str.len_chars() / analyze(Longest(), columns["carrier"]),
        "late": columns["delay"] > 15,
    }


def day(span, version=1, rows=40):
    """The rows of one day, the hours the same each day."""
    random = np.random.default_rng([span, version])
    return pa.table(
        {
            "distance": random.integers(80, 3000, rows),
            "hour": np.arange(rows) / 2 + 0.5,
            "carrier": random.choice(["AA", "B6", "DL", "UA"], rows),
            "delay": random.normal(10, 20, rows),
        }
    )


class Windows:
    """Days on disk, and windows of them transformed one after the other."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.made = 0

    def span(self, span, table=None, *, version=1, splits=("train", "eval")):
        table = day(span, version) if table is None else table
        artifact = written(self.place / f"{span}v{version}", span, dict.fromkeys(splits, table))
        artifact.version = version
        return artifact

    def plan(self, examples, function=preprocess, *, earlier=(), **settings):
        self.made += 1
        place = self.place / f"run{self.made}"
        return TransformPlan(
            examples=tuple(examples),
            source=extract_source(function),
            function=function.__name__,
            analyze=("train",),
            transform=tuple(settings.pop("transform", ("train", "eval"))),
            graph=str(place / "graph"),
            cache=str(place / "cache"),
            destinations=tuple(str(place / f"examples{n}") for n in range(len(examples))),
            earlier=tuple(plan.cache for plan in earlier),
            scratch=str(place / "scratch"),
            **settings,
        )


@pytest.fixture
def windows(tmp_path):
    return Windows(tmp_path)


def contents(*folders):
    """Every file under some folders, by its name there."""
    return [
        {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}
        for folder in folders
    ]


def result(plan):
    """Everything that a later node can read: the graph and the transformed spans."""
    return contents(plan.graph, *plan.destinations)


def analyzed(report):
    return {reads.span: reads.analyzed_rows for reads in report.reads}


def test_each_span_is_transformed_with_what_all_of_them_taught(windows):
    """Every split of every span has the features, from one graph that was learned from the train splits alone."""
    days = [windows.span(span) for span in (1, 2)]
    plan = windows.plan(days)

    report = transform_window(plan)

    features = pl.read_parquet(Path(plan.destinations[1], "Split-eval", "part-00000.parquet"))
    rows = pl.read_parquet(days[1].split("eval") / "part-00000.parquet")
    both = pl.concat([pl.read_parquet(each.split("train") / "part-00000.parquet") for each in days])["distance"]
    assert features.equals(Preprocessor.load(plan.graph).apply(rows))
    assert features["distance"].to_list() == pytest.approx(
        ((rows["distance"] - both.mean()) / both.std(ddof=0)).to_list()
    )
    assert features["hour"].value_counts().sort("hour")["count"].to_list() == [10, 10, 10, 10]
    assert report.rows == ({"train": 40, "eval": 40},) * 2
    assert report.columns == {
        "distance": "double",
        "hour": "int32",
        "carrier": "int32",
        "length": "double",
        "late": "bool",
    }


def test_a_window_with_one_new_span_reads_one_span(windows):
    """What was accumulated over the other spans is not read again; the result is that of reading everything."""
    days = [windows.span(span) for span in range(1, 6)]
    first = windows.plan(days[:4])
    transform_window(first)
    second, afresh = windows.plan(days[1:], earlier=[first]), windows.plan(days[1:])

    report = transform_window(second)

    assert analyzed(report) == {2: 0, 3: 0, 4: 0, 5: 80}  # 40 rows in each of two phases
    assert analyzed(transform_window(afresh)) == {2: 80, 3: 80, 4: 80, 5: 80}
    assert result(second) == result(afresh)
    assert contents(f"{second.cache}/states") == contents(f"{afresh.cache}/states")
    assert [reads["analyzed_rows"] for reads in json.loads(Path(second.cache, "reads.json").read_text())] == [
        0,
        0,
        0,
        80,
    ]


def test_a_new_version_of_a_span_is_all_that_is_read_again(windows):
    """A backfilled span is analyzed again, the spans around it are not."""
    days = [windows.span(span) for span in range(1, 4)]
    first = windows.plan(days)
    transform_window(first)
    second = windows.plan([days[0], windows.span(2, version=2), days[2]], earlier=[first])

    report = transform_window(second)

    assert analyzed(report) == {1: 0, 2: 80, 3: 0}
    assert len(list(Path(second.cache, "states").iterdir())) == 3


def test_what_the_same_graph_has_transformed_is_linked(windows):
    """A span is not written again where the resolved graph is the same, and is where it is not, or its files are gone."""

    def stateless(columns):
        return {"late": columns["delay"] > 15, "route": hash_buckets(columns["carrier"], 100)}

    days = [windows.span(span) for span in (1, 2, 3)]
    first = windows.plan(days[:2], stateless)
    transform_window(first)
    shutil.rmtree(first.destinations[1])
    second = windows.plan(days, stateless, earlier=[first])

    report = transform_window(second)

    assert [reads.transformed_rows for reads in report.reads] == [0, 80, 80]
    assert report.reads[0].reused == first.destinations[0]
    linked = [Path(p.destinations[0], "Split-train", "part-00000.parquet").stat().st_ino for p in (first, second)]
    assert linked[0] == linked[1]
    assert report.rows == ({"train": 40, "eval": 40},) * 3


def test_what_only_finish_reads_needs_no_second_look(windows):
    """Other thresholds and numbers of buckets, or another feature beside, read no row again."""

    def before(columns):
        return {"carrier": vocabulary(columns["carrier"]), "hour": bucketize(columns["hour"], 4)}

    def after(columns):
        return {
            "carrier": vocabulary(columns["carrier"], top_k=1, min_count=2),
            "hour": bucketize(columns["hour"], 3),
            "same": vocabulary(columns["carrier"]),
        }

    days = [windows.span(1)]
    first = windows.plan(days, before)
    transform_window(first)

    report = transform_window(windows.plan(days, after, earlier=[first]))

    assert analyzed(report) == {1: 0}


def test_a_changed_expression_or_analyzer_is_read_again(windows):
    """What lies under an analyzer is part of what was kept, and so is the code of a user's own."""

    def before(columns):
        return {"x": mean(columns["distance"] + 1)}

    def after(columns):
        return {"x": mean(columns["distance"] + 2)}

    days = [windows.span(1)]
    first = windows.plan(days, before)
    transform_window(first)
    own = windows.plan(days, preprocess)
    transform_window(own)
    changed = windows.plan(days, preprocess, earlier=[own])
    changed = replace(changed, source=changed.source.replace("len_chars().max() or 0", "len_chars().max() or 1"))

    assert analyzed(transform_window(windows.plan(days, after, earlier=[first]))) == {1: 40}
    assert analyzed(transform_window(changed)) == {1: 40}


def test_what_was_kept_and_is_damaged_is_made_again(windows):
    """A kept file that cannot be read costs time, not the run."""
    days = [windows.span(1)]
    first = windows.plan(days)
    transform_window(first)
    (kept,) = Path(first.cache, "states").rglob("*.parquet")
    kept.write_bytes(b"PAR1 no longer")
    second = windows.plan(days, earlier=[first])

    report = transform_window(second)

    assert analyzed(report) == {1: 80}
    assert result(second)[0] == result(first)[0]


def test_features_are_linked_only_if_they_are_as_they_were_written(windows):
    """One changed bit in the features of an earlier run, and they are computed again."""
    days = [windows.span(1)]
    first = windows.plan(days)
    transform_window(first)
    written = Path(first.destinations[0], "Split-train", "part-00000.parquet")
    content = bytearray(written.read_bytes())
    content[len(content) // 2] ^= 1
    written.write_bytes(content)

    report = transform_window(windows.plan(days, earlier=[first]))

    assert report.reads[0].reused is None
    assert report.reads[0].transformed_rows == 80


@pytest.mark.parametrize("unverified_first", [True, False])
def test_what_an_unverified_runner_made_is_kept_apart(windows, monkeypatch, unverified_first):
    """Nobody knows whether its bytes are the same: neither its states nor its features are those of other runs."""
    monkeypatch.setattr(window_plan, "map_in_order", lambda parts, work, **settings: list(map(work, parts)))
    days = [windows.span(1)]
    unverified = {"beam": BeamSettings(runner="unverified:DirectRunner")}
    first = windows.plan(days, **(unverified if unverified_first else {}))
    transform_window(first)

    other = transform_window(windows.plan(days, earlier=[first], **({} if unverified_first else unverified)))
    alike = transform_window(windows.plan(days, earlier=[first], **(unverified if unverified_first else {})))

    assert (analyzed(other), other.reads[0].reused) == ({1: 80}, None)
    assert (analyzed(alike), alike.reads[0].reused) == ({1: 0}, first.destinations[0])


def test_two_spans_of_the_same_content_are_no_trouble(windows):
    """Days that are equal to the byte are told apart by their spans alone, also when their states are kept."""
    days = [windows.span(span, day(1)) for span in (1, 2)]
    first = windows.plan(days)
    transform_window(first)

    report = transform_window(windows.plan(days, earlier=[first]))

    assert analyzed(report) == {1: 0, 2: 0}
    assert [reads.reused for reads in report.reads] == [first.destinations[0]] * 2


def test_splits_that_are_not_transformed_are_not_there(windows):
    """Only the splits that were asked for are written."""
    plan = windows.plan([windows.span(1)], transform=["eval"])

    report = transform_window(plan)

    assert report.rows == ({"eval": 40},)
    assert [path.name for path in Path(plan.destinations[0]).iterdir()] == ["Split-eval"]


def strange(rows=40):
    """A column of each kind that gives trouble."""
    return pa.table(
        {
            "missing": pa.nulls(rows, pa.float64()),
            "untyped": pa.nulls(rows),
            "single": pa.array([7] * rows),
            "broken": pa.array([float("nan"), float("inf"), -float("inf"), 1.0] * (rows // 4)),
            "huge": pa.array([2**63 - 1, -(2**63)] * (rows // 2)),
            "tiny": pa.array([127, -128] * (rows // 2), pa.int8()),
            "unsigned": pa.array([2**64 - 1, 0] * (rows // 2), pa.uint64()),
            "distinct": pa.array([f"text {n}" for n in range(rows)]),
            "nested": pa.array([[1, 2], [], None, [3]] * (rows // 4)),
            "struct": pa.array([{"a": 1}, {"a": None}] * (rows // 2)),
            "day": pa.array([date(2013, 1, 1 + n % 28) for n in range(rows)]),
            "moment": pa.array([datetime(2013, 1, 1, n % 24, tzinfo=UTC) for n in range(rows)]),
            "price": pa.array([Decimal("1.10"), Decimal("2.20")] * (rows // 2)),
            "bytes": pa.array([b"\x00\xff", None] * (rows // 2)),
            "coded": pa.array(["x", "y"] * (rows // 2)).dictionary_encode(),
            "flag": pa.array([True, None] * (rows // 2)),
            "größe ✈": pa.array(range(rows)),
        }
    )


def of_strange(columns):
    return {
        "missing": scale_to_z_score(columns["missing"]),
        "missing_bucket": bucketize(columns["missing"], 3),
        "untyped": scale_to_0_1(columns["untyped"]),
        "untyped_word": vocabulary(columns["untyped"]),
        "single": scale_to_z_score(columns["single"]),
        "single_share": scale_to_0_1(columns["single"]),
        "broken": scale_to_z_score(columns["broken"]),
        "filled": impute_mean(columns["broken"]),
        "huge": total(columns["huge"]),
        "huge_share": scale_to_0_1(columns["huge"]),
        "tiny": scale_to_0_1(columns["tiny"]),
        "unsigned": scale_to_0_1(columns["unsigned"]),
        "distinct": vocabulary(columns["distinct"], min_count=2, out_of_vocabulary=5),
        "nested": scale_to_z_score(columns["nested"].list.sum()),
        "nested_itself": columns["nested"],
        "field": impute_mean(columns["struct"].struct.field("a")),
        "day": (columns["day"] - minimum(columns["day"])).dt.total_days(),
        "hour": columns["moment"].dt.hour(),
        "last": maximum(columns["moment"]),
        "price": scale_to_z_score(columns["price"]),
        "bytes": hash_buckets(columns["bytes"], 10),
        "coded": one_hot(columns["coded"]),
        "flag": mean(columns["flag"]),
        "flags": count(columns["flag"]),
        "größe ✈": cross(columns["größe ✈"], columns["coded"], buckets=7),
        "spread": standard_deviation(columns["tiny"]),
    }


def test_strange_columns_work(windows):
    """Missing, constant, overflowing, non-finite, nested, dated, decimal, binary and oddly named columns all work."""
    plan = windows.plan([windows.span(1, strange()), windows.span(2, strange(4))], of_strange)

    transform_window(plan)

    found = pl.read_parquet(Path(plan.destinations[1], "Split-train", "part-00000.parquet")).to_dict(as_series=False)
    assert found["missing"] == found["missing_bucket"] == found["untyped"] == found["untyped_word"] == [None] * 4
    assert found["single"] == found["single_share"] == [0.0] * 4
    assert found["broken"][1:] == [float("inf"), -float("inf"), 0.0]
    assert found["filled"] == [1.0, float("inf"), -float("inf"), 1.0]
    assert found["huge"][0] == -22
    assert found["huge_share"] == found["tiny"] == found["unsigned"] == [1.0, 0.0, 1.0, 0.0]
    assert found["nested_itself"] == [[1, 2], [], None, [3]]
    assert found["day"] == [0, 1, 2, 3]
    assert found["last"][0] == datetime(2013, 1, 1, 23, tzinfo=UTC)
    assert found["price"] == pytest.approx([-1.0, 1.0] * 2)
    assert found["bytes"][1] is None
    assert found["coded"][:2] == [[1, 0, 0], [0, 1, 0]]
    assert found["flag"][0] == 1.0
    assert found["flags"][0] == 22


def test_empty_splits_single_rows_and_late_columns_work(windows):
    """A split without rows or without files, a span of one row, and a column that an old span lacks are no trouble."""
    old = windows.span(1, day(1).drop_columns(["delay"]).slice(0, 1))
    empty = windows.span(2, day(2).slice(0, 0))
    (empty.split("eval") / "part-00000.parquet").unlink()
    plan = windows.plan([old, empty, windows.span(3)])

    report = transform_window(plan)

    tables = [[pq.read_table(Path(folder, f"Split-{s}")) for s in ("train", "eval")] for folder in plan.destinations]
    assert [[table.num_rows for table in both] for both in tables] == [[1, 1], [0, 0], [40, 40]]
    assert len({table.schema for both in tables for table in both}) == 1
    assert tables[0][0]["late"].to_pylist() == [None]
    assert report.rows[1] == {"train": 0, "eval": 0}


@pytest.mark.slow
def test_a_thousand_columns_and_a_hundred_thousand_texts(windows):
    """Width and many distinct values cost time, not more."""
    wide = pa.table({f"c{n}": np.arange(20.0) + n for n in range(COLUMNS)})
    long = pa.table({"word": pa.array([f"w{n}" for n in range(100_000)])})

    def of_wide(columns):
        return {name: scale_to_z_score(columns[name]) for name in columns}

    def of_long(columns):
        return {"word": vocabulary(columns["word"])}

    many, words = windows.plan([windows.span(1, wide)], of_wide), windows.plan([windows.span(2, long)], of_long)
    transform_window(many)
    transform_window(words)

    found = pq.read_table(Path(words.destinations[0], "Split-train", "part-00000.parquet"))["word"]
    assert len(pq.read_schema(Path(many.destinations[0], "Split-train", "part-00000.parquet"))) == COLUMNS
    assert sorted(found.to_pylist()) == list(range(100_000))


def since_the_first(columns):
    at = columns["at"]
    return {
        "since": (at - minimum(at)).dt.total_minutes(),
        "until": (maximum(at) - at).dt.total_minutes(),
        "hour": minimum(at).dt.hour(),
    }


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "+02:00"])
def test_the_first_and_the_last_moment_are_of_the_zone_of_their_column(windows, zone):
    """Also where clocks are set back between them: two spans have half past one and, an hour later, twenty past one."""
    first = datetime(2024, 11, 3, 5, 30, tzinfo=UTC)
    spans = [
        pa.table({"at": pa.array([at], pa.timestamp("us", zone))}) for at in (first, first.replace(hour=6, minute=20))
    ]
    plan = windows.plan([windows.span(number, table) for number, table in enumerate(spans)], since_the_first)

    transform_window(plan)

    found = [pq.read_table(Path(each, "Split-eval", "part-00000.parquet")).to_pylist() for each in plan.destinations]
    hour = {"UTC": 5, "America/New_York": 1, "+02:00": 7}[zone]
    assert found == [[{"since": 0, "until": 50, "hour": hour}], [{"since": 50, "until": 0, "hour": hour}]]


def least_and_most(columns):
    return {"least": minimum(columns["x"]), "is_most": columns["x"] == maximum(columns["x"])}


def test_extremes_of_unsigned_numbers_keep_their_digits(windows):
    """Up to the greatest, which no signed number holds, and no double."""
    table = pa.table({"x": pa.array([2**64 - 1, 2**63 + 1], pa.uint64())})
    plan = windows.plan([windows.span(1, table)], least_and_most)

    transform_window(plan)

    found = pq.read_table(Path(plan.destinations[0], "Split-eval", "part-00000.parquet"))
    assert found.to_pydict() == {"least": [2**63 + 1] * 2, "is_most": [True, False]}


def test_extremes_of_times_that_have_nanoseconds_are_refused(windows):
    """They are stored to the microsecond, and would be no value of the column."""
    fine, coarse = (pa.table({"x": pa.array([at], pa.time64("ns"))}) for at in (1_001, 1_000))

    transform_window(windows.plan([windows.span(1, coarse)], least_and_most))
    with pytest.raises(NodeFailed, match="stored to the microsecond, and a time has nanoseconds"):
        transform_window(windows.plan([windows.span(2, fine)], least_and_most))


def places_prices(columns):
    price = columns["price"]
    return {
        "group": bucketize(price, 4),
        "unit": scale_to_0_1(price),
        "is_least": price.cast(pl.Float64) == minimum(price),
    }


def test_a_decimal_on_a_boundary_is_in_the_group_below_it(windows):
    """What an analyzer learns of decimals are the doubles that the features are made of: 28.1422291 is not above itself."""
    prices = [Decimal(281_422_291 + number).scaleb(-7) for number in range(800)]
    table = pa.table({"price": pa.array(prices, pa.decimal128(9, 7))})
    plan = windows.plan([windows.span(1, table)], places_prices)

    transform_window(plan)

    found = pq.read_table(Path(plan.destinations[0], "Split-eval", "part-00000.parquet")).to_pydict()
    assert found["group"] == [number // 200 for number in range(800)]
    assert (found["unit"][0], found["unit"][-1]) == (0, 1)
    assert found["is_least"] == [True] + [False] * 799


def pairs(columns):
    return {"pair": columns["pair"].list.to_array(2)}


def test_arrays_that_are_missing_are_refused(windows):
    """Parquet has no missing lists of one length: what is written of them could be read by nobody."""
    table = pa.table({"pair": [[1, 2]] * 30 + [None]})

    with pytest.raises(
        NodeFailed, match=r"^feature 'pair' has no array in a row, .*\.fill_null\(…\).*\.arr\.to_list\(\)"
    ):
        transform_window(windows.plan([windows.span(1, table)], pairs))


def fails_on_data(columns):
    return {"fine": columns["hour"], "code": columns["carrier"].cast(pl.Int64)}


def fails_in_analysis(columns):
    return {"fine": columns["hour"], "code": scale_to_z_score(columns["carrier"].cast(pl.Int64))}


def looks_at_all_rows(columns):
    return {"centred": columns["distance"] - columns["distance"].mean()}


def looks_at_all_rows_below(columns):
    return {"centred": scale_to_z_score(columns["distance"] / columns["distance"].max())}


def looks_at_the_row_before(columns):
    return {"step": columns["distance"].shift(1)}


def fills_with_the_median_of_a_piece(columns):
    hour = columns["hour"]
    return {"hour": hour.fill_null(hour.quantile(0.5))}


def asks_whether_any_is_missing(columns):
    hour = columns["hour"]
    return {"hour": pl.when(hour.is_null().any()).then(0.0).otherwise(hour)}


def asks_beside_a_hash(columns):
    return {"code": hash_buckets(columns["carrier"], 5) * columns["hour"].null_count()}


def fills_with_the_group_before(columns):
    return {"group": bucketize(columns["hour"], 4).forward_fill()}


def fills_what_an_analyzer_gives(columns):
    hour = columns["hour"]
    return {"hour": analyze(Longest(), columns["carrier"], use=lambda longest: hour.forward_fill() * longest)}


def looks_around_in_a_struct(columns):
    both = pl.struct(columns["hour"], columns["distance"])
    return {"both": both.struct.with_fields(pl.field("hour").is_null().any().alias("any"))}


def looks_in_a_column(columns):
    return {"known": columns["distance"].is_in(columns["hour"].cast(pl.Int64))}


def looks_up_in_a_column(columns):
    return {"far": columns["distance"].replace(columns["distance"], columns["hour"])}


def searches_a_column(columns):
    return {"place": columns["hour"].search_sorted(columns["hour"])}


def subtracts_an_estimated_median(columns):
    return {"centred": columns["distance"] - columns["distance"].approx_quantile(0.5)}


def subtracts_it_in_a_struct(columns):
    far = pl.field("distance")
    return {"both": pl.struct(columns["distance"]).struct.with_fields(far - far.approx_quantile(0.5))}


def bins_by_quantiles(columns):
    return {"bin": columns["distance"].bin_quantiles(4, labels=["Breaks", "b", "c", "d"])}


def bins_by_ranks(columns):
    return {"bin": columns["distance"].bin_ranks(4, labels=False)}


def bins_between_extremes(columns):
    return {"bin": columns["distance"].bin_intervals(4, labels=False)}


def takes_the_median_so_far(columns):
    return {"median": columns["distance"].cumulative_eval(pl.element().quantile(0.5))}


def letters(columns, function):
    return {"letters": columns["carrier"].str.split("").list.eval(function(pl.element()))}


def takes_modes_in_any_order(columns):
    return letters(columns, pl.Expr.mode)


def counts_in_any_order(columns):
    return letters(columns, pl.Expr.value_counts)


def shuffles(columns):
    return letters(columns, pl.Expr.shuffle)


def samples(columns):
    return letters(columns, lambda each: each.sample(1))


def samples_a_list(columns):
    return {"letters": columns["carrier"].str.split("").list.sample(1)}


def ranks_at_random(columns):
    return letters(columns, lambda each: each.rank("random"))


def looks_around_in_python(columns):
    return {"rank": columns["distance"].map_batches(lambda s: s - s.min(), return_dtype=pl.Int64)}


def takes_the_codes_of_categories(columns):
    return {"code": columns["carrier"].cast(pl.Categorical).to_physical()}


def takes_codes_in_a_list(columns):
    return {"codes": columns["carrier"].str.split("").list.eval(pl.element().cast(pl.Categorical).cat.physical())}


def takes_codes_in_a_struct(columns):
    carrier = pl.struct(columns["carrier"].cast(pl.Categorical), columns["hour"])
    return {"code": carrier.struct.with_fields(pl.field("carrier").to_physical())}


def takes_codes_of_a_struct_in_a_list(columns):
    both = pl.concat_list(pl.struct(columns["carrier"].cast(pl.Categorical)))
    return {"codes": both.list.eval(pl.element().struct.field("carrier").to_physical())}


def compares_codes(columns):
    return {"last": pl.max_horizontal(columns["carrier"].cast(pl.Categorical), pl.lit("AA", pl.Categorical))}


def compares_codes_in_a_list(columns):
    return {"last": columns["carrier"].str.split("").cast(pl.List(pl.Categorical)).list.max()}


def hashes_codes(columns):
    return {"hash": columns["carrier"].str.split("").cast(pl.List(pl.Categorical)).hash() % 7}


def analyzes_codes(columns):
    return {"code": scale_to_z_score(columns["carrier"].cast(pl.Categorical).to_physical())}


def takes_the_codes_of_what_an_analyzer_gives(columns):
    carrier = columns["carrier"].cast(pl.Categorical)
    return {"code": analyze(Longest(), columns["carrier"], use=lambda _: carrier).to_physical()}


def scales_text(columns):
    return {"carrier": scale_to_z_score(columns["carrier"])}


def counts_fractions(columns):
    return {"hour": vocabulary(columns["hour"])}


def misspells(columns):
    return {"x": scale_to_z_score(columns["distanse"])}


def misspells_in_a_helper(columns):
    far = columns["distance"] * 2

    return {"far": far, "x": _misspelled(columns)}


def _misspelled(columns):
    return columns["distanse"]


def divides_text(columns):
    hours = columns["hour"] * 60
    """A line of text in between."""
    return {"x": hours, "carriers": len(columns["carrier"])}


class Breaks(Analyzer[int]):
    def accumulate(self, *values):
        raise OSError("no such luck")


def breaks(columns):
    return {"broken": analyze(Breaks(), columns["hour"])}


def differs_each_time(columns):
    import random

    return {"noise": columns["hour"] * random.random()}


def names_no_column(columns):
    return {"x": pl.col("elsewhere")}


def changes_type(columns):
    return {"sum": columns["carrier"] + 1}


CHANGES = "has other values each time that it is computed"
OF_CODES = "depends on the codes of categories, which differ from one process to the next"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (fails_on_data, r"^feature 'code' cannot be computed: col\(\"carrier\"\)\S*cast\(Int64\): "),
        (
            fails_in_analysis,
            r"^feature 'code': MeanAndDeviation of col\(\"carrier\"\)\S*cast\(Int64\): what it analyzes cannot be",
        ),
        (looks_at_all_rows, r"^feature 'centred' looks at several rows at once \(Agg\): .*\.mean\(\)"),
        (looks_at_all_rows_below, r"^feature 'centred': MeanAndDeviation of .* looks at several rows at once \(Agg\)"),
        (looks_at_the_row_before, r"^feature 'step' looks at several rows at once: .*shift"),
        (fills_with_the_median_of_a_piece, r"^feature 'hour' looks at several rows at once: .*quantile"),
        (asks_whether_any_is_missing, r"^feature 'hour' looks at several rows at once: .*any"),
        (asks_beside_a_hash, r"^feature 'code' looks at several rows at once: .*null_count"),
        (fills_with_the_group_before, r"^feature 'group' looks at several rows at once: .*fill_null"),
        (fills_what_an_analyzer_gives, r"^Longest of .*: what `use` makes of its value looks at several rows at once"),
        (looks_around_in_a_struct, r"^feature 'both' looks at several rows at once: .*any"),
        (looks_in_a_column, r"^feature 'known' looks at several rows at once: .*is_in"),
        (looks_up_in_a_column, r"^feature 'far' looks at several rows at once: .*replace"),
        (searches_a_column, r"^feature 'place' looks at several rows at once: .*search_sorted"),
        (subtracts_an_estimated_median, r"^feature 'centred' looks at several rows at once: .*approx_quantile"),
        (subtracts_it_in_a_struct, r"^feature 'both' looks at several rows at once: .*approx_quantile"),
        (bins_by_quantiles, r"^feature 'bin' looks at several rows at once: .*bin_quantiles"),
        (bins_by_ranks, r"^feature 'bin' looks at several rows at once: .*bin_ranks"),
        (bins_between_extremes, r"^feature 'bin' looks at several rows at once: .*bin_intervals"),
        (takes_the_median_so_far, r"^feature 'median' looks at several rows at once: .*quantile"),
        (takes_modes_in_any_order, rf"^feature 'letters' {CHANGES} \(Mode\), .* mode\(maintain_order=True\)"),
        (counts_in_any_order, rf"^feature 'letters' {CHANGES} \(ValueCounts\), .* value_counts\(sort=True\)"),
        (shuffles, rf"^feature 'letters' {CHANGES} \(Random\), .* seed=1"),
        (samples, rf"^feature 'letters' {CHANGES} \(Random\), .* seed=1"),
        (samples_a_list, rf"^feature 'letters' {CHANGES} \(Sample\), .* seed=1"),
        (ranks_at_random, rf"^feature 'letters' {CHANGES} \(Rank\), .* seed=1"),
        (looks_around_in_python, r"^feature 'rank' has other values when its rows come in parts"),
        (takes_the_codes_of_categories, rf"^feature 'code' {OF_CODES}: .*to_physical.* vocabulary\(…\)"),
        (takes_codes_in_a_list, rf"^feature 'codes' {OF_CODES}: "),
        (takes_codes_in_a_struct, rf"^feature 'code' {OF_CODES}: "),
        (takes_codes_of_a_struct_in_a_list, rf"^feature 'codes' {OF_CODES}: "),
        (compares_codes, rf"^feature 'last' {OF_CODES}: .*max_horizontal"),
        (compares_codes_in_a_list, rf"^feature 'last' {OF_CODES}: .*max"),
        (hashes_codes, rf"^feature 'hash' {OF_CODES}: .*hash"),
        (analyzes_codes, rf"^feature 'code': MeanAndDeviation of .* {OF_CODES}: "),
        (takes_the_codes_of_what_an_analyzer_gives, rf"^feature 'code' {OF_CODES}: "),
        (scales_text, r"^feature 'carrier': MeanAndDeviation of col\(\"carrier\"\): it analyzes numbers, not String"),
        (counts_fractions, r"^feature 'hour': Terms.*: a vocabulary is of .*, not of Float64"),
        (misspells, r"^line 2 of misspells, `return .*`: .* no column 'distanse'; .* Did you mean 'distance'\?"),
        (misspells_in_a_helper, r"^line 4 of misspells_in_a_helper, `return .*_misspelled\(columns\)}`: .* no column"),
        (divides_text, r"^line 4 of divides_text, `return .*len\(columns\[\"carrier\"\]\)}`: TypeError: "),
        (breaks, r"^feature 'broken': Breaks of col\(\"hour\"\) fails: OSError: no such luck"),
        (changes_type, r"^feature 'sum' cannot be computed: "),
        (names_no_column, r"^feature 'x' cannot be computed: col\(\"elsewhere\"\): .*column \"elsewhere\""),
        (differs_each_time, r"^feature 'noise' reads back .*: differs_each_time must give the same each time"),
    ],
)
def test_what_fails_is_named_with_its_expression(windows, function, said):
    """A failure names the feature and shows the expression, before or while the rows are read."""
    with pytest.raises(NodeFailed, match=said):
        transform_window(windows.plan([windows.span(1)], function))


def subtracts_the_mean(values):
    return values - values.mean()


def subtracts_the_mean_in_python(columns):
    return {"centred": columns["x"].map_batches(subtracts_the_mean, return_dtype=pl.Float64)}


def analyzes_what_subtracts_the_mean(columns):
    return {"centred": scale_to_z_score(columns["x"].map_batches(subtracts_the_mean, return_dtype=pl.Float64))}


def subtracts_the_minimum_in_python(columns):
    return {"above": columns["x"].map_batches(lambda x: x - x.min(), return_dtype=pl.Float64) + columns["n"]}


def divides_by_the_count_in_python(columns):
    return {"share": columns["x"].map_batches(lambda x: x / len(x), return_dtype=pl.Float64)}


def halves_in_python(columns):
    return {"half": columns["x"].map_batches(lambda x: x / 2, return_dtype=pl.Float64)}


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([[1.0, 2.0, 3.0], [5.0]], id="the newest has one row"),
        pytest.param([[1.0, 2.0, 3.0], [5.0] * 80], id="all rows of the newest are alike"),
        pytest.param([[0.0] * 80 + [1.0]], id="the first rows are alike"),
        pytest.param([[0.0] * 2000 + [1.0]], id="many rows are alike"),
    ],
)
@pytest.mark.parametrize(
    "function",
    [
        subtracts_the_mean_in_python,
        analyzes_what_subtracts_the_mean,
        subtracts_the_minimum_in_python,
        divides_by_the_count_in_python,
    ],
)
def test_functions_of_python_are_tried_on_rows_that_differ(windows, function, spans):
    """They are sought in the newest span, then in those before it: of equal rows, the mean is each row's own value."""
    tables = [pa.table({"x": x, "n": [0] * len(x)}) for x in spans]
    plan = windows.plan([windows.span(number, table) for number, table in enumerate(tables)], function)

    with pytest.raises(NodeFailed, match=r"has other values when its rows come in parts: .*python_udf"):
        transform_window(plan)


@pytest.mark.parametrize(("x", "warned"), [([5.0], True), ([5.0, 5.0], True), ([5.0, 6.0], False)])
def test_functions_of_python_that_cannot_be_tried_are_logged(windows, caplog, x, warned):
    """No two rows of the window differ: what the function looks at cannot be seen."""
    transform_window(windows.plan([windows.span(1, pa.table({"x": x}))], halves_in_python))

    found = [record.of for record in caplog.records if record.msg == "functions-not-probed"]
    assert found == [["feature 'half'"]] * warned


def bins_by_bounds(columns):
    return {"bin": columns["distance"].bin_intervals([500, 1000], labels=False)}


def test_bins_of_given_bounds_are_features(windows):
    """Nothing is learned for them."""
    plan = windows.plan([windows.span(1, pa.table({"distance": [100, 700, 2000]}))], bins_by_bounds)

    transform_window(plan)

    found = pq.read_table(Path(plan.destinations[0], "Split-eval", "part-00000.parquet"))
    assert found["bin"].to_pylist() == [0, 1, 2]


def draws_the_same_each_time(columns):
    carrier = columns["carrier"].str.split("")
    found = {
        "mode": pl.element().mode(maintain_order=True),
        "counts": pl.element().value_counts(sort=True),
        "shuffled": pl.element().shuffle(seed=1),
        "rank": pl.element().rank("ordinal"),
    }
    return {"sample": carrier.list.sample(1, seed=1), **{name: carrier.list.eval(each) for name, each in found.items()}}


def test_draws_with_a_seed_and_values_in_a_fixed_order_are_features(windows):
    """They are the same in every computation, so one of a served row is that of training."""
    span = windows.span(1)
    plan = windows.plan([span], draws_the_same_each_time)

    transform_window(plan)

    features = pl.read_parquet(Path(plan.destinations[0], "Split-eval", "part-00000.parquet"))
    rows = pl.read_parquet(span.split("eval") / "part-00000.parquet")
    served = pl.concat([Preprocessor.load(plan.graph).apply(rows[n : n + 1]) for n in range(5)])
    assert served.equals(features.head(5))


def uses_categories(columns):
    carrier = columns["carrier"].cast(pl.Categorical)
    return {
        "code": columns["carrier"].cast(pl.Enum(["AA", "B6", "DL", "UA"])).to_physical(),
        "day": pl.lit(date(2026, 1, 2)).to_physical() + columns["distance"].to_physical(),
        "late": carrier > "B6",
        "bucket": hash_buckets(carrier, 7),
        "hash": carrier.hash(),
        "hour": pl.struct(carrier, columns["hour"])
        .struct.with_fields(pl.field("hour").to_physical())
        .struct.field("hour"),
        "most": pl.max_horizontal(columns["hour"], carrier.cat.len_bytes()),
    }


def test_categories_are_served_as_in_training(windows):
    """Texts decide what is made of categories, and fixed types: it is the same in a process that met others first."""
    table = day(1)
    plan = windows.plan([windows.span(1, table)], uses_categories)

    transform_window(plan)

    trained = pl.read_parquet(Path(plan.destinations[0], "Split-train", "*.parquet"))
    served = serve_in_a_new_process(plan.graph, table.slice(0, 40).take(list(range(39, -1, -1))))
    assert served.reverse().equals(trained)


def serve_in_a_new_process(graph, table):
    buffer = io.BytesIO()
    pl.from_arrow(table).write_ipc(buffer)
    program = (
        "import sys; import polars as pl; from spanwise import Preprocessor\n"
        f"rows = pl.read_ipc(sys.stdin.buffer.read()); Preprocessor.load({graph!r}).apply(rows).write_parquet(sys.argv[1])"
    )
    target = Path(graph).with_name("served.parquet")
    subprocess.run([sys.executable, "-c", program, str(target)], input=buffer.getvalue(), check=True)
    return pl.read_parquet(target)


def test_bad_files_and_windows_are_told(windows):
    """Spans that disagree, damaged files and unknown runners are errors of their own kind."""
    days = [windows.span(1)]
    changed = windows.span(2, day(2).set_column(0, "distance", pa.array(["far"] * 40)))
    cut = windows.span(3)
    file = cut.split("train") / "part-00000.parquet"

    with pytest.raises(ColumnsChanged, match="'distance' is int64 in span 1 and string in span 2"):
        transform_window(windows.plan([*days, changed]))
    with pytest.raises(ParameterError, match="Beam has no runner called 'Nowhere'"):
        transform_window(windows.plan(days, beam=BeamSettings(runner="unverified:Nowhere")))
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UnreadableInput, match=r"part-00000\.parquet"):
        transform_window(windows.plan([cut]))


def one_phase(columns):
    return {
        "distance": scale_to_z_score(columns["distance"]),
        "hour": bucketize(columns["hour"], 4),
        "carrier": vocabulary(columns["carrier"], top_k=2),
        "length": columns["carrier"].str.len_chars() / analyze(Longest(), columns["carrier"]),
    }


@pytest.mark.slow
def test_several_processes_give_the_same_bytes(windows, monkeypatch):
    """A Beam runner with worker processes gives the graph and examples of the embedded one, to the byte."""
    use_warm_workers(monkeypatch)
    days = [windows.span(span) for span in (1, 2, 3)]
    options = {"direct_running_mode": "multi_processing", "direct_num_workers": 2}
    alone, together = windows.plan(days, one_phase), windows.plan(days, one_phase, beam=BeamSettings(options=options))

    transform_window(alone)
    transform_window(together)

    assert result(together) == result(alone)
    assert contents(f"{together.cache}/states") == contents(f"{alone.cache}/states")
