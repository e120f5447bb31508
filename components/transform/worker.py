"""Transform workers: what a worker does with some rows. It analyzes blocks of them, or writes the features of a file.

Failures are values, so that the first one in the order of files is reported, whichever worker is the fastest.
"""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from spanwise.components.beam import Place as TreePlace
from spanwise.components.beam import fold, merge_rest
from spanwise.components.read_ahead import read_ahead
from spanwise.components.row_blocks import BlockRun, read_blocks
from spanwise.components.transform import standalone
from spanwise.components.transform.analyzers import PreprocessingError
from spanwise.components.transform.graph import Preprocessor, evaluate, feature_label, to_arrow
from spanwise.components.transform.row_wise import probe_halves
from spanwise.components.transform.trace import AnalyzerCall
from spanwise.orchestrator.errors import UnreadableInput
from spanwise.pipelines.input.readers.stored_types import find_missing_fixed_list

PROBED = 64
"""Rows of a file that are computed a second time, in two parts, to find expressions that are not row-wise."""

_LOADING = threading.Lock()
"""Held by the one of several threads that loads the user's source, for all of them."""

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
class RunStates:
    """What the analyzers accumulated over one run of blocks."""

    rows: int
    states: Mapping[int, Mapping[TreePlace, bytes]]  #: packed, by the number of the call and their place


@dataclass(frozen=True)
class WrittenFeatures:
    """One file of features."""

    rows: int


@dataclass(frozen=True)
class AnalysisTask:
    """Blocks of a split and the calls whose states it lacks, by their numbers."""

    place: Place
    run: BlockRun
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

    def __call__(self, task: AnalysisTask) -> RunStates | PieceFailure:
        with _LOADING:
            calls = _load_calls(self.source, self.payload)
        numbered = [(number, calls[number]) for number in task.calls]
        inputs = CallInputs(numbered)
        roots = sorted({root for _, call in numbered for root in call.roots})
        states: dict[int, dict[TreePlace, object]] = {number: {} for number, _ in numbered}
        rows = 0
        try:
            with read_ahead(self._evaluate(task, inputs, roots)) as evaluated:
                for block, (count, values) in enumerate(evaluated, task.run.first):
                    rows += count
                    for number, call in numbered:
                        state = _accumulate(call, inputs.of(number, values))
                        merge = functools.partial(_merge_two, call)
                        states[number] = fold((states[number], {(0, block): state}), merge)
            packed = {
                number: {place: pack(calls[number], [state]) for place, state in places.items()}
                for number, places in states.items()
            }
        except PreprocessingError as error:
            return PieceFailure(str(error))
        except UnreadableInput as error:
            return PieceFailure(str(error), damaged=True)
        return RunStates(rows, packed)

    def _evaluate(
        self, task: AnalysisTask, inputs: CallInputs, roots: Sequence[str]
    ) -> Generator[tuple[int, pl.DataFrame], None, None]:
        """For each block its rows and what the calls analyze."""
        for block, tables in enumerate(read_blocks(task.run, roots), task.run.first):
            parts = [_to_frame(table, roots, self.types) for table in tables]
            frame = pl.concat(parts, rechunk=True) if len(parts) > 1 else parts[0]
            if task.probed and block == task.run.first:
                probe_halves(inputs.named, frame.head(PROBED), inputs.label)
            yield len(frame), evaluate(inputs.named, frame, inputs.label)


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


def _merge_two(call: AnalyzerCall, one: object, other: object) -> object:
    with _named_failure(call):
        return call.analyzer.merge([one, other])


def merge_runs(call: AnalyzerCall, runs: Sequence[Mapping[TreePlace, bytes]]) -> bytes:
    """The packed states of all runs of a split as one."""
    with _named_failure(call):
        unpack = call.analyzer.unpack
        opened = [{place: unpack(state) for place, state in places.items()} for places in runs]
    two = functools.partial(_merge_two, call)
    return pack(call, [merge_rest(fold(opened, two), two)])


