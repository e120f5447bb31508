"""Transform work: what one worker does with a few row groups of one file. It analyzes them, or writes their features.

Failures are values, so that the first one in the order of files is told, whichever worker is the fastest.
"""

from __future__ import annotations

import functools
import pickle
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from spanwise.components.transform import standalone
from spanwise.components.transform.analyzers import PreprocessingError
from spanwise.components.transform.graph import Preprocessor, evaluate, to_arrow
from spanwise.components.transform.preprocessing import Question
from spanwise.components.transform.row_wise import probe
from spanwise.orchestrator.errors import UnreadableInput

PROBED = 64
"""So many rows of a file are computed a second time, in two parts, to find expressions that are not row-wise."""

_FEW = 10_000
"""Rows that are read faster than threads are woken for them."""

Types: TypeAlias = Mapping[str, pl.DataType]
Place: TypeAlias = tuple[int, str]
"""A span, by its number in the window, and a split."""

T = TypeVar("T")


@dataclass(frozen=True)
class Piece:
    """Row groups of one file."""

    place: Place
    path: str
    groups: tuple[int, ...]


@dataclass(frozen=True)
class Failed:
    """Why a piece could not be worked on, for people."""

    message: str
    damaged: bool = False  #: it is the file's fault, not the function's


@dataclass(frozen=True)
class Accumulated:
    """What one piece gave."""

    rows: int
    states: Mapping[int, bytes]  #: packed, by the number of the question


@dataclass(frozen=True)
class Written:
    """One file of features."""

    rows: int


@dataclass(frozen=True)
class Asking:
    """A piece and the questions that are open there, by their numbers."""

    piece: Piece
    open: tuple[int, ...]
    probed: bool  #: whether to look for expressions that are not row-wise


@dataclass(frozen=True)
class Copying:
    """A file and where its features go."""

    piece: Piece
    target: str
    probed: bool  #: as above


@dataclass(frozen=True)
class Analysis:
    """The questions of one phase, as they go to the workers."""

    source: str  #: of the preprocessing function; it may define classes that the questions are made of
    payload: bytes  #: the questions, pickled
    types: Types  #: of the columns

    @classmethod
    def of(cls, source: str, questions: Sequence[Question], types: Types) -> Analysis:
        wanted = {root: types[root] for question in questions for root in question.roots}
        return cls(source, pickle.dumps(tuple(questions)), wanted)

    def __call__(self, asking: Asking) -> Accumulated | Failed:
        questions = _questions(self.source, self.payload)
        asked = [(number, questions[number]) for number in asking.open]
        inputs = _Inputs(asked)
        roots = sorted({root for _, question in asked for root in question.roots})
        states: dict[int, list[object]] = defaultdict(list)
        rows = 0
        try:
            for place, group in enumerate(asking.piece.groups):
                frame = read_group(asking.piece.path, group, roots, self.types)
                rows += len(frame)
                if asking.probed and not place:
                    probe(inputs.named, frame.head(PROBED), inputs.called)
                values = evaluate(inputs.named, frame, inputs.called)
                for number, question in asked:
                    states[number].append(_accumulated(question, inputs.of(number, values)))
            packed = {number: pack(questions[number], parts) for number, parts in states.items()}
        except PreprocessingError as error:
            return Failed(str(error))
        except UnreadableInput as error:
            return Failed(str(error), damaged=True)
        return Accumulated(rows, packed)


class _Inputs:
    """The expressions of several questions, under names that no column has, to be computed at once."""

    def __init__(self, asked: Sequence[tuple[int, Question]]) -> None:
        self._names = {number: [f"\x1a{number}.{at}" for at in range(len(q.inputs))] for number, q in asked}
        self._texts = {name: q.text for number, q in asked for name in self._names[number]}
        self.named = {
            name: each for number, q in asked for name, each in zip(self._names[number], q.inputs, strict=True)
        }

    def called(self, name: str) -> str:
        return f"{self._texts[name]}: what it analyzes"

    def of(self, number: int, values: pl.DataFrame) -> list[pl.Series]:
        return [values[name] for name in self._names[number]]


def _accumulated(question: Question, values: Sequence[pl.Series]) -> object:
    return _told(question, lambda q: q.analyzer.accumulate(*values))


