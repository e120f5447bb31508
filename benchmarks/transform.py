"""What Transform costs: a window of which one span is new, a year of flights against Polars alone, and memory.

Beam's import is left out; the starts of its graphs are counted, one for each phase of the analysis and one to write.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks.figures import Figure, at_most, median_s, most_held_bytes, show
from benchmarks.statistics import _count, _directly, _flights  # the same figures of the same flights
from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.components.transform.preprocessing import (
    Columns,
    bucketize,
    hash_buckets,
    impute_mean,
    scale_to_0_1,
    scale_to_z_score,
    vocabulary,
)
from spanwise.components.transform.standalone import extract_source
from spanwise.components.transform.window_plan import TransformPlan
from spanwise.components.transform.window_transform import transform_window
from spanwise.orchestrator.artifact import Examples

TIMES = 5
LATE_MIN = 15
WINDOW = 30  #: spans of a day
COPIES = 10  #: how many times larger the large span is, for the memory
PEAK = "from benchmarks.transform import peak_bytes; import sys; print(peak_bytes(sys.argv[1]))"


def preprocess(columns: Columns) -> dict[str, pl.Expr]:
    return {
        "distance": scale_to_z_score(columns["distance"]),
        "air_time": impute_mean(columns["air_time"]),
        "departure": bucketize(columns["sched_dep_time"], 10),
        "arrival": scale_to_0_1(columns["sched_arr_time"]),
        "carrier": vocabulary(columns["carrier"], top_k=100, min_count=2),
        "dest": vocabulary(columns["dest"]),
        "route": hash_buckets(columns["origin"] + "-" + columns["dest"], 1000),
        "late": (columns["arr_delay"] > LATE_MIN).cast(pl.Int8),
    }


def measured() -> Iterator[Figure]:
    flights = _flights()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from _windows(flights, folder)
        yield from _a_year(flights, folder)
        small = _span(folder / "small", 1, flights)
        large = _span(folder / "large", 1, *[flights] * COPIES)
        once, many = _peak_bytes_alone(small.path), _peak_bytes_alone(large.path)
        yield Figure(name="peak memory, Beam, Polars and pyarrow included", value=once / 1e6, unit="MB")
        yield Figure(name=f"peak memory for {COPIES} times the rows", value=many / 1e6, unit="MB")
        yield at_most("the same, to once", many / once, "x", 1.3)


def _windows(flights: pa.Table, folder: Path) -> Iterator[Figure]:
    first = [pc.equal(flights["month"], 1), pc.equal(flights["month"], 2)]
    days = flights.filter(pc.or_(*first))
    spans = []
    for number in range(WINDOW + 1):
        month, day = (1, number + 1) if number < 31 else (2, number - 30)  # noqa: PLR2004  the days of January
        chosen = pc.and_(pc.equal(days["month"], month), pc.equal(days["day"], day))
        spans.append(_span(folder / f"day{number}", number, days.filter(chosen)))
    turns = itertools.count()

    def transformed(window: Sequence[Examples], earlier: Sequence[str] = ()) -> TransformPlan:
        plan = _plan(window, folder / f"turn{next(turns)}", earlier)
        transform_window(plan)
        return plan

    before = transformed(spans[:WINDOW])
    one_s = median_s(lambda: transformed(spans[-1:]), times=TIMES)
    new_s = median_s(lambda: transformed(spans[1:], [before.cache]), times=TIMES)
    all_s = median_s(lambda: transformed(spans[1:]), times=TIMES)
    day_s = _day_s(spans[-1], folder)
    yield Figure(name="transform of a window of 1 day", value=one_s, unit="s")
    yield Figure(name=f"transform of a window of {WINDOW} days, nothing kept", value=all_s, unit="s")
    yield Figure(name=f"transform of a window of {WINDOW} days, one new", value=new_s, unit="s")
    yield Figure(name="the same, to a window of 1", value=new_s / one_s, unit="x")
    yield Figure(name="ingest and statistics of a day", value=day_s, unit="s")
    ratio = (day_s + new_s) / (day_s + one_s)
    yield at_most(f"all before the trainer, {WINDOW} days to 1", ratio, "x", 1.15)


def _day_s(day: Examples, folder: Path) -> float:
    """What comes before Transform, for the new day of any window: its ingest and its statistics."""
    file = folder / "day.csv"
    pyarrow.csv.write_csv(pq.read_table(day.split("train")), file)
    turns = itertools.count()

    def ingested() -> None:
        ingest(IngestPlan(files={"all": (str(file),)}, destination=str(folder / f"ingest{next(turns)}")))
        _count(day.split("train"))

    return median_s(ingested, times=TIMES)


def _a_year(flights: pa.Table, folder: Path) -> Iterator[Figure]:
    year = _span(folder / "year", 1, flights)
    (file,) = year.split("train").iterdir()
    turns = itertools.count()

    def statistics() -> None:
        _count(year.split("train"))

    def transformed() -> None:
        place = folder / f"year{next(turns)}"
        transform_window(_plan([year], place))
        shutil.rmtree(place)

    def directly() -> None:
        _transformed_directly(file, folder / "direct.parquet")

    polars_s = median_s(directly, times=TIMES)
    ours_s = median_s(transformed, times=TIMES)
    counted_s, polars_counted_s = median_s(statistics, times=TIMES), median_s(lambda: _directly(file), times=TIMES)
    yield Figure(name="transform", value=flights.num_rows / ours_s, unit="rows/s")
    yield at_most("transform of 336,776 flights, to Polars", ours_s / polars_s, "x", 2.5)
    both = (ours_s + counted_s) / (polars_s + polars_counted_s)
    yield at_most("statistics and transform of 336,776 flights, to Polars", both, "x", 1.6)


def _transformed_directly(file: Path, target: Path) -> None:
    """The same features with all of Polars's threads; only the hash is another."""
    table = pl.read_parquet(file)
    carriers = table["carrier"].value_counts(sort=True).head(100)["carrier"]
    places = table["dest"].value_counts(sort=True)["dest"]
    boundaries = pl.Series([table["sched_dep_time"].quantile(i / 10) for i in range(1, 10)])
    x, y = pl.col("distance"), pl.col("sched_arr_time")
    table.select(
        distance=(x - x.mean()) / x.std(ddof=0),
        air_time=pl.col("air_time").cast(pl.Float64).fill_null(pl.col("air_time").mean()),
        departure=pl.lit(boundaries).search_sorted(pl.col("sched_dep_time").cast(pl.Float64)),
        arrival=(y - y.min()) / (y.max() - y.min()),
        carrier=pl.col("carrier").replace_strict(carriers, range(len(carriers)), default=len(carriers)),
        dest=pl.col("dest").replace_strict(places, range(len(places)), default=len(places)),
        route=(pl.col("origin") + "-" + pl.col("dest")).hash() % 1000,
        late=(pl.col("arr_delay") > LATE_MIN).cast(pl.Int8),
    ).write_parquet(target, compression="zstd")


