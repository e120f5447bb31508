"""StatisticsGen: counts the splits of a span, the same bytes wherever and in whatever order it runs."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components import StatisticsGen
from spanwise.components.beam import fold, merge_in_order
from spanwise.components.row_blocks import BLOCK_ROWS
from spanwise.components.statistics import statistics_gen
from spanwise.components.statistics.span_statistics import SpanStatistics, merge
from spanwise.components.statistics.statistics_gen import count
from spanwise.orchestrator import ParameterError, UnreadableInput
from spanwise.orchestrator.beam_settings import HERE, BeamSettings
from tests.components.day import Day
from tests.components.flow import Bench, only
from tests.components.warm_beam import use_warm_workers


@pytest.fixture
def split(tmp_path):
    """Writes files of a split and returns its folder."""

    def split(*tables, name="train", **settings):
        folder = tmp_path / f"Split-{name}"
        folder.mkdir()
        for number, table in enumerate(tables):
            pq.write_table(pa.table(table), folder / f"part-{number:05}.parquet", **settings)
        return folder

    return split


def counted(tmp_path, **settings):
    """Statistics of the folders Split-* of `tmp_path`."""
    folders = {p.name.removeprefix("Split-"): p for p in sorted(tmp_path.glob("Split-*"))}
    return count(folders, scratch=tmp_path, **settings)


def contents(statistics, folder):
    """The files that statistics are kept in."""
    folder.mkdir()
    statistics.write(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


MIXED = {
    "number": np.random.default_rng(0).normal(size=5000),
    "text": [f"text {i % 700}" for i in range(5000)],
    "tags": [["a", "b"][: i % 3] for i in range(5000)],
}


def test_a_span_is_counted_split_by_split(tmp_path):
    """The component publishes statistics that load, with the span, and a page to look at."""
    bench = Bench(tmp_path)
    rows = {"x": [1, 2, None]}
    day = Day(rows={7: {"train": rows, "eval": rows}})

    outcome = bench.run(day, StatisticsGen(examples=day["examples"]), span=7)

    artifact = only(outcome.executions["StatisticsGen"], "statistics")
    found = SpanStatistics.load(artifact.path)
    assert (artifact.properties["span"], artifact.properties["split_names"]) == (7, ["train", "eval"])
    assert (found.splits["eval"].rows, found.splits["train"].features["x"].missing) == (3, 1)
    assert "<svg" in (artifact.path / "statistics.html").read_text()


def test_rows_count_by_a_column_of_weights(split, tmp_path, monkeypatch):
    """Every column has weighted figures, wherever the weights stand; a column that is not there is named."""
    monkeypatch.setattr(statistics_gen, "BATCH_COLUMNS", 1)
    split({"x": [1, 2, None], "w": [1.0, 3.0, 4.0], "t": pa.array(["a", "b", "c"]).dictionary_encode()})

    found = counted(tmp_path, weight="w").splits["train"].features

    assert (found["x"].weighted.mean, found["x"].weighted.missing_share) == (1.75, 0.5)
    assert found["t"].weighted.total == found["w"].weighted.total == 8.0
    assert counted(tmp_path).splits["train"].features["x"].weighted is None
    with pytest.raises(ParameterError, match="no column 'v'; they have: x, w, t"):
        counted(tmp_path, weight="v")


def test_every_row_of_every_file_is_counted_once(split, tmp_path):
    """Row groups and files of a split add up, whatever their sizes."""
    split({"x": list(range(1000))}, {"x": list(range(1000, 1700))}, row_group_size=300)

    found = counted(tmp_path).splits["train"].features["x"]

    assert (found.count, found.numbers.least, found.numbers.greatest) == (1700, 0, 1699)
    assert found.numbers.mean == pytest.approx(849.5)


def test_the_features_are_in_the_order_of_the_columns(split, tmp_path):
    """Features come as the columns do, each followed by what lies within it."""
    split({"b": [1], "a": [{"y": 1, "x": 2}], "c": [[1]]})

    assert list(counted(tmp_path).splits["train"].features) == ["b", "a", "a.y", "a.x", "c", "c[]"]


def test_statistics_are_the_same_bytes_with_threads(split, tmp_path):
    """Workers that finish in another order change nothing."""
    split(MIXED, row_group_size=400)

    alone = contents(counted(tmp_path), tmp_path / "alone")
    threads = {"direct_running_mode": "multi_threading", "direct_num_workers": 4}
    together = contents(counted(tmp_path, beam=BeamSettings(options=threads)), tmp_path / "together")

    assert alone == together


@pytest.mark.slow
def test_statistics_are_the_same_bytes_in_several_processes(split, tmp_path, monkeypatch):
    """The same job on a multi-process runner gives the same bytes."""
    use_warm_workers(monkeypatch)
    split(MIXED, row_group_size=400)

    alone = contents(counted(tmp_path), tmp_path / "alone")
    processes = {"direct_running_mode": "multi_processing", "direct_num_workers": 2}
    together = contents(counted(tmp_path, beam=BeamSettings(options=processes)), tmp_path / "together")

    assert alone == together


def test_results_are_merged_with_their_neighbours_only():
    """Whatever the order and grouping in which results come, the same merges are done."""

    def merge_texts(one, other):
        return f"({one}{other})"

    leaves = [{(0, i): str(i)} for i in range(7)]
    found = set()
    for seed, cut in itertools.product(range(5), range(1, 7)):
        shuffled = random.Random(seed).sample(leaves, 7)
        halves = [fold(shuffled[:cut], merge_texts), fold(shuffled[cut:], merge_texts)]
        found.add(tuple(sorted(fold(halves, merge_texts).items())))

    assert found == {(((0, 6), "6"), ((1, 2), "(45)"), ((2, 0), "((01)(23))"))}


def test_results_are_merged_in_the_order_of_the_parts(tmp_path):
    """What the graph gives back for a key is everything, in order."""
    found = merge_in_order(
        list(enumerate("abcdefg")),
        lambda part: [("all", {(0, part[0]): part[1]})],
        lambda a, b: a + b,
        beam=HERE,
        scratch=tmp_path,
    )

    assert found == {"all": "abcdefg"}


def test_an_unknown_runner_is_named(split, tmp_path):
    """A runner that Beam does not have is told by name."""
    split({"x": [1]})

    with pytest.raises(ParameterError, match="NoSuchRunner"):
        counted(tmp_path, beam=BeamSettings(runner="unverified:NoSuchRunner"))


def test_a_split_without_rows_has_its_columns(split, tmp_path):
    """Of an empty split the columns are known, with no values."""
    split({"x": pa.array([], pa.int64()), "tags": pa.array([], pa.list_(pa.string()))}, name="eval")
    split({"x": [1], "tags": [["a"]]}, name="train")

    found = counted(tmp_path).splits["eval"]

    assert found.rows == 0
    assert [(f.name, f.type) for f in found.features.values()] == [
        ("x", "int64"),
        ("tags", "list<element: string>"),
        ("tags[]", "string"),
    ]


def test_a_split_without_files_has_nothing(split, tmp_path):
    """A folder without files is a split of no rows."""
    split(name="eval")

    assert (counted(tmp_path).splits["eval"].rows, counted(tmp_path).splits["eval"].features) == (0, {})


def test_large_row_groups_are_read_in_batches(split, tmp_path):
    """A row group of more rows than a batch is counted whole."""
    split({"x": np.arange(BLOCK_ROWS + 10)})

    assert counted(tmp_path).splits["train"].features["x"].count == BLOCK_ROWS + 10


def test_many_columns_are_read_a_part_at_a_time(split, tmp_path):
    """More columns than are in memory at once are all counted."""
    split({f"c{i}": [i, None] for i in range(300)})

    found = counted(tmp_path).splits["train"].features

    assert len(found) == 300
    assert found["c299"].numbers.least == 299


def test_names_with_dots_and_of_any_script_are_columns(split, tmp_path):
    """A column's name may be anything, also when it reads like a field of another."""
    split({"a": [1], "a.b": [2], "名 前": [3], "": [4]})

    found = counted(tmp_path).splits["train"].features

    assert [f.numbers.least for f in found.values()] == [1, 2, 3, 4]


