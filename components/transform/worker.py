"""Transform workers: what a worker does with a few row groups of one file. It analyzes them, or writes their features.

Failures are values, so that the first one in the order of files is reported, whichever worker is the fastest.
"""

from __future__ import annotations

import functools
import pickle
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from spanwise.components.transform import standalone
from spanwise.components.transform.analyzers import PreprocessingError
from spanwise.components.transform.graph import Preprocessor, evaluate, to_arrow
from spanwise.components.transform.preprocessing import AnalyzerCall
from spanwise.components.transform.row_wise import probe
from spanwise.orchestrator.errors import UnreadableInput

PROBED = 64
"""Rows of a file that are computed a second time, in two parts, to find expressions that are not row-wise."""

_FEW = 10_000
"""Up to this many rows are read faster without threads."""

Types: TypeAlias = Mapping[str, pl.DataType]
Place: TypeAlias = tuple[int, str]
"""A span, by its number in the window, and a split."""


@dataclass(frozen=True)
class FilePiece:
    """Row groups of one file."""

    place: Place
    path: str
    groups: tuple[int, ...]


@dataclass(frozen=True)
class PieceFailure:
    """Why a piece could not be analyzed or transformed."""

    message: str
    damaged: bool = False  #: it is the file's fault, not the function's


@dataclass(frozen=True)
class PieceStates:
    """What the analyzers accumulated over one piece."""

    rows: int
    states: Mapping[int, bytes]  #: packed, by the number of the call


@dataclass(frozen=True)
class WrittenFeatures:
    """One file of features."""

    rows: int


@dataclass(frozen=True)
class AnalysisTask:
    """A piece and the calls whose states it lacks, by their numbers."""

    piece: FilePiece
    calls: tuple[int, ...]
    probed: bool  #: whether to look for expressions that are not row-wise


@dataclass(frozen=True)
class FeatureTask:
    """A file and where its features go."""

    piece: FilePiece
    target: str
    probed: bool  #: as above


@dataclass(frozen=True)
class PieceAnalyzer:
    """The calls of one phase, as they go to the workers."""

    source: str  #: of the preprocessing function; it may define classes that the calls are made of
    payload: bytes  #: the calls, pickled
    types: Types  #: of the columns

    @classmethod
    def of(cls, source: str, calls: Sequence[AnalyzerCall], types: Types) -> PieceAnalyzer:
        wanted = {root: types[root] for call in calls for root in call.roots}
        return cls(source, pickle.dumps(tuple(calls)), wanted)

    def __call__(self, task: AnalysisTask) -> PieceStates | PieceFailure:
        calls = _load_calls(self.source, self.payload)
        numbered = [(number, calls[number]) for number in task.calls]
        inputs = CallInputs(numbered)
        roots = sorted({root for _, call in numbered for root in call.roots})
        states: dict[int, list[object]] = defaultdict(list)
        rows = 0
        try:
            for place, group in enumerate(task.piece.groups):
                frame = read_group(task.piece.path, group, roots, self.types)
                rows += len(frame)
                if task.probed and not place:
                    probe(inputs.named, frame.head(PROBED), inputs.label)
                values = evaluate(inputs.named, frame, inputs.label)
                for number, call in numbered:
                    states[number].append(_accumulate(call, inputs.of(number, values)))
            packed = {number: pack(calls[number], parts) for number, parts in states.items()}
        except PreprocessingError as error:
            return PieceFailure(str(error))
        except UnreadableInput as error:
            return PieceFailure(str(error), damaged=True)
        return PieceStates(rows, packed)


class CallInputs:
    """The expressions of several calls, under names that no column has, to be computed at once."""

    def __init__(self, numbered: Sequence[tuple[int, AnalyzerCall]]) -> None:
        self._names = {number: [f"\x1a{number}.{at}" for at in range(len(call.inputs))] for number, call in numbered}
        self._texts = {name: call.text for number, call in numbered for name in self._names[number]}
        self.named = {
            name: each for number, call in numbered for name, each in zip(self._names[number], call.inputs, strict=True)
        }

    def label(self, name: str) -> str:
        return f"{self._texts[name]}: what it analyzes"

    def of(self, number: int, values: pl.DataFrame) -> list[pl.Series]:
        return [values[name] for name in self._names[number]]


def _accumulate(call: AnalyzerCall, values: Sequence[pl.Series]) -> object:
    with _named_failure(call):
        return call.analyzer.accumulate(*values)


def pack(call: AnalyzerCall, states: Sequence[object]) -> bytes:
    """All states of a call, in their order, merged and packed."""
    with _named_failure(call):
        return call.analyzer.pack(call.analyzer.merge(states))


