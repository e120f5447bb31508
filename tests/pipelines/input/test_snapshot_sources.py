"""Source files that change while a snapshot of them is written: it is not kept, whatever the format."""

import os

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.snapshot import split_writer

ROWS = 4_000

FORMATS = {
    "csv": (inputs.from_csv, pa.csv.write_csv),
    "parquet": (inputs.from_parquet, lambda table, path: pa.parquet.write_table(table, path, row_group_size=500)),
    "arrow": (inputs.from_arrow_files, lambda table, path: pa.feather.write_feather(table, path, chunksize=500)),
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(split_writer, "CHUNK_BYTES", 4_096)


@pytest.fixture(params=FORMATS)
def lake(request, tmp_path):
    """Two files of one format, what writes one, and what reads both."""
    read, write = FORMATS[request.param]
    paths = [str(tmp_path / f"{number}.{request.param}") for number in range(2)]

    def put(number, value):
        draft = f"{paths[number]}.new"
        write(pa.table({"x": [value] * ROWS}), draft)
        os.replace(draft, paths[number])  # noqa: PTH105  as writers do it

    put(0, 1)
    put(1, 1)
    return paths, put, lambda: read(paths).options(block_rows=500)


def values(dataset):
    return {element["x"] for element in dataset}


@pytest.mark.parametrize("files_by", ["mtime", "content"])
@pytest.mark.parametrize("writer_fn", [None, lambda dataset: [dataset.shard(2, 0), dataset.shard(2, 1)]])
def test_a_file_that_changes_while_it_is_read_is_not_kept(lake, tmp_path, files_by, writer_fn):
    """The pass says so at its end; the old file, brought back, is read anew."""
    paths, put, read = lake
    os.rename(paths[1], f"{paths[1]}.old")  # noqa: PTH104
    os.link(f"{paths[1]}.old", paths[1])
    pass_ = iter(read().snapshot(str(tmp_path / "kept"), files_by=files_by, writer_fn=writer_fn))
    next(pass_)
    put(1, 2)

    with pytest.raises(UnreadableInput, match=rf"{paths[1]} changed while (it was read|the dataset was in use)"):
        list(pass_)

    os.replace(f"{paths[1]}.old", paths[1])  # noqa: PTH105
    assert values(read().snapshot(str(tmp_path / "kept"), files_by=files_by)) == {1}


@pytest.mark.parametrize("lake", ["arrow", "parquet"], indirect=True)  # a small CSV file is one block
def test_chunks_of_a_pass_that_was_cut_short_are_not_reused_after_a_change(lake, tmp_path):
    """What a pass left when it was closed may hold rows of a file that is gone again."""
    paths, put, read = lake
    os.link(paths[1], f"{paths[1]}.old")
    pass_ = iter(read().snapshot(str(tmp_path / "kept")))
    next(pass_)
    put(1, 2)
    for _ in range(ROWS + 1_500):
        next(pass_)
    pass_.close()

    os.replace(f"{paths[1]}.old", paths[1])  # noqa: PTH105

    assert values(read().snapshot(str(tmp_path / "kept"))) == {1}


def test_a_new_permission_is_no_change(lake, tmp_path):
    """Only what a fingerprint covers makes another file."""
    paths, _, read = lake
    dataset = read().snapshot(str(tmp_path / "kept"))
    pass_ = iter(dataset)
    next(pass_)
    os.chmod(paths[1], 0o600)  # noqa: PTH101

    assert {element["x"] for element in pass_} == {1}
    assert list((tmp_path / "kept").glob("*/metadata.final"))


def test_a_dataset_of_files_that_have_changed_since_is_not_kept(lake, tmp_path):
    """Its fingerprint is that of the files when it was made."""
    _, put, read = lake
    dataset = read().snapshot(str(tmp_path / "kept"), files_by="content")
    put(0, 2)

    with pytest.raises(UnreadableInput, match="changed while the dataset was in use"):
        list(dataset)
