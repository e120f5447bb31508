"""Where elements go: tables, frames, arrays, PyTorch, JAX, TensorFlow. These libraries are imported here only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.arrays import as_arrays
from spanwise.pipelines.input.element import BatchSpec, Table
from spanwise.pipelines.input.flow import Flow
from spanwise.pipelines.input.op import check_whole
from spanwise.pipelines.input.rows import join_batches
from spanwise.pipelines.input.stacking import stack

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


def to_arrow(dataset: Flow) -> pa.Table:
    import pyarrow as pa

    spec = dataset.spec
    if isinstance(spec, Table | BatchSpec):
        with dataset.blocks() if isinstance(spec, Table) else dataset.iterator() as blocks:
            return pa.Table.from_batches(list(blocks), spec.schema)
    with dataset.iterator() as elements:
        rows = list(elements)
    if not all(isinstance(row, dict) for row in rows):
        raise DatasetError("to_arrow: the elements are neither rows nor dicts, so the columns have no names.")
    names = dict.fromkeys(name for row in rows for name in row)  # of all rows: the first may lack some
    try:
        return pa.table({name: [row.get(name) for row in rows] for name in names})
    except pa.ArrowException as error:
        raise DatasetError(f"to_arrow: the elements do not form a table: {error}.") from error


def to_polars(table: pa.Table) -> pl.DataFrame:
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def to_numpy(dataset: Flow) -> Any:
    import pyarrow as pa

    if isinstance(dataset.spec, Table | BatchSpec):
        table = to_arrow(dataset)
        empty = pa.RecordBatch.from_pylist([], table.schema)
        return as_arrays(join_batches([empty, *table.to_batches()]))
    with dataset.iterator() as elements:
        found = list(elements)
    return stack(found) if found else []


def to_torch(dataset: Flow, *, prefetch: int, **handover: Any) -> Any:
    check_whole("to_torch", "prefetch", prefetch, at_least=0)
    try:
        import torch  # noqa: F401  says whether it is there
    except ModuleNotFoundError as error:
        raise DatasetError("to_torch: PyTorch is not installed: pip install torch") from error
    from spanwise.pipelines.input.torch_dataset import Handover, TorchDataset

    return TorchDataset(dataset, Handover(prefetch=prefetch, **handover))


def to_jax(dataset: Flow, *, sharding: Any, prefetch: int) -> Any:
    check_whole("to_jax", "prefetch", prefetch, at_least=0)
    try:
        import jax  # noqa: F401  says whether it is there
    except ModuleNotFoundError as error:
        raise DatasetError("to_jax: JAX is not installed: pip install jax") from error
    from spanwise.pipelines.input.jax_arrays import JaxArrays

    return JaxArrays(dataset, sharding, prefetch)


def to_tf(dataset: Flow, signature: Any) -> Any:
    try:
        import tensorflow  # noqa: F401, ICN001  says whether it is there
    except ModuleNotFoundError as error:
        raise DatasetError("to_tf: TensorFlow is not installed: pip install tensorflow") from error
    from spanwise.pipelines.input.tf_dataset import make_dataset

    return make_dataset(dataset, signature)