def pack(question: Question, states: Sequence[object]) -> bytes:
    """All states of a question, in their order, as one that can be kept."""
    return _told(question, lambda q: q.analyzer.pack(q.analyzer.merge(states)))


def merge(question: Question, packed: Sequence[bytes]) -> bytes:
    """Packed states, in their order, as one."""
    if len(packed) == 1:
        return packed[0]
    return _told(question, lambda q: q.analyzer.pack(q.analyzer.merge([q.analyzer.unpack(each) for each in packed])))


def empty(question: Question, types: Types) -> bytes:
    """The state of no rows at all."""
    frame = pl.DataFrame(schema={root: types[root] for root in question.roots})
    inputs = _Inputs([(0, question)])
    return pack(question, [_accumulated(question, inputs.of(0, evaluate(inputs.named, frame, inputs.called)))])


def finish(question: Question, packed: Sequence[bytes]) -> object:
    """What a question's states say together."""
    return _told(question, lambda q: q.analyzer.finish(q.analyzer.merge([q.analyzer.unpack(each) for each in packed])))


def _told(question: Question, act: Callable[[Question], T]) -> T:
    """Asks an analyzer, which may be the user's."""
    try:
        return act(question)
    except (Exception, pl.exceptions.PanicException) as error:  # a panic of Polars is no Exception
        raise PreprocessingError(f"{question.text} fails: {type(error).__name__}: {error}") from error


@functools.lru_cache(maxsize=2)
def _questions(source: str, payload: bytes) -> tuple[Question, ...]:
    standalone.load(source)
    # pickled by our own controller, for workers of the same version
    return cast("tuple[Question, ...]", pickle.loads(payload))  # noqa: S301


@dataclass(frozen=True)
class Writing:
    """A resolved graph, as it goes to the workers."""

    source: str
    function: str
    payload: bytes  #: inputs, unreadable columns and values, pickled

    @classmethod
    def of(cls, graph: Preprocessor) -> Writing:
        return cls(graph.source, graph.function, pickle.dumps((graph.inputs, graph.values, graph.unreadable)))

    def __call__(self, copying: Copying) -> Written | Failed:
        """Writes the features of a whole file, row group by row group, to a file that appears when it is whole."""
        piece = copying.piece
        graph = _graph(self.source, self.function, self.payload)
        schema = to_arrow(pl.DataFrame(schema=dict(graph.outputs))).schema
        final = Path(copying.target)
        final.parent.mkdir(parents=True, exist_ok=True)
        draft = final.with_name(final.name + ".tmp")
        columns = graph.needs() or tuple(graph.inputs)[:1]  # of constants too there is one for each row
        rows = 0
        try:
            with pq.ParquetWriter(draft, schema, compression="zstd") as writer:
                for place, group in enumerate(piece.groups):
                    frame = read_group(piece.path, group, columns, graph.inputs)
                    if copying.probed and not place:
                        probe(graph.features, frame.head(PROBED))
                    found = to_arrow(evaluate(graph.features, frame)).cast(schema).combine_chunks()
                    rows += found.num_rows
                    writer.write_table(found, row_group_size=max(1, found.num_rows))
            draft.replace(final)
        except PreprocessingError as error:
            return Failed(str(error))
        except UnreadableInput as error:
            return Failed(str(error), damaged=True)
        finally:
            draft.unlink(missing_ok=True)
        return Written(rows)


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
        with pq.ParquetFile(path) as file:
            known = set(file.schema_arrow.names)
            there = [name for name in columns if name in known]
            many = file.metadata.row_group(group).num_rows > _FEW
            table = file.read_row_group(group, columns=there, use_threads=many)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableInput(f"{path}: row group {group} cannot be read ({error}). Ingest its span again.") from error
    frame = (
        cast("pl.DataFrame", pl.from_arrow(table)) if there else pl.select(pl.repeat(0, table.num_rows).alias("\x1a"))
    )
    found = frame.schema
    return frame.with_columns(
        (pl.col(name) if name in found else pl.lit(None)).cast(types[name]).alias(name)
        for name in columns
        if found.get(name) != types[name]
    )
