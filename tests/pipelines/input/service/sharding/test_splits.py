"""Splits and shards of every source: together they are the source, and none has what another one has."""

import re
from dataclasses import replace

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.op import Options
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.sharding import splits
from spanwise.pipelines.input.service.sharding.splits import (
    LARGE_BYTES,
    describe_split,
    plan_graph,
    split_graph,
    splits_of,
    splitter_of,
)
from spanwise.pipelines.input.service.sharding.static import cut_to_shard
from spanwise.pipelines.input.service.wire.shipped_graph import ShippedGraph


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Datasets of the rows or numbers 0 to 999 (and their names), one for each kind of source."""
    folder = tmp_path_factory.mktemp("sources")
    tables = [pa.table({"n": range(start, start + 200)}) for start in range(0, 1_000, 200)]
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=70)
        pq.write_table(table, folder / f"small_{number}.parquet", row_group_size=1)
        pacsv.write_csv(table, folder / f"{number}.csv")
        with pa.ipc.new_file(folder / f"{number}.arrow", table.schema) as file:
            file.write_table(table)
    for number in range(1_000):
        (folder / f"{number:03}.txt").write_text(f"{number}\n")
    names = [str(folder / f"{number:03}.txt") for number in range(1_000)]
    whole = pa.table({"n": range(1_000)})
    return {
        "range": inputs.range(1_000).map(lambda n: {"n": n}),
        "backwards": inputs.range(999, -1, -1).map(lambda n: {"n": n}),
        "elements": inputs.from_elements([{"n": n} for n in range(1_000)]),
        "slices": inputs.from_tensor_slices({"n": list(range(1_000))}),
        "arrow": inputs.from_arrow(pa.concat_tables([whole])),
        "parquet": inputs.from_parquet(str(folder / "?.parquet")),
        "small groups": inputs.from_parquet(str(folder / "small_*.parquet")),
        "shuffled": inputs.from_parquet(str(folder / "?.parquet"), shuffle=True, seed=1),
        "filtered": inputs.from_parquet(str(folder / "?.parquet")).filter(inputs.col("n") >= 0),
        "csv": inputs.from_csv(str(folder / "*.csv")),
        "ipc": inputs.from_arrow_files(str(folder / "*.arrow")),
        "small files": inputs.from_text(names).map(lambda line: {"n": int(line)}),
        "names": inputs.list_files(names).map(lambda name: {"n": int(name[-7:-4])}),
        "shuffled names": inputs.list_files(names, shuffle=True, seed=1).map(lambda name: {"n": int(name[-7:-4])}),
        "concatenated": inputs.range(500).concatenate(inputs.range(500, 1_000)).map(lambda n: {"n": n}),
    }


KINDS = [
    "range",
    "backwards",
    "elements",
    "slices",
    "arrow",
    "parquet",
    "small groups",
    "shuffled",
    "filtered",
    "csv",
    "ipc",
    "small files",
    "names",
    "shuffled names",
    "concatenated",
]


def numbers(op):
    return [int(element["n"]) for element in inputs.Dataset(op)]


@pytest.mark.parametrize("most", [256, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_splits_are_the_source(sources, kind, most, monkeypatch):
    """Every element is in one split, no split is empty, and there are not many of small ones."""
    monkeypatch.setattr(splits, "_SPLITS", most)
    plan = plan_graph(ShippedGraph.of(sources[kind]).op, Options())
    shares = split_graph(plan)
    parts = [numbers(each) for each in map(splitter_of(plan), range(sum(shares.splits)))]

    assert all(parts)
    assert sorted(number for part in parts for number in part) == list(range(1_000))
    assert max(shares.splits) <= most


def test_a_split_of_several_files_is_described_by_the_first(sources, monkeypatch):
    """With how many there are, and with its rows where they are known."""
    monkeypatch.setattr(splits, "_SPLITS", 2)
    kinds = ("small files", "small groups", "shuffled names")
    text, groups, names = (plan_graph(ShippedGraph.of(sources[kind]).op, Options()) for kind in kinds)

    assert re.fullmatch(r"split 0: \S*/000.txt, \S*/001.txt and \d+ more", describe_split(text, 0))
    assert re.fullmatch(
        r"split 1: rows 500 to 999 of Parquet, in \S*/small_2.parquet, \S*/small_3.parquet, \S*/small_4.parquet",
        describe_split(groups, 1),
    )
    assert describe_split(names, 1) == "split 1: places 500 to 999 of the random order of FileNames"


@given(sizes=st.lists(st.integers(1, 10_000_000), max_size=1_000))
def test_row_groups_share_a_split_only_where_there_would_be_many(sources, sizes):
    """At most 256 splits have less than 4 MiB, and none is larger than that by more than its last row group."""
    op = sources["small groups"].op
    op = replace(op, groups=tuple(replace(each, size_bytes=size) for each, size in zip(op.groups, sizes, strict=False)))
    found = splits_of(op)
    parts = [found.part(number).groups for number in range(found.count)]

    assert [group for part in parts for group in part] == list(op.groups)
    assert len([part for part in parts if sum(group.size_bytes for group in part) < LARGE_BYTES]) <= 256
    assert all(sum(group.size_bytes for group in part[:-1]) < LARGE_BYTES for part in parts)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_the_source(sources, kind):
    """Every element is in one of three shards; of files, whole files are."""
    shards = [numbers(cut_to_shard(sources[kind].op, ShardingPolicy.FILE_OR_DATA, 3, index)) for index in range(3)]

    assert sorted(number for shard in shards for number in shard) == list(range(1_000))
    if kind in {"parquet", "small groups", "csv", "ipc"}:
        assert [len(shard) for shard in shards] == [400, 400, 200]
