"""How elements become Arrow blocks, and blocks become exactly the same elements again.

Rows stay as they are, and so do RecordBatches that are single elements. Any other element is taken apart: each leaf
becomes a cell of a kind, a shape and bytes; the chunk's layout lists the structures and kinds once.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import BatchSpec, ElementSpec, Ragged, Sparse, Table, build, parts_of
from spanwise.pipelines.input.op import Element
from spanwise.pipelines.input.rows import block_bytes, join_batches
from spanwise.pipelines.input.snapshot.cells import Cell, LeafReader, batch_bytes, leaf_reader, read_batch, write_leaf
from spanwise.pipelines.input.snapshot.element_types import element_type, register_type, register_types_of

if TYPE_CHECKING:
    import pyarrow as pa

Piece: TypeAlias = Any
"""What a stream yields at once: a block of rows, or one element."""

_BLOCK_ROWS: Final = 65_536
_SMALL_BLOCK_ROWS: Final = 8_192
_BLOCK_ELEMENTS: Final = 1_024


class Encoding(ABC):
    """One way to lay out pieces in blocks."""

    kind: str  #: as a chunk's header names it

    @abstractmethod
    def count(self, piece: Piece) -> int:
        """How many elements a piece is."""

    @abstractmethod
    def size_bytes(self, piece: Piece) -> int:
        """Roughly how much memory it takes."""

    @abstractmethod
    def cut(self, piece: Piece, start: int, stop: int) -> Piece:
        """Some of a piece's elements."""

    @abstractmethod
    def pack(self, pieces: Sequence[Piece]) -> tuple[pa.Schema, list[pa.RecordBatch], str]:
        """The blocks of a chunk, their schema, and what `unpack` needs to know."""

    @abstractmethod
    def unpack(self, blocks: Sequence[pa.RecordBatch], layout: str, skip: int) -> Iterator[Piece]:
        """The pieces of a chunk without its first `skip` elements."""