def _span(folder: Path, number: int, *tables: pa.Table) -> Examples:
    split = folder / "Split-train"
    split.mkdir(parents=True)
    with pq.ParquetWriter(split / "part-00000.parquet", tables[0].schema, compression="zstd") as file:
        for table in tables:
            file.write_table(table, row_group_size=1 << 16)
    examples = Examples(str(folder), content=folder.name)
    examples.span, examples.split_names = number, ["train"]
    return examples


def _plan(window: Sequence[Examples], place: Path, earlier: Sequence[str] = ()) -> TransformPlan:
    return TransformPlan(
        examples=tuple(window),
        source=extract_source(preprocess),
        function=preprocess.__name__,
        analyze=("train",),
        transform=("train",),
        graph=str(place / "graph"),
        cache=str(place / "cache"),
        destinations=tuple(str(place / str(number)) for number in range(len(window))),
        earlier=tuple(earlier),
        scratch=str(place / "scratch"),
    )


def peak_bytes(folder: str) -> int:
    """Transforms a span and returns the most memory that this process has held."""
    examples = Examples(folder, content="content")
    examples.span, examples.split_names = 1, ["train"]
    with tempfile.TemporaryDirectory() as place:
        transform_window(_plan([examples], Path(place)))
    return most_held_bytes()


def _peak_bytes_alone(folder: Path) -> int:
    done = subprocess.run([sys.executable, "-c", PEAK, str(folder)], stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout)


if __name__ == "__main__":
    sys.exit(show(measured()))
