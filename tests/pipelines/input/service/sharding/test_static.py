"""The files of a graph, shared by a fixed list of workers."""

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input.service.policy import ShardingPolicy
from spanwise.pipelines.input.service.sharding.static import cut_to_shard


@pytest.mark.parametrize("shards", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv"])
def test_a_file_that_is_named_twice_is_read_twice_by_all_workers_together(tmp_path, kind, shards):
    """As without workers, where a file is named again so that its rows count for more."""
    names = [tmp_path / name for name in "abc"]
    for number, path in enumerate(names):
        rows = pa.table({"row": range(4 * number, 4 * number + 4)})
        {
            "parquet": lambda rows, path: pq.write_table(rows, path, row_group_size=3),
            "arrow": pyarrow.feather.write_feather,
            "csv": lambda rows, path: rows.to_pandas().to_csv(path, index=False),
        }[kind](rows, path)
    read = {"parquet": inputs.from_parquet, "arrow": inputs.from_arrow_files, "csv": inputs.from_csv}[kind]
    dataset = read([names[0], names[0], names[1], names[0], names[2]])

    parts = [inputs.Dataset(cut_to_shard(dataset.op, ShardingPolicy.FILE, shards, index)) for index in range(shards)]

    rows = [row["row"] for part in parts for row in part]
    assert sorted(rows) == sorted(row["row"] for row in dataset)