class RowsEncoding(Encoding):
    kind = "rows"

    def count(self, piece: pa.RecordBatch) -> int:
        return int(piece.num_rows)

    def size_bytes(self, piece: pa.RecordBatch) -> int:
        return block_bytes(piece)

    def cut(self, piece: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
        return piece.slice(start, stop - start)

    def pack(self, pieces: Sequence[pa.RecordBatch]) -> tuple[pa.Schema, list[pa.RecordBatch], str]:
        import pyarrow as pa

        try:
            table = pa.Table.from_batches(pieces)
        except pa.ArrowInvalid as error:
            raise DatasetError(f"snapshot: blocks with different columns cannot be stored together: {error}") from error
        if len(pieces) * _SMALL_BLOCK_ROWS > table.num_rows:
            table = table.combine_chunks()
        return table.schema, table.to_batches(max_chunksize=_BLOCK_ROWS), ""

    def unpack(self, blocks: Sequence[pa.RecordBatch], layout: str, skip: int) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        for block in blocks:
            if skip < block.num_rows:
                yield block.slice(skip) if skip else block
            skip = max(0, skip - block.num_rows)


class BatchesEncoding(Encoding):
    """Batches are concatenated into large blocks; the layout holds their numbers of rows, run-length encoded."""

    kind = "batches"

    def count(self, piece: pa.RecordBatch) -> int:  # noqa: ARG002
        return 1

    def size_bytes(self, piece: pa.RecordBatch) -> int:
        return block_bytes(piece)

    def cut(self, piece: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:  # noqa: ARG002  it is one
        return piece

    def pack(self, pieces: Sequence[pa.RecordBatch]) -> tuple[pa.Schema, list[pa.RecordBatch], str]:
        schema = pieces[0].schema
        other = next((piece.schema for piece in pieces if piece.schema != schema), None)
        if other is not None:
            raise DatasetError(
                f"snapshot: batches with different columns cannot be stored together: {schema} and {other}."
            )
        blocks, runs = [], []
        for some in _group(pieces):
            blocks.append(join_batches(some))
            runs.append([[size, len(list(equal))] for size, equal in groupby(piece.num_rows for piece in some)])
        return schema, blocks, json.dumps(runs)

    def unpack(self, blocks: Sequence[pa.RecordBatch], layout: str, skip: int) -> Iterator[pa.RecordBatch]:
        if not layout:  # an earlier format: each batch is a block
            yield from blocks[skip:]
            return
        for block, runs in zip(blocks, json.loads(layout), strict=True):
            at = 0
            for size, times in runs:
                skipped = min(skip, times)
                skip -= skipped
                at += skipped * size
                for _ in range(times - skipped):
                    yield block.slice(at, size)
                    at += size


def _group(pieces: Sequence[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Pieces in groups, each for one block."""
    some: list[pa.RecordBatch] = []
    rows = 0
    for piece in pieces:
        some.append(piece)
        rows += piece.num_rows
        if rows >= _BLOCK_ROWS or len(some) == _BLOCK_ELEMENTS:
            yield some
            some, rows = [], 0
    if some:
        yield some


class ElementsEncoding(Encoding):
    kind = "elements"

    def count(self, piece: Element) -> int:  # noqa: ARG002
        return 1

    def size_bytes(self, piece: Element) -> int:
        leaves: list[Any] = []
        _flatten(piece, leaves)
        return sum(_size(leaf) for leaf in leaves)

    def cut(self, piece: Element, start: int, stop: int) -> Element:  # noqa: ARG002  it is one
        return piece

    def pack(self, pieces: Sequence[Element]) -> tuple[pa.Schema, list[pa.RecordBatch], str]:
        import pyarrow as pa

        structures: dict[Any, int] = {}
        kinds: dict[str, int] = {}
        rows: list[tuple[int, list[Cell]]] = []
        for piece in pieces:
            leaves: list[Any] = []
            structure = _flatten(piece, leaves)
            rows.append((structures.setdefault(structure, len(structures)), [_cell(leaf) for leaf in leaves]))
        width = max(len(cells) for _, cells in rows)
        cell = pa.struct([("kind", pa.int32()), ("shape", pa.list_(pa.int64())), ("data", pa.large_binary())])
        schema = pa.schema([("structure", pa.int32()), *((f"leaf {at}", cell) for at in range(width))])
        blocks = []
        for start in range(0, len(rows), _BLOCK_ELEMENTS):
            some = rows[start : start + _BLOCK_ELEMENTS]
            columns: list[pa.Array[Any]] = [pa.array([number for number, _ in some], pa.int32())]
            for at in range(width):
                column = [cells[at] if at < len(cells) else None for _, cells in some]
                parts = [
                    pa.array([c and kinds.setdefault(c[0], len(kinds)) for c in column], pa.int32()),
                    pa.array([c and c[1] for c in column], pa.list_(pa.int64())),
                    pa.array([c and c[2] for c in column], pa.large_binary()),
                ]
                columns.append(pa.StructArray.from_arrays(parts, fields=list(cell)))
            blocks.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return schema, blocks, json.dumps({"structures": list(structures), "kinds": list(kinds)})

    def unpack(self, blocks: Sequence[pa.RecordBatch], layout: str, skip: int) -> Iterator[Element]:
        known = json.loads(layout)
        structures = [_reader(structure) for structure in known["structures"]]
        kinds = [leaf_reader(kind, _unpack_items) for kind in known["kinds"]]
        for block in blocks:
            if skip >= block.num_rows:
                skip -= block.num_rows
                continue
            columns = [_cells(column, kinds) for column in block.slice(skip).columns[1:]]
            numbers: list[Any] = block.slice(skip).column(0).to_pylist()
            skip = 0
            for at, number in enumerate(numbers):
                leaves = (column[at] for column in columns)
                yield structures[number](leaves)


ENCODINGS: Final = {encoding.kind: encoding for encoding in (RowsEncoding(), BatchesEncoding(), ElementsEncoding())}


def encoding_of(spec: ElementSpec) -> Encoding:
    """How the elements of a dataset are encoded; also registers the types that their description names."""
    register_types_of(spec)
    return ENCODINGS["rows" if isinstance(spec, Table) else "batches" if isinstance(spec, BatchSpec) else "elements"]


_LEAF: Final = "."


def _flatten(value: Element, leaves: list[Any]) -> Any:
    """The structure of an element; its leaves are appended in order. Hashable, and unchanged by JSON."""
    import numpy as np

    if isinstance(value, Ragged):
        values = _flatten(value.values, leaves)
        leaves.append(value.offsets)
        return "ragged" if values == _LEAF else f"ragged, {values}"
    if isinstance(value, Sparse):
        leaves.append(value.indices)
        values = _flatten(value.values, leaves)
        leaves.append(np.asarray(value.shape, np.int64))
        return "sparse" if values == _LEAF else f"sparse, {values}"
    if isinstance(value, np.ma.MaskedArray):
        return _flatten_masked(value, leaves)
    taken = parts_of(value)
    if taken is None:
        leaves.append(value)
        return _LEAF
    names, parts = taken
    if not all(isinstance(name, str) for name in names):
        raise DatasetError(f"snapshot: an element has keys that are not strings: {names!r:.80}.")
    kind = type(value)
    if isinstance(value, dict) and kind is not dict:
        raise DatasetError(f"snapshot: an element holds a {kind.__qualname__}; convert it to a plain dict.")
    home = "" if kind in {dict, tuple} else register_type(kind).__module__
    return (home, kind.__qualname__, tuple(names), tuple(_flatten(part, leaves) for part in parts))


def _flatten_masked(value: Any, leaves: list[Any]) -> str:
    import numpy as np

    from spanwise.pipelines.input.nullable import NullableArray

    if value is np.ma.masked:
        return "missing"
    kind = "nullable" if isinstance(value, NullableArray) else "masked"
    leaves += [value.data, np.ma.getmaskarray(value)]
    fill = value._fill_value  # noqa: SLF001  None if not set
    if fill is None:
        return kind
    leaves.append(np.asarray(fill))
    return f"{kind}, filled"


def _masked_reader(structure: str) -> Callable[[Iterator[Any]], Any]:
    import numpy as np

    from spanwise.pipelines.input.nullable import NullableArray

    if structure == "missing":
        return lambda _: np.ma.masked
    kind = NullableArray if structure.startswith("nullable") else np.ma.MaskedArray
    if structure.endswith("filled"):
        return lambda leaves: kind(next(leaves), next(leaves), fill_value=next(leaves)[()])
    return lambda leaves: kind(next(leaves), next(leaves))


def _reader(structure: Any) -> Callable[[Iterator[Any]], Element]:
    """A function that builds an element from its leaves."""
    if structure == _LEAF:
        return next
    if isinstance(structure, str):
        outer, _, rest = structure.partition(", ")
        if outer not in {"ragged", "sparse"}:
            return _masked_reader(structure)
        values = _reader(rest or _LEAF)
        if outer == "ragged":
            return lambda leaves: Ragged(values(leaves), next(leaves))
        return lambda leaves: Sparse(next(leaves), values(leaves), tuple(next(leaves).tolist()))
    home, name, names, parts = structure
    kind = _class(home, name)
    readers = [_reader(part) for part in parts]
    return lambda leaves: build(kind, names, [read(leaves) for read in readers])


def _class(home: str, name: str) -> type:
    if not home:
        return {"dict": dict, "tuple": tuple}[name]
    return element_type(home, name)


def _cell(leaf: Any) -> Cell:
    return write_leaf(leaf, _pack_items)


def _pack_items(items: Sequence[Any]) -> bytes:
    """The items of a list or of an array of objects, each an element of its own."""
    schema, blocks, layout = ENCODINGS["elements"].pack(items)
    return batch_bytes(join_batches(blocks).cast(schema.with_metadata({_LAYOUT: layout.encode()})))


def _unpack_items(data: bytes) -> list[Any]:
    batch = read_batch(data)
    return list(ENCODINGS["elements"].unpack([batch], (batch.schema.metadata or {})[_LAYOUT].decode(), 0))


_LAYOUT: Final = b"layout"


def _size(leaf: Any) -> int:
    size: int = leaf.nbytes if hasattr(leaf, "nbytes") else len(leaf) if isinstance(leaf, str | bytes) else 8
    return size + 16


def _cells(column: pa.Array[Any], kinds: Sequence[LeafReader]) -> list[Any]:
    cells = cast("pa.StructArray", column)
    numbers, shapes, data = (cells.field(name).to_pylist() for name in ("kind", "shape", "data"))
    return [
        None if number is None else kinds[number](content, shape)
        for number, shape, content in zip(numbers, shapes, data, strict=True)
    ]
