"""RecordBatches as dicts of NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.arrays import as_array, as_arrays
from spanwise.pipelines.input.element import UNKNOWN, ArraySpec, BatchSpec, Spec, Structure
from spanwise.pipelines.input.op import Element, Op, Opening, SingleInputStream, Stream


@dataclass(frozen=True, kw_only=True, eq=False)
class AsNumpy(Op):
    by_element = True

    input: Op

    def __post_init__(self) -> None:
        if not isinstance(self.input.spec, BatchSpec):
            raise DatasetError("as_numpy: the elements are not RecordBatches; batch the rows first.")

    @property
    def spec(self) -> Spec:
        assert isinstance(self.input.spec, BatchSpec)
        return array_specs(self.input.spec)

    def open(self, opening: Opening) -> Stream:
        return AsNumpyStream(opening.open(self.input))


def array_specs(batch: BatchSpec) -> Spec:
    """The spec of such RecordBatches as dicts of arrays, as far as the column types define it."""
    import pyarrow as pa

    if batch.schema is None:
        return UNKNOWN
    parts: list[Spec] = []
    for field in batch.schema:
        flat = pa.types.is_primitive(field.type)
        # of an empty column: `to_pandas_dtype` wants pandas, which may be missing
        name = as_array(pa.nulls(0, field.type)).dtype.name if flat else "object"
        parts.append(ArraySpec(name, (batch.rows,)) if not pa.types.is_nested(field.type) else UNKNOWN)
    return Structure(dict, tuple(batch.schema.names), tuple(parts))


class AsNumpyStream(SingleInputStream):
    def __next__(self) -> Element:
        return as_arrays(next(self._source))
