"""What arrives is what was made: rows, batches and other elements, however they were packed."""

import numpy as np
import pyarrow as pa
import pytest

from spanwise.pipelines import input as inputs
from tests.pipelines.input.elements import plain
from tests.pipelines.input.service.servers import Service

TABLE = pa.table({"n": range(1_000), "text": pa.array(["a", "b"] * 500).dictionary_encode()}).replace_schema_metadata(
    {"made by": "us"}
)
DATASETS = {
    "rows": inputs.from_arrow(TABLE),
    "batches": inputs.from_arrow(TABLE).batch(64),
    "arrays": inputs.range(50).map(lambda number: {"x": np.arange(number), "y": (number, str(number), None)}),
    "ragged": inputs.range(20).map(np.arange).batch(4, ragged=True),
    "nothing": inputs.from_arrow(TABLE.slice(0, 0)),
}


@pytest.fixture(scope="module")
def service():
    with Service(1) as there:
        yield there


@pytest.mark.parametrize("compression", [None, "auto", "lz4", "zstd"])
@pytest.mark.parametrize("name", DATASETS)
def test_elements_arrive_as_they_were_made(service, name, compression):
    """Types, order and metadata of columns included."""
    dataset = DATASETS[name]
    found = list(dataset.distribute(service.target, compression=compression))

    assert [plain(element) for element in found] == [plain(element) for element in dataset]
    if name == "batches":
        assert found[0].schema == TABLE.schema
        assert found[0].schema.metadata == {b"made by": b"us"}


def test_blocks_arrive_as_blocks(service):
    """Rows are met as dicts only by whoever asks for one at a time."""
    blocks = list(DATASETS["rows"].distribute(service.target, "exactly_once").blocks())

    assert pa.Table.from_batches(blocks) == TABLE
