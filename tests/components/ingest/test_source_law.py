"""The law of sources: the rows of a span are those of its files, wherever these are and however they are cut.

Files of odd names are drawn from a seed, and written to a folder and to a bucket. `csv` and `json` of the standard
library say what rows they have. SPANWISE_TEST_SOURCES is the number of spans that are drawn.
"""

import bz2
import csv
import gzip
import io
import json
import os
import random
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.components.ingest.fingerprint import fingerprint
from spanwise.components.ingest.ingestion import ingest
from spanwise.components.ingest.plan import IngestPlan
from spanwise.components.ingest.readers import Dialect
from spanwise.components.ingest.source_files import SourceFiles, copy_objects
from spanwise.orchestrator.span import choose
from spanwise.orchestrator.span_pattern import SpanPattern
from spanwise.orchestrator.storage import machine_copies, open_bucket, parse_url
from tests.contract.object_storage import SERVERS, serve

SPANS = int(os.environ.get("SPANWISE_TEST_SOURCES", "6"))
NAMES = [
    "a b", "100%", "%41", "a+b", "a#b", "a?b", "[1]", "{x}", "x=1", "it's", '"q"', "ü", "u\u0308", "日本", "_", "~", "*",
]  # fmt: skip
WORDS = [
    "x", "7", "a,b", 'say "hi"', '5" pipe', "two\nlines", "cr\r\nlf", " x ", "é", "😀", "NA", "'", "\\", ";", "\t",
]  # fmt: skip
PATTERNS = [
    ("{place}/{YYYY}-{MM}-{DD}/v{VERSION}/*", "{place}/2024-12-31/v2/{name}"),
    ("{place}/{GGGG}-W{WW}/**/*.*", "{place}/2025-W01/deep/{name}"),
    ("{place}/day={SPAN}/v{VERSION:2}/*", "{place}/day=0007/v02/{name}"),
    ("{place}/*/n{SPAN}-*", "{place}/x/n7-{name}"),
]


@pytest.fixture(scope="module", params=["moto", *SERVERS])
def home(request):
    with serve(request.param) as home:
        yield home


@pytest.fixture
def _own_copies(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    machine_copies.cache_clear()
    yield
    machine_copies.cache_clear()


def draw_files(dice):
    """The columns of a span, and its files by name, with the rows of each. Those of CSV may have none."""
    columns = dice.sample(["a", "b", "c d", "é", "x.y"], dice.randint(1, 4))
    ending, write = dice.choice([("csv", write_csv), ("jsonl", write_jsonl)])
    files = {}
    for name in dice.sample(NAMES, dice.randint(1, 4)):
        fewest = 0 if files and write is write_csv else 1
        rows = [{column: dice.choice(WORDS) for column in columns} for _ in range(dice.choice([fewest, 1, 5, 40]))]
        compression, compress = dice.choice([("", bytes), ("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)])
        files[f"{name}.{ending}{compression}"] = compress(write(dice, columns, rows)), rows
    return columns, files


def write_csv(dice, columns, rows):
    out = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if len(columns) == 1 else dice.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
    writer = csv.DictWriter(
        out, dice.sample(columns, len(columns)), lineterminator=dice.choice(["\n", "\r\n"]), quoting=quoting
    )
    writer.writeheader()
    writer.writerows(rows)
    return dice.choice([b"", b"\xef\xbb\xbf"]) + out.getvalue().encode()


def write_jsonl(dice, columns, rows):
    newline = dice.choice(["\n", "\r\n", "\n\n"])
    return newline.join(json.dumps(row, ensure_ascii=dice.random() < 0.5) for row in rows).encode()


def rows_of(pattern, folder, dialect, columns):
    """What is ingested of the newest span, its fingerprint, and the names of its files."""
    source = SourceFiles()
    block = choose({"all": SpanPattern.parse(pattern)}, source.list)
    local = copy_objects(block.files, source.revisions)
    files = {split: tuple(local[path] for path in paths) for split, paths in block.files.items()}
    types = dict.fromkeys(columns, "string")
    ingest(IngestPlan(files=files, destination=str(folder), dialect=dialect, types=types))
    table = pa.concat_tables(pq.read_table(file) for file in sorted(Path(folder, "Split-all").iterdir()))
    return table.to_pylist(), fingerprint(files), (block.span, block.version)


@pytest.mark.usefixtures("_own_copies")
def test_a_span_is_the_same_wherever_its_files_are_and_however_they_are_cut(home, tmp_path):
    """On a disk and in object storage, as one piece and as many; and it is what the standard library reads."""
    for seed in range(SPANS):
        dice = random.Random(f"source {seed}")
        columns, files = draw_files(dice)
        pattern, place = dice.choice(PATTERNS)
        disk, url = tmp_path / f"{seed} %+#'é", f"{home}/{uuid.uuid4().hex} %+#'é"
        for name, (content, _) in files.items():
            path = Path(place.format(place=disk, name=name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            there = parse_url(place.format(place=url, name=name))
            open_bucket(there.home).write(there.key, content)
        found = [
            rows_of(pattern.replace("{place}", str(where)), tmp_path / f"out-{seed}-{number}", dialect, columns)
            for number, (where, dialect) in enumerate(
                (where, Dialect(block_bytes=dice.choice([7, 100]), part_bytes=part_bytes))
                for where in (disk, url)
                for part_bytes in (1 << 20, dice.choice([1, 50, 300]))
            )
        ]

        assert len({(mark, at) for _, mark, at in found}) == 1, seed
        assert all(rows == found[0][0] for rows, _, _ in found), seed
        assert found[0][0] == [row for name in sorted(files) for row in files[name][1]], seed
