"""Transform plans: what to transform and where to, what was transformed, and what is known before a row is read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from spanwise.components import rows
from spanwise.components.beam import map_in_order
from spanwise.components.transform.analyzers import PreprocessingError
from spanwise.components.transform.worker import PieceFailure, Place
from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.artifact import Examples
from spanwise.orchestrator.beam_settings import HERE, BeamSettings
from spanwise.orchestrator.errors import ColumnsChanged, UnreadableInput
from spanwise.pipelines.input.known_types import agree

if TYPE_CHECKING:
    from collections.abc import Callable


log = logging.getLogger("spanwise.transform")

E = TypeVar("E")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class TransformPlan:
    """What to transform, how, and where to. Plain data: it goes to a fresh process where that is needed."""

    examples: tuple[Examples, ...]  #: the window, oldest span first
    source: str  #: of the preprocessing function, as a module of its own
    function: str  #: its name there
    analyze: tuple[str, ...]  #: splits whose rows the analyzers see
    transform: tuple[str, ...]  #: splits that are transformed
    graph: str  #: folder for the graph
    cache: str  #: folder for what later runs can reuse
    destinations: tuple[str, ...]  #: an empty folder for each span
    earlier: tuple[str, ...] = ()  #: cache folders of earlier runs, the newest first
    scratch: str  #: a folder that every worker sees
    beam: BeamSettings = HERE


@dataclass(kw_only=True)
class SpanReads:
    """What was read of one span; those of a window are in `reads.json`, beside the stored states."""

    span: int
    version: int | None
    content: str  #: digest of its files
    analyzed_files: int = 0  #: files read by analyzers, counted again in each phase
    analyzed_rows: int = 0  #: their rows
    transformed_files: int = 0  #: files read to be transformed
    transformed_rows: int = 0  #: their rows
    reused: str | None = None  #: where its features were linked from, if an earlier run had them


@dataclass(frozen=True, kw_only=True)
class TransformReport:
    """What was written."""

    rows: tuple[dict[str, int], ...]  #: of each span, by split
    columns: dict[str, str]  #: Arrow type of each feature
    reads: tuple[SpanReads, ...]  #: of each span


class TransformWindow:
    """What is known of a window before any row is read."""

    def __init__(self, plan: TransformPlan) -> None:
        self.plan = plan
        self.contents = [each.content or fingerprint.of_tree(each.path).digest for each in plan.examples]
        self.types, self.unreadable = _column_types(_window_schema(plan))
        for name, reason in self.unreadable.items():
            log.warning("column-skipped", extra={"column": name, "reason": f"Polars cannot read it: {reason}"})
        self.reads = tuple(
            SpanReads(span=each.span, version=each.version, content=content)
            for each, content in zip(plan.examples, self.contents, strict=True)
        )

    @property
    def places(self) -> list[Place]:
        """The splits that are analyzed, in the order in which their states are merged."""
        return [(number, split) for number in range(len(self.contents)) for split in self.plan.analyze]

    def is_newest(self, place: Place) -> bool:
        """Whether this is the newest span. Each span is once, so checks of expressions on data run there."""
        return place[0] == len(self.contents) - 1

    def files(self, place: Place) -> list[Path]:
        number, split = place
        return sorted(self.plan.examples[number].split(split).glob("*.parquet"))

    def map(self, work: Callable[[E], R | PieceFailure], parts: Sequence[E], *, threads: int) -> list[R]:
        """Does the work on every part, by so many threads or on Beam; the results are in the order of the parts.

        Raises:
            PreprocessingError: the function fails on one of them.
            UnreadableInput: the file of one of them is damaged.
        """
        scratch = Path(self.plan.scratch)
        scratch.mkdir(parents=True, exist_ok=True)
        results: list[R] = []
        for result in map_in_order(parts, work, beam=self.plan.beam, scratch=scratch, threads=threads):
            if isinstance(result, PieceFailure):
                raise (UnreadableInput if result.damaged else PreprocessingError)(result.message)
            results.append(result)
        return results


def count_row_groups(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_row_groups)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableInput(f"{path}: could not be read as Parquet ({error}). Ingest its span again.") from error


def _window_schema(plan: TransformPlan) -> pa.Schema:
    """Every column of every span and split. What has no value fits every type."""
    types: dict[str, pa.DataType] = {}
    for split in dict.fromkeys((*plan.analyze, *plan.transform)):
        for column in rows.read_schema(plan.examples, split):
            before = types.get(column.name, pa.null())
            joined = agree(before, column.type)
            if joined is None:
                raise ColumnsChanged(
                    f"column {column.name!r} is {column.type} in split {split!r} and {before} in another; the splits "
                    f"of a window must agree. Ingest with its type pinned: types={{{column.name!r}: …}}."
                )
            types[column.name] = joined
    return pa.schema(list(types.items()))


def _column_types(schema: pa.Schema) -> tuple[dict[str, pl.DataType], dict[str, str]]:
    """The Polars type of each column, and why some have none."""
    types: dict[str, pl.DataType] = {}
    unreadable: dict[str, str] = {}
    for column in schema:
        try:
            type_ = cast("pl.Series", pl.from_arrow(pa.array([], type=column.type))).dtype
        except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  Polars raises whatever it likes
            unreadable[column.name] = f"its Arrow type is {column.type} ({error})"
        else:
            types[column.name] = pl.String() if isinstance(type_, pl.Categorical | pl.Enum) else type_
    return types, unreadable
