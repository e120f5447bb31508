"""Splits and shards of every source: together they are the source, and none has what another one has."""

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.op import Options
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.sharding.splits import cut_to_split, plan_graph, split_graph
from spanwise.pipelines.input.service.sharding.static import cut_to_shard


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Datasets of the rows or numbers 0 to 999 (and their names), one for each kind of source."""
    folder = tmp_path_factory.mktemp("sources")
    tables = [pa.table({"n": range(start, start + 200)}) for start in range(0, 1_000, 200)]
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=70)
        pacsv.write_csv(table, folder / f"{number}.csv")
        with pa.ipc.new_file(folder / f"{number}.arrow", table.schema) as file:
            file.write_table(table)
    whole = pa.table({"n": range(1_000)})
    return {
        "range": inputs.range(1_000).map(lambda n: {"n": n}),
        "backwards": inputs.range(999, -1, -1).map(lambda n: {"n": n}),
        "elements": inputs.from_elements([{"n": n} for n in range(1_000)]),
        "slices": inputs.from_tensor_slices({"n": list(range(1_000))}),
        "arrow": inputs.from_arrow(pa.concat_tables([whole])),
        "parquet": inputs.from_parquet(str(folder / "*.parquet")),
        "shuffled": inputs.from_parquet(str(folder / "*.parquet"), shuffle=True, seed=1),
        "filtered": inputs.from_parquet(str(folder / "*.parquet")).filter(inputs.col("n") >= 0),
        "csv": inputs.from_csv(str(folder / "*.csv")),
        "ipc": inputs.from_arrow_files(str(folder / "*.arrow")),
        "concatenated": inputs.range(500).concatenate(inputs.range(500, 1_000)).map(lambda n: {"n": n}),
    }


KINDS = [
    "range",
    "backwards",
    "elements",
    "slices",
    "arrow",
    "parquet",
    "shuffled",
    "filtered",
    "csv",
    "ipc",
    "concatenated",
]


def numbers(op):
    return [int(element["n"]) for element in inputs.Dataset(op)]


@pytest.mark.parametrize("kind", KINDS)
def test_splits_are_the_source(sources, kind):
    """Every element is in one split, and no split is empty."""
    plan = plan_graph(sources[kind].op, Options())
    shares = split_graph(plan)
    parts = [numbers(cut_to_split(plan, number)) for number in range(sum(shares.splits))]

    assert all(parts)
    assert sorted(number for part in parts for number in part) == list(range(1_000))
    assert sum(shares.splits) <= 512


@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_the_source(sources, kind):
    """Every element is in one of three shards; of files, whole files are."""
    shards = [numbers(cut_to_shard(sources[kind].op, ShardingPolicy.FILE_OR_DATA, 3, index)) for index in range(3)]

    assert sorted(number for shard in shards for number in shard) == list(range(1_000))
    if kind in {"parquet", "csv", "ipc"}:
        assert [len(shard) for shard in shards] == [400, 400, 200]
