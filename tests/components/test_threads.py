"""Threads: what ingest, statistics and transform write is the same to the byte, however many threads work on it."""

import random
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components import row_blocks
from spanwise.components.ingest import part_files
from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.components.read_ahead import MOST_THREADS, count_threads
from spanwise.components.statistics.statistics_gen import count
from spanwise.components.transform.preprocessing import bucketize, mean, scale_to_z_score, vocabulary
from spanwise.components.transform.standalone import extract_source
from spanwise.components.transform.window_plan import TransformPlan
from spanwise.components.transform.window_transform import transform_window
from spanwise.orchestrator.artifact import Examples
from spanwise.pipelines.input.readers.descriptor import Dialect

SPLITS = ("train", "eval")


def preprocess(columns):
    return {
        "value": scale_to_z_score(columns["value"]),
        "odd": columns["value"] - mean(columns["number"].cast(pl.Float64)),  # its phase comes after that of `value`
        "number": bucketize(columns["number"], 4),
        "word": vocabulary(columns["word"], top_k=5),
    }


@pytest.fixture
def arrow_threads():
    """What Arrow may use is what counts; it is put back afterwards."""
    before = pa.cpu_count()
    yield pa.set_cpu_count
    pa.set_cpu_count(before)


def draw_rows(seed: int) -> pa.Table:
    """Rows whose sum depends on their order, with ids that are all different, nulls, and texts that repeat."""
    dice = np.random.default_rng(seed)
    rows = int(dice.integers(600, 1500))
    return pa.table(
        {
            "id": dice.permutation(rows) * 7,
            "value": pa.array(
                dice.normal(size=rows) * 10.0 ** dice.integers(-12, 12, rows), mask=dice.random(rows) < 0.1
            ),
            "number": dice.integers(0, 50, rows),
            "word": [f"word {n}" for n in dice.integers(0, 30, rows)],
            "key": [f"{n:x}" for n in dice.permutation(rows)],
        }
    )


def run_nodes(source: Path, place: Path, dialect: Dialect) -> dict[str, bytes]:
    """Ingests a file, counts and transforms its rows, and returns every file that was written."""
    examples = Examples(str(place / "examples"), content="content")
    examples.span, examples.split_names = 1, list(SPLITS)
    plan = IngestPlan(
        files={"all": (str(source),)}, destination=examples.uri, ratios=dict.fromkeys(SPLITS, 1), dialect=dialect
    )
    ingest(plan)
    (place / "statistics").mkdir()
    found = count({name: examples.split(name) for name in SPLITS}, scratch=place)
    found.write(place / "statistics")
    transform_window(
        TransformPlan(
            examples=(examples,),
            source=extract_source(preprocess),
            function=preprocess.__name__,
            analyze=SPLITS,
            transform=SPLITS,
            graph=str(place / "graph"),
            cache=str(place / "cache"),
            destinations=(str(place / "features"),),
            scratch=str(place / "scratch"),
        )
    )
    return {str(p.relative_to(place)): p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("seed", range(3))
def test_the_bytes_do_not_depend_on_the_number_of_threads(tmp_path, monkeypatch, arrow_threads, seed):
    """Whatever the sizes of row groups, blocks and parts: one thread, two and four write the same files."""
    dice = random.Random(seed)
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", dice.choice([70, 170, 1024]))
    monkeypatch.setattr(part_files, "GROUP_ROWS", dice.choice([64, 300, 1000]))
    monkeypatch.setattr(part_files, "HELD_BYTES", dice.choice([0, 1 << 20]))
    dialect = Dialect(part_bytes=dice.choice([4000, 1 << 20]))
    pq.write_table(draw_rows(seed), tmp_path / "rows.parquet", row_group_size=dice.choice([100, 700]))

    written = {}
    for threads in (1, 2, 4):
        arrow_threads(threads)
        assert count_threads() == threads
        written[threads] = run_nodes(tmp_path / "rows.parquet", tmp_path / str(threads), dialect)

    assert len(written[1]) > 8
    assert written[1] == written[2] == written[4]


def test_a_large_machine_has_no_more_threads_than_memory_for_them(arrow_threads):
    """Each thread holds a block of rows, so there are a few at most, and one alone where rows are wide."""
    arrow_threads(64)

    assert count_threads() == count_threads(0) == count_threads(60) == MOST_THREADS
    assert count_threads(128) == 2
    assert count_threads(1000) == 1