def pack(call: AnalyzerCall, states: Sequence[object]) -> bytes:
    """All states of a call, in their order, merged and packed."""
    with _named_failure(call):
        return call.analyzer.pack(call.analyzer.merge(states))


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
        with _LOADING:
            graph, schema = _graph(self.source, self.function, self.payload)
        final = Path(task.target)
        final.parent.mkdir(parents=True, exist_ok=True)
        draft = final.with_name(final.name + ".tmp")
        rows = 0
        try:
            with (
                pq.ParquetWriter(draft, schema, compression="zstd", write_page_checksum=True) as writer,
                _read_ahead_of_several(task.piece, _features(task, graph, schema)) as tables,
            ):
                for features in tables:
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


def _features(task: FeatureTask, graph: Preprocessor, schema: pa.Schema) -> Generator[pa.Table, None, None]:
    """The features of each row group."""
    columns = graph.needs() or tuple(graph.inputs)[:1]  # a feature of constants has a value for each row too
    for place, frame in enumerate(read_groups(task.piece, columns, graph.inputs)):
        if task.probed and not place:
            probe_halves(graph.features, frame.head(PROBED))
        found = to_arrow(evaluate(graph.features, frame)).cast(schema).combine_chunks()
        _refuse_missing_arrays(found)
        yield found


def _refuse_missing_arrays(features: pa.Table) -> None:
    for name, column in zip(features.schema.names, features.columns, strict=True):
        if any(find_missing_fixed_list(chunk) is not None for chunk in column.chunks):
            raise PreprocessingError(
                f"{feature_label(name)} has no array in a row, and Parquet cannot store that. Give such rows one: "
                ".fill_null(…), or make lists of the arrays: .arr.to_list()."
            )


def _read_ahead_of_several(
    piece: FilePiece, tables: Generator[pa.Table, None, None]
) -> AbstractContextManager[Iterator[pa.Table]]:
    """The tables of the row groups; for one alone, a thread costs more than it saves."""
    return read_ahead(tables) if len(piece.groups) > 1 else closing(tables)


@functools.lru_cache(maxsize=2)
def _graph(source: str, function: str, payload: bytes) -> tuple[Preprocessor, pa.Schema]:
    """The graph, and the columns of its features."""
    inputs, values, unreadable = pickle.loads(payload)  # noqa: S301 -- as above
    graph = Preprocessor.of(source, function, inputs, values, unreadable)
    return graph, to_arrow(pl.DataFrame(schema=dict(graph.outputs))).schema


def _to_frame(table: pa.Table, columns: Sequence[str], types: Types) -> pl.DataFrame:
    """Some columns of a table, in the types of the window; what it lacks is null."""
    known = table.num_columns > 0
    frame = (
        cast("pl.DataFrame", pl.from_arrow(table)) if known else pl.select(pl.repeat(0, table.num_rows).alias("\x1a"))
    )
    schema = frame.schema
    if list(schema.items()) == [(name, types[name]) for name in columns]:
        return frame  # a selection would cost more than all else does of a few rows
    return (
        frame.select(
            (pl.col(name) if name in schema else pl.repeat(None, pl.len())).cast(types[name]).alias(name)
            if schema.get(name) != types[name]
            else pl.col(name)
            for name in columns
        )
        if columns
        else frame
    )


def read_groups(piece: FilePiece, columns: Sequence[str], types: Types) -> Iterator[pl.DataFrame]:
    """Some columns of each row group, in the types of the window; what the file lacks is null.

    Raises:
        UnreadableInput: the file is missing or damaged.
    """
    group = piece.groups[0] if piece.groups else 0
    try:
        with pq.ParquetFile(piece.path, page_checksum_verification=True) as file:
            known = set(file.schema_arrow.names)
            present = [name for name in columns if name in known]
            for group in piece.groups:
                threads = file.metadata.row_group(group).num_rows > _FEW
                table = file.read_row_group(group, columns=present, use_threads=threads)
                yield _to_frame(table, columns, types)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableInput(
            f"{piece.path}: row group {group} is unreadable ({error}). Ingest its span again."
        ) from error
