"""Renaming: which columns of a span are published under other names, whatever its format and wherever they stand."""

import json
import os
from pathlib import Path
from random import Random

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.components.ingest.readers import Dialect
from spanwise.orchestrator.errors import SpanwiseError
from tests.components.tf_example import framed, serialized

SPANS = int(os.environ.get("SPANWISE_TEST_RENAMINGS", "20"))


def write(path, ending, rows, names):
    """A file of these rows; JSON and TFRecord have only the keys that a row has."""
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif ending == "tfrecord":
        path.write_bytes(framed([serialized({name: [value] for name, value in row.items()}) for row in rows]))
    elif ending == "parquet":
        pq.write_table(pa.table({name: [row[name] for row in rows] for name in names}), path)
    elif ending == "csv":
        lines = [names, *([row[name] for name in names] for row in rows)]
        path.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    else:
        fields = [{"name": name, "type": "long", "default": -1} for name in names]
        with path.open("wb") as out:
            fastavro.writer(out, {"type": "record", "name": "r", "fields": fields}, rows)


def draw(random, folder, ending):
    """Files of a span; the paths, the names that its input has, and its rows under the published names."""
    paths, names, rows = [], {"x"}, []
    usual = random.choice([["x", "old"], ["x", "new"], ["x"]])
    for number in range(random.randint(1, 3)):
        each = random.choice([usual, usual, usual, ["x"], ["x", "old"], ["x", "new"]])
        columns = random.sample(each, len(each))
        few = ending in ("jsonl", "tfrecord")
        made = [
            {name: random.randrange(9) for name in columns if name == "x" or not few or random.random() < 0.5}
            for _ in range(random.randint(1, 4))
        ]
        write(folder / f"{number}.{ending}", ending, made, columns)
        paths.append(str(folder / f"{number}.{ending}"))
        names |= {name for row in made for name in row}
        rows += [{"new" if name == "old" else name: value for name, value in row.items()} for row in made]
    return tuple(paths), names, rows


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "avro", "tfrecord"])
def test_a_column_is_renamed_in_all_rows_or_the_span_is_refused(ending, tmp_path):
    """Whichever file or row has it first; two columns are never published under one name, nor one under two."""
    for seed in range(SPANS):
        random = Random(f"{ending} {seed}")
        folder = tmp_path / str(seed)
        folder.mkdir()
        paths, names, rows = draw(random, folder, ending)
        plan = IngestPlan(
            files={"all": paths},
            destination=str(folder / "out"),
            renamed={"old": "new"},
            dialect=Dialect(part_bytes=random.choice([1, 1 << 20])),
        )
        if {"old", "new"} <= names or (
            ending in ("csv", "parquet") and any(row.keys() != rows[0].keys() for row in rows)
        ):
            with pytest.raises(SpanwiseError, match=r"cannot be published as 'new'|must have the same columns"):
                ingest(plan)
            continue
        report = ingest(plan)
        found = [
            row for file in report.files for row in pq.read_table(Path(folder, "out/Split-all", file.name)).to_pylist()
        ]
        lacking = {"new": -1 if ending == "avro" else None} if len(names) > 1 else {}
        assert found == [lacking | row for row in rows], seed


@pytest.mark.parametrize("named", ["old", "new"])
@pytest.mark.parametrize("before", [True, False])
def test_null_values_know_a_column_by_both_of_its_names(tmp_path, named, before):
    """So one dialect reads the spans before and after a column has another name, and a column that is dropped."""
    write(tmp_path / "a.csv", "csv", [{"old" if before else "new": -999, "x": 1}], ["x", "old" if before else "new"])
    plan = IngestPlan(
        files={"all": (str(tmp_path / "a.csv"),)},
        destination=str(tmp_path / "out"),
        renamed={"old": "new"},
        dropped=("gone",),
        dialect=Dialect(null_values={named: ("-999",), "gone": ("-",)}),
    )

    ingest(plan)

    assert pq.read_table(tmp_path / "out/Split-all/part-00000.parquet").to_pylist() == [{"x": 1, "new": None}]
