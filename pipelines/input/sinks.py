"""Where elements go: tables, frames, arrays, PyTorch, JAX, TensorFlow. These libraries are imported here only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.arrays import as_arrays
from spanwise.pipelines.input.element import BatchSpec, Table
from spanwise.pipelines.input.exact_columns import is_rounded_beside_nulls, refuse_cut, unmasked
from spanwise.pipelines.input.flow import Flow
from spanwise.pipelines.input.op import check_whole
from spanwise.pipelines.input.rows import empty_batch, join_batches
from spanwise.pipelines.input.stacking import stack

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


class Sinks(Flow):
    """A flow whose elements can be handed to other libraries."""

    def to_arrow(self) -> pa.Table:
        """All rows (or batches, or dicts as rows) as one table."""
        import pyarrow as pa

        self._check_finite("to_arrow")
        spec = self.spec
        if isinstance(spec, Table | BatchSpec):
            with self.blocks() if isinstance(spec, Table) else self.iterator() as blocks:
                return pa.Table.from_batches(list(blocks), spec.schema)
        with self.iterator() as elements:
            rows = list(elements)
        if not all(isinstance(row, dict) for row in rows):
            raise DatasetError("to_arrow: the elements are neither rows nor dicts, so the columns have no names.")
        names = dict.fromkeys(name for row in rows for name in row)  # of all rows: the first may lack some
        try:
            columns = {name: [unmasked(row.get(name)) for row in rows] for name in names}
            table = pa.table(columns)
            for name, values in columns.items():
                refuse_cut(name, values, table[name].type)
        except (pa.ArrowException, DatasetError, OverflowError, TypeError) as error:
            text = str(error).removesuffix(".")
            raise DatasetError(f"to_arrow: the elements do not form a table: {text}.") from error
        return table

    def to_pandas(self) -> Any:
        """Like `to_arrow`, as a pandas frame.

        Whole numbers beside a null are floats there, as Arrow makes them. Where these would be other numbers, a column
        is of pandas' `Int64` or `UInt64`, and one of lists or structs of such numbers holds Python's values.
        """
        import pandas as pd
        import pyarrow as pa

        table = self.to_arrow()
        frame = table.to_pandas()
        nullable: dict[pa.DataType, Any] = {pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype()}
        for name in frame.columns.intersection(table.column_names):
            column = table.column(name).combine_chunks()
            if is_rounded_beside_nulls(column):
                is_plain = column.type in nullable
                exact = column.to_pandas(types_mapper=nullable.get) if is_plain else pd.Series(column.to_pylist())
                frame[name] = exact.array
        return frame

    def to_polars(self) -> pl.DataFrame:
        """Like `to_arrow`, as a Polars frame."""
        import polars as pl

        table = self.to_arrow()
        try:
            frame = pl.from_arrow(table)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # a panic is no Exception
            raise DatasetError(
                f"to_polars: Polars has no type for a column: {error}. The columns are "
                f"{', '.join(f'{each.name}: {each.type}' for each in table.schema)}. Convert it, or use to_arrow."
            ) from error
        assert isinstance(frame, pl.DataFrame), "what becomes of a table"
        return frame

    def to_numpy(self) -> Any:
        """All elements as one batch: arrays, or a structure of them."""
        self._check_finite("to_numpy")
        if isinstance(self.spec, Table | BatchSpec):
            table = self.to_arrow()
            return as_arrays(join_batches(table.to_batches() or [empty_batch(table.schema)]))
        with self.iterator() as elements:
            found = list(elements)
        return stack(found) if found else []

    def to_torch(
        self,
        *,
        copy: bool = True,
        pin_memory: bool = False,
        device: Any = None,
        prefetch: int = 0,
        lightning: bool = False,
    ) -> Any:
        """A `torch.utils.data.IterableDataset`; each worker of a DataLoader yields its share of the elements.

        Without `copy`, tensors share the memory of the dataset's arrays where they can, so nobody may write to them.
        Tensors are put into pinned memory, or on a device, `prefetch` elements ahead; with workers the loader does the
        former: `DataLoader(…, pin_memory=True)`. Its iterators have `state_dict` and `load_state_dict`, which
        torchdata's `StatefulDataLoader`, and Lightning with it, save and restore. With `lightning`, a state leaves out
        the element that Lightning reads ahead where the number of elements is not known; a loader without workers.
        """
        check_whole("to_torch", "prefetch", prefetch, at_least=0)
        try:
            import torch  # noqa: F401  says whether it is there
        except ModuleNotFoundError as error:
            raise DatasetError("to_torch: PyTorch is not installed: pip install torch") from error
        from spanwise.pipelines.input.torch_dataset import Handover, TorchDataset

        handover = Handover(copy=copy, pin_memory=pin_memory, device=device, prefetch=prefetch, lightning=lightning)
        return TorchDataset(self, handover)

    def to_jax(self, *, sharding: Any = None, prefetch: int = 0) -> Any:
        """An iterable of elements whose leaves are JAX arrays.

        They are placed by `sharding`: a device, a sharding such as `NamedSharding(mesh, PartitionSpec("data"))`,
        or a function of a leaf that returns one; `prefetch` elements ahead of their use. With several processes, the
        elements of each are its part of the whole. An array that nobody can write to is not copied on a CPU.
        """
        check_whole("to_jax", "prefetch", prefetch, at_least=0)
        try:
            import jax  # noqa: F401  says whether it is there
        except ModuleNotFoundError as error:
            raise DatasetError("to_jax: JAX is not installed: pip install jax") from error
        from spanwise.pipelines.input.jax_arrays import JaxArrays

        return JaxArrays(self, sharding, prefetch)

    def to_tf(self, *, signature: Any = None) -> Any:
        """A `tf.data.Dataset` of the elements; each pass is the dataset's next one.

        The types of its tensors are known from the graph, or from its first element, with which the first pass is
        begun; or they are given: `signature` is what `tf.data.Dataset.from_generator` calls `output_signature`. What no
        tensor can hold is refused here where the graph shows it, else when it comes. Dataclasses become dicts.
        """
        try:
            import tensorflow  # noqa: F401, ICN001  says whether it is there
        except ModuleNotFoundError as error:
            raise DatasetError("to_tf: TensorFlow is not installed: pip install tensorflow") from error
        from spanwise.pipelines.input.tf_dataset import make_dataset

        return make_dataset(self, signature)

    def _check_finite(self, sink: str) -> None:
        if self.cardinality == math.inf:
            raise DatasetError(f"{sink}: this dataset never ends; limit it with take(n).")
