"""Row blocks: what is learned of rows depends on the rows and their order, and not on how files cut them."""

import itertools
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.components import row_blocks
from spanwise.components.row_blocks import list_runs, read_blocks
from spanwise.components.statistics.statistics_gen import count
from spanwise.components.transform.analyzers import Analyzer
from spanwise.components.transform.preprocessing import analyze, bucketize, quantile, scale_to_z_score, vocabulary
from spanwise.components.transform.standalone import extract_source
from spanwise.components.transform.window_plan import TransformPlan
from spanwise.components.transform.window_transform import transform_window
from spanwise.orchestrator import Examples, UnreadableInput

BLOCK = 500
ROWS = 6_007
RANDOM = np.random.default_rng(7)
TABLE = pa.table(
    {
        "fare": RANDOM.lognormal(2, 1.5, ROWS),
        "who": [f"rider {number}" for number in RANDOM.zipf(1.3, ROWS) % 4_000],
        "tags": [["a", "b"][: number % 3] for number in range(ROWS)],
        "weight": RANDOM.random(ROWS),
    }
)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that many are cut."""
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", BLOCK)


def write(folder, cuts):
    """The rows in files of several row groups; `cuts` has the rows of each group of each file."""
    folder.mkdir(parents=True)
    start = 0
    for number, groups in enumerate(cuts):
        with pq.ParquetWriter(folder / f"part-{number:05}.parquet", TABLE.schema, write_page_checksum=True) as file:
            for rows in groups:
                file.write_table(TABLE.slice(start, rows), row_group_size=max(1, rows))
                start += rows
    assert start >= ROWS
    return folder


CUTS = [
    [[ROWS]],
    [[BLOCK] * 13],
    [[1_000, 1_000], [], [3, 0, 997], [4_000]],
    [[170] * 12, [170] * 24],
    [[BLOCK - 1] * 7, [2_600]],
]


@settings(max_examples=40, deadline=None)
@given(groups=st.lists(st.lists(st.integers(0, 1_500), max_size=6), max_size=6), most=st.integers(1, 5))
def test_each_row_is_in_one_block(tmp_path_factory, groups, most):
    """All blocks but the last are of one size, and together they are the rows of the files in their order."""
    folder = tmp_path_factory.mktemp("rows")
    total, files = 0, []
    for number, sizes in enumerate(groups):
        files.append(folder / f"{number}.parquet")
        with pq.ParquetWriter(files[-1], pa.schema({"x": pa.int64()})) as file:
            for size in sizes:
                file.write_table(pa.table({"x": np.arange(total, total + size)}), row_group_size=max(1, size))
                total += size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_blocks, "BLOCK_ROWS", BLOCK)
        patch.setattr(row_blocks, "BLOCKS", most)

        runs = list_runs(files)
        blocks = [pa.concat_tables(tables)["x"].to_pylist() for run in runs for tables in read_blocks(run, ["x", "y"])]

    assert list(itertools.chain(*blocks)) == list(range(total))
    assert [len(block) for block in blocks] == [BLOCK] * (total // BLOCK) + [total % BLOCK] * (total % BLOCK > 0)
    assert [run.first for run in runs] == [sum(len(run.blocks) for run in runs[:n]) for n in range(len(runs))]


def test_statistics_are_the_same_bytes_however_the_rows_are_cut(tmp_path, small_blocks):
    """Estimates too: quantiles, distinct and frequent values, weighted figures."""
    found = set()
    for number, cuts in enumerate(CUTS):
        folder = write(tmp_path / f"{number}", cuts)
        statistics = count({"train": folder}, scratch=tmp_path, weight="weight")
        statistics.write(folder)
        found.add((folder / "train.jsonl").read_bytes())

    assert len(found) == 1


@dataclass(frozen=True)
class Shuffled(Analyzer[float]):
    """An analyzer of a user's whose state depends on how rows are merged."""

    def accumulate(self, *values):
        return float(values[0].sum())

    def merge(self, states):
        found = states[0]
        for state in states[1:]:
            found = found / 3 + state
        return found

    def finish(self, state):
        return state


def preprocess(columns):
    return {
        "bucket": bucketize(columns["fare"], 50),
        "median": columns["fare"] - quantile(columns["fare"], 0.5),
        "z": scale_to_z_score(columns["fare"]),
        "who": vocabulary(columns["who"], top_k=100),
        "mine": columns["fare"] * analyze(Shuffled(), columns["fare"]),
    }


def test_what_transform_learns_is_the_same_however_the_rows_are_cut(tmp_path, small_blocks):
    """Boundaries of buckets and quantiles too, and what analyzers of users learn; so features are the same."""
    found = set()
    for number, cuts in enumerate(CUTS):
        place = tmp_path / f"{number}"
        examples = Examples(str(place / "examples"))
        examples.span, examples.split_names = 1, ["train"]
        write(examples.split("train"), cuts)
        plan = TransformPlan(
            examples=(examples,),
            source=extract_source(preprocess),
            function="preprocess",
            analyze=("train",),
            transform=("train",),
            graph=str(place / "graph"),
            cache=str(place / "cache"),
            destinations=(str(place / "features"),),
            scratch=str(place / "scratch"),
        )
        transform_window(plan)
        features = pl.concat(map(pl.read_parquet, sorted((place / "features").rglob("*.parquet"))))
        found.add(((place / "graph" / "graph.json").read_bytes(), features.hash_rows().to_numpy().tobytes()))

    assert len(found) == 1


def test_a_damaged_row_group_is_named(tmp_path, small_blocks):
    """By its file, with what to do."""
    folder = write(tmp_path / "rows", CUTS[0])
    (path,) = folder.iterdir()
    content = bytearray(path.read_bytes())
    content[1_000:3_000] = bytes(2_000)
    path.write_bytes(content)

    with pytest.raises(UnreadableInput, match=r"part-00000.parquet: row group 0 cannot be read .* Ingest its span"):
        count({"train": folder}, scratch=tmp_path)