def test_a_column_and_a_field_of_one_name_are_refused(split, tmp_path):
    """Two features of one name would hide each other."""
    split({"a": [{"b": 1}], "a.b": [2]})

    with pytest.raises(UnreadableInput, match=r"two features called 'a\.b'"):
        counted(tmp_path)


def test_files_of_different_columns_are_refused(split, tmp_path):
    """All files of a split have the same columns."""
    split({"x": [1]}, {"y": [1]})

    with pytest.raises(UnreadableInput, match=r"part-00001\.parquet has other columns"):
        counted(tmp_path)


def test_a_file_that_is_no_parquet_is_named(split, tmp_path):
    """A damaged file is told by its path."""
    (split({"x": [1]}) / "part-00001.parquet").write_text("no parquet")

    with pytest.raises(UnreadableInput, match=r"part-00001\.parquet: this Parquet file cannot be read"):
        counted(tmp_path)


def test_the_window_is_the_merge_of_its_spans(split, tmp_path):
    """Statistics of two spans merge into those of a span that holds both."""
    both, first, second = (tmp_path / name for name in ("both", "first", "second"))
    rows = np.random.default_rng(1).normal(size=3000)
    for folder, part in ((both, rows), (first, rows[:1000]), (second, rows[1000:])):
        (folder / "Split-train").mkdir(parents=True)
        pq.write_table(pa.table({"x": part}), folder / "Split-train" / "part-00000.parquet")

    window = merge([counted(first), counted(second)]).splits["train"].features["x"]
    whole = counted(both).splits["train"].features["x"]

    assert window.numbers.mean == pytest.approx(whole.numbers.mean)
    assert window.numbers.extrema == whole.numbers.extrema
    assert window.numbers.quantile(0.5) == pytest.approx(np.median(rows), abs=0.03)