def merge(call: AnalyzerCall, packed: Sequence[bytes]) -> bytes:
    """Packed states, in their order, as one."""
    if len(packed) == 1:
        return packed[0]
    with _named_failure(call):
        return call.analyzer.pack(call.analyzer.merge([call.analyzer.unpack(each) for each in packed]))


def pack_empty(call: AnalyzerCall, types: Types) -> bytes:
    """The packed state of no rows at all."""
    frame = pl.DataFrame(schema={root: types[root] for root in call.roots})
    inputs = CallInputs([(0, call)])
    return pack(call, [_accumulate(call, inputs.of(0, evaluate(inputs.named, frame, inputs.label)))])


def finish(call: AnalyzerCall, packed: Sequence[bytes]) -> object:
    """The value that a call learned from its packed states."""
    with _named_failure(call):
        return call.analyzer.finish(call.analyzer.merge([call.analyzer.unpack(each) for each in packed]))


@contextmanager
def _named_failure(call: AnalyzerCall) -> Iterator[None]:
    """Names the analyzer, which may be the user's, in the error that it raises."""
    try:
        yield
    except (Exception, pl.exceptions.PanicException) as error:  # a panic of Polars is no Exception
        raise PreprocessingError(f"{call.text} fails: {type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=2)
def _load_calls(source: str, payload: bytes) -> tuple[AnalyzerCall, ...]:
    standalone.load(source)
    # pickled by our own controller, for workers of the same version
    return cast("tuple[AnalyzerCall, ...]", pickle.loads(payload))  # noqa: S301


@dataclass(frozen=True)
class FeatureWriter:
    """A resolved graph, as it goes to the workers."""

    source: str
    function: str
    payload: bytes  #: inputs, unreadable columns and values, pickled

    @classmethod
    def of(cls, graph: Preprocessor) -> FeatureWriter:
        return cls(graph.source, graph.function, pickle.dumps((graph.inputs, graph.values, graph.unreadable)))

    def __call__(self, task: FeatureTask) -> WrittenFeatures | PieceFailure:
        """Writes the features of a whole file, row group by row group, to a file that appears when it is whole."""
        piece = task.piece
        graph = _graph(self.source, self.function, self.payload)
        schema = to_arrow(pl.DataFrame(schema=dict(graph.outputs))).schema
        final = Path(task.target)
        final.parent.mkdir(parents=True, exist_ok=True)
        draft = final.with_name(final.name + ".tmp")
        columns = graph.needs() or tuple(graph.inputs)[:1]  # a feature of constants has a value for each row too
        rows = 0
        try:
            with pq.ParquetWriter(draft, schema, compression="zstd", write_page_checksum=True) as writer:
                for place, group in enumerate(piece.groups):
                    frame = read_group(piece.path, group, columns, graph.inputs)
                    if task.probed and not place:
                        probe(graph.features, frame.head(PROBED))
                    features = to_arrow(evaluate(graph.features, frame)).cast(schema).combine_chunks()
                    rows += features.num_rows
                    writer.write_table(features, row_group_size=max(1, features.num_rows))
            draft.replace(final)
        except PreprocessingError as error:
            return PieceFailure(str(error))
        except UnreadableInput as error:
            return PieceFailure(str(error), damaged=True)
        finally:
            draft.unlink(missing_ok=True)
        return WrittenFeatures(rows)


@functools.lru_cache(maxsize=2)
def _graph(source: str, function: str, payload: bytes) -> Preprocessor:
    inputs, values, unreadable = pickle.loads(payload)  # noqa: S301 -- as above
    return Preprocessor.of(source, function, inputs, values, unreadable)


def read_group(path: str, group: int, columns: Sequence[str], types: Types) -> pl.DataFrame:
    """Some columns of one row group, in the types of the window; what the file lacks is null.

    Raises:
        UnreadableInput: the file is missing or damaged.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            known = set(file.schema_arrow.names)
            present = [name for name in columns if name in known]
            threads = file.metadata.row_group(group).num_rows > _FEW
            table = file.read_row_group(group, columns=present, use_threads=threads)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableInput(f"{path}: row group {group} is unreadable ({error}). Ingest its span again.") from error
    frame = (
        cast("pl.DataFrame", pl.from_arrow(table)) if present else pl.select(pl.repeat(0, table.num_rows).alias("\x1a"))
    )
    schema = frame.schema
    return frame.with_columns(
        (pl.col(name) if name in schema else pl.lit(None)).cast(types[name]).alias(name)
        for name in columns
        if schema.get(name) != types[name]
    )
