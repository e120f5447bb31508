"""Transforming a window: analyze what is new of it, put together what its spans gave, transform span by span.

Rows are read by Beam workers, on which an element is a few row groups of one file; what comes back of an analysis is
states, of a transformation counts. What was accumulated over a span is kept under what it depends on (the span's
content, the analyzer, the expressions it analyzed with all that was resolved in them), so that a window of which one
span is new reads one span. A span that the very same graph has transformed before is linked, not written again.

The order of all merging is that of files and spans, never that of workers, and a kept state is the bytes that a new
one would be: so the result is the same on any runner, and with or without what earlier runs kept.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from spanwise.components import rows
from spanwise.components.beam import map_in_order
from spanwise.components.transform import part_job
from spanwise.components.transform.analyzers import Analyzer, Plain, PreprocessingError
from spanwise.components.transform.graph import Preprocessor, feature, loaded, to_arrow, type_of
from spanwise.components.transform.part_job import (
    Accumulated,
    Analysis,
    Asking,
    Copying,
    Failed,
    Piece,
    Place,
    Writing,
    Written,
)
from spanwise.components.transform.preprocessing import Columns, Question, Trace, follow, shown
from spanwise.components.transform.row_wise import refuse_unless_row_wise
from spanwise.components.transform.standalone import standalone
from spanwise.orchestrator import fingerprint
from spanwise.orchestrator.artifact import Examples
from spanwise.orchestrator.errors import ColumnsChanged, NodeFailed, UnreadableInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from spanwise.components.beam import BeamOptions

log = logging.getLogger("spanwise.transform")

GROUPS = 16
"""Row groups of one file that one worker analyzes. A constant: the order of merging is part of the result."""

EDITION = "1"
"""Of what is kept between runs; another one makes all that was kept before count as nothing."""


@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """What to transform, how, and where to. Plain data: it goes to a fresh process where that is needed."""

    examples: tuple[Examples, ...]  #: the window, oldest span first
    source: str  #: of the preprocessing function, as a module of its own
    function: str  #: its name there
    analyze: tuple[str, ...]  #: splits whose rows the analyzers see
    transform: tuple[str, ...]  #: splits that are transformed
    graph: str  #: folder for the graph
    cache: str  #: folder for what is kept for later runs
    destinations: tuple[str, ...]  #: an empty folder for each span
    earlier: tuple[str, ...] = ()  #: folders of what earlier runs kept, the newest first
    scratch: str  #: a folder that every worker sees
    runner: str | None = None  #: a Beam runner by name; None: the embedded one
    runner_options: BeamOptions = field(default_factory=dict)


@dataclass(kw_only=True)
class Reads:
    """What was read of one span; those of a window are in `reads.json`, beside what is kept."""

    span: int
    version: int | None
    content: str  #: digest of its files
    analyzed_files: int = 0  #: files read by analyzers, counted again in each phase
    analyzed_rows: int = 0  #: their rows
    transformed_files: int = 0  #: files read to be transformed
    transformed_rows: int = 0  #: their rows
    reused: str | None = None  #: where its features were linked from, if an earlier run had them


@dataclass(frozen=True, kw_only=True)
class WindowReport:
    """What was made."""

    rows: tuple[dict[str, int], ...]  #: of each span, by split
    columns: dict[str, str]  #: Arrow type of each feature
    reads: tuple[Reads, ...]  #: of each span


def transform_window(plan: WindowPlan) -> WindowReport:
    """Makes the graph, the transformed spans, and what later runs can use.

    Raises:
        NodeFailed: the preprocessing function or one of its expressions fails; the feature is named.
        ColumnsChanged: two spans have different types for one column.
        UnreadableInput: a file is missing or damaged.
        ParameterError: Beam has no such runner here.
    """
    try:
        window = _Window(plan)
        graph = _analyzed(window)
        graph.save(plan.graph)
        _refuse_unfaithful(plan.graph, graph)
        report = _transformed(window, graph)
    except PreprocessingError as error:
        raise NodeFailed(str(error)) from error
    for reads in report.reads:
        # as text: the log of a node shows no fields
        log.info(
            "span %d: analyzed %d rows of %d files, transformed %d rows of %d files%s",
            reads.span,
            reads.analyzed_rows,
            reads.analyzed_files,
            reads.transformed_rows,
            reads.transformed_files,
            f", linked from {reads.reused}" if reads.reused else "",
        )
    return report


class _Window:
    """What is known of the window before any row is read."""

    def __init__(self, plan: WindowPlan) -> None:
        self.plan = plan
        self.contents = [each.content or fingerprint.of_tree(each.path).digest for each in plan.examples]
        self.types, self.unreadable = _types(_schema(plan))
        for name, why in self.unreadable.items():
            log.warning("column %r is left out, since Polars cannot read it: %s", name, why)
        self.reads = tuple(
            Reads(span=each.span, version=each.version, content=content)
            for each, content in zip(plan.examples, self.contents, strict=True)
        )

    @property
    def places(self) -> list[Place]:
        """What is analyzed, in the order in which it is merged."""
        return [(number, split) for number in range(len(self.contents)) for split in self.plan.analyze]

    def is_newest(self, place: Place) -> bool:
        """Each span is the newest once: what is looked at once for each expression is looked at there."""
        return place[0] == len(self.contents) - 1

    def files(self, place: Place) -> list[Path]:
        number, split = place
        return sorted(self.plan.examples[number].split(split).glob("*.parquet"))

    def parallel(self, work: Callable[[E], R | Failed], parts: Sequence[E]) -> list[R]:
        """Does the work on every part, on Beam; the results are in the order of the parts.

        Raises:
            PreprocessingError: the function fails on one of them.
            UnreadableInput: the file of one of them is damaged.
        """
        scratch = Path(self.plan.scratch)
        scratch.mkdir(parents=True, exist_ok=True)
        results: list[R] = []
        for result in map_in_order(
            parts, work, runner=self.plan.runner, options=self.plan.runner_options, scratch=scratch
        ):
            if isinstance(result, Failed):
                raise (UnreadableInput if result.damaged else PreprocessingError)(result.message)
            results.append(result)
        return results


E = TypeVar("E")
R = TypeVar("R")


def _schema(plan: WindowPlan) -> pa.Schema:
    """Every column of every span and split. One without any value fits every type."""
    found: dict[str, pa.DataType] = {}
    for split in dict.fromkeys((*plan.analyze, *plan.transform)):
        for column in rows.columns_of(plan.examples, split):
            before = found.get(column.name)
            if before is None or pa.types.is_null(before):
                found[column.name] = column.type
            elif before != column.type and not pa.types.is_null(column.type):
                raise ColumnsChanged(
                    f"column {column.name!r} is {column.type} in split {split!r} and {before} in another; the splits "
                    f"of a window must agree. Ingest with its type pinned: types={{{column.name!r}: …}}."
                )
    return pa.schema(list(found.items()))


def _types(schema: pa.Schema) -> tuple[dict[str, pl.DataType], dict[str, str]]:
    """The Polars type of each column, and why some have none."""
    types: dict[str, pl.DataType] = {}
    unreadable: dict[str, str] = {}
    for column in schema:
        try:
            found = cast("pl.Series", pl.from_arrow(pa.array([], type=column.type))).dtype
        except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001  Polars raises whatever it likes
            unreadable[column.name] = f"its Arrow type is {column.type} ({error})"
        else:
            types[column.name] = pl.String() if isinstance(found, pl.Categorical | pl.Enum) else found
    return types, unreadable


# --- analysis


def _analyzed(window: _Window) -> Preprocessor:
    """The graph, after as many phases as its analyzers are nested."""
    plan = window.plan
    function = loaded(plan.source, plan.function)
    states = _States(window)
    known: dict[bytes, Plain] = {}
    phase = 0
    while True:
        trace = follow(function, Trace(columns=Columns(window.types, window.unreadable), known=known))
        if not phase:
            for name, expression in trace.features.items():
                refuse_unless_row_wise(feature(name), expression)
        if trace.complete:
            break
        questions = list(trace.open.values())
        waiting = {key: ", ".join(map(feature, names)) for key, names in trace.waiting().items()}
        for question in questions:
            _refuse_unanalyzable(question, f"{waiting[question.key]}: {question.text}", window.types)
        try:
            answers = states.answers(questions)
        except PreprocessingError as error:
            raise _with_features(error, questions, waiting) from error
        known.update(answers)
        phase += 1
        log.info("phase %d: %d analyzers", phase, len(questions))
    states.save()
    values = {name: known[key] for key, name in trace.names.items()}
    return Preprocessor.of(plan.source, plan.function, window.types, values, window.unreadable)


def _refuse_unanalyzable(question: Question, who: str, types: Mapping[str, pl.DataType]) -> None:
    for each in question.inputs:
        refuse_unless_row_wise(who, each)
    found = [type_of(each, types, who) for each in question.inputs]
    why = question.analyzer.refusal(*found)
    if why is not None:
        raise PreprocessingError(f"{who}: {why}.")


def _with_features(
    error: PreprocessingError, questions: Sequence[Question], waiting: Mapping[bytes, str]
) -> PreprocessingError:
    """The error with the names of the features that needed what failed."""
    for question in questions:
        if str(error).startswith(question.text):
            return PreprocessingError(f"{waiting[question.key]}: {error}")
    return error


class _States:
    """What the analyzers accumulated over each split of each span: kept by earlier runs, or made now."""

    def __init__(self, window: _Window) -> None:
        self._window = window
        self._kept: dict[Place, dict[str, bytes]] = {}
        self._files: dict[Place, dict[frozenset[str], Path]] = {}  # what is kept already, by its keys
        for place in window.places:
            number, split = place
            self._kept[place], self._files[place] = _kept(window.plan.earlier, window.contents[number], split)
        self._used: dict[Place, dict[str, tuple[str, bytes]]] = {place: {} for place in window.places}

    def answers(self, questions: Sequence[Question]) -> dict[bytes, Plain]:
        """The value of each question over the whole window; reads only what no earlier run has read."""
        window = self._window
        keys = [_state_key(question, window.types) for question in questions]
        lacking = {
            place: tuple(number for number, key in enumerate(keys) if key not in self._kept[place])
            for place in window.places
        }
        self._accumulate(questions, keys, {place: numbers for place, numbers in lacking.items() if numbers})
        found: dict[bytes, Plain] = {}
        for question, key in zip(questions, keys, strict=True):
            for place in window.places:
                self._used[place][key] = (question.text, self._kept[place][key])
            states = [self._kept[place][key] for place in window.places]
            found[question.key] = cast("Plain", part_job.finish(question, states))
        return found

    def _accumulate(
        self, questions: Sequence[Question], keys: Sequence[str], lacking: Mapping[Place, tuple[int, ...]]
    ) -> None:
        window = self._window
        asked = [
            Asking(piece, numbers, window.is_newest(place))
            for place, numbers in lacking.items()
            for piece in _pieces(window, place)
        ]
        work = Analysis.of(window.plan.source, questions, window.types)
        made: dict[Place, list[Accumulated]] = {place: [] for place in lacking}
        for asking, result in zip(asked, window.parallel(work, asked), strict=True):
            made[asking.piece.place].append(result)
        for place, numbers in lacking.items():
            reads = window.reads[place[0]]
            reads.analyzed_files += len({a.piece.path for a in asked if a.piece.place == place})
            reads.analyzed_rows += sum(result.rows for result in made[place])
            for number in numbers:
                question = questions[number]
                parts = [result.states[number] for result in made[place]]
                merged = part_job.merge(question, parts) if parts else part_job.empty(question, window.types)
                self._kept[place][keys[number]] = merged

    def save(self) -> None:
        """Keeps what this window used, for later runs."""
        for (number, split), states in self._used.items():
            path = _states_file(self._window.plan.cache, self._window.contents[number], split)
            if path.exists():
                continue  # two spans of the same content
            path.parent.mkdir(parents=True, exist_ok=True)
            same = self._files[number, split].get(frozenset(states))
            if same is not None:
                _link(same, path)
                continue
            ordered = sorted(states)
            columns = {
                "key": pa.array(ordered, pa.string()),
                "question": pa.array([states[key][0] for key in ordered], pa.string()),
                "state": pa.array([states[key][1] for key in ordered], pa.large_binary()),
            }
            pq.write_table(pa.table(columns), path, compression="zstd")


def _pieces(window: _Window, place: Place) -> list[Piece]:
    found = []
    for path in window.files(place):
        groups = range(_row_groups(path))
        cuts = [groups[first : first + GROUPS] for first in range(0, len(groups), GROUPS)]
        found += [Piece(place, str(path), tuple(cut)) for cut in cuts]
    return found


def _row_groups(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_row_groups)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableInput(f"{path}: cannot be read as Parquet ({error}). Ingest its span again.") from error


def _state_key(question: Question, types: Mapping[str, pl.DataType]) -> str:
    """What a state depends on, besides the rows. The values of nested analyzers are literals in the expressions."""
    roots = [part for root in question.roots for part in (root, str(types[root]))]
    written = [each.meta.serialize(format="binary") for each in question.inputs]
    return fingerprint.digest(
        "analyzer state",
        EDITION,
        GROUPS,
        _versions(),
        _code(type(question.analyzer)),
        question.analyzer.state_label,
        len(roots),
        *roots,
        *written,
    )


@functools.cache
def _versions() -> str:
    """Of what writes expressions and computes them: Polars, and each of our modules that has a part in it."""
    here = Path(__file__).parents[1]
    modules = [*(here / name for name in _MODULES), *(p for f in _FOLDERS for p in sorted((here / f).glob("*.py")))]
    ours = fingerprint.digest("modules", *(module.read_bytes() for module in modules))
    return f"{ours}, polars {importlib.metadata.version('polars')}"


_MODULES = ("transform/preprocessing.py", "row_hash.py", "transform/graph.py", "transform/part_job.py")
_FOLDERS = ("statistics/accumulators", "transform/analyzers")


def _code(analyzer: type[Analyzer[object]]) -> str:
    """A user's analyzer by its source and what that uses; ours are in `_versions`."""
    ours = analyzer.__module__.startswith("spanwise.")
    return analyzer.__qualname__ if ours else standalone(analyzer)


def _kept(earlier: Iterable[str], content: str, split: str) -> tuple[dict[str, bytes], dict[frozenset[str], Path]]:
    """The states that earlier runs have of a split, and their files by the keys of the states in them.

    What is gone or damaged counts as never made: it can be made again.
    """
    states: dict[str, bytes] = {}
    files: dict[frozenset[str], Path] = {}
    for folder in earlier:
        path = _states_file(folder, content, split)
        if not path.is_file():
            continue
        try:
            table = pq.read_table(path, columns=["key", "state"]).to_pydict()
        except (OSError, pa.ArrowException) as error:
            log.warning("kept-states-unreadable", extra={"file": str(path), "reason": str(error)})
            continue
        states = {**dict(zip(table["key"], table["state"], strict=True)), **states}
        files.setdefault(frozenset(table["key"]), path)
    return states, files


def _states_file(folder: str, content: str, split: str) -> Path:
    return Path(folder, "states", content, f"{split}.parquet")


def _refuse_unfaithful(folder: str, graph: Preprocessor) -> None:
    """Reads the graph back: what will be served must be what is trained on."""
    kept = Preprocessor.load(folder)
    for name, expression in graph.features.items():
        mine, theirs = (each.meta.serialize(format="binary") for each in (expression, kept.features[name]))
        if mine != theirs or kept.outputs[name] != graph.outputs[name]:
            raise PreprocessingError(
                f"feature {name!r} reads back from the graph as {shown(kept.features[name])}, not as "
                f"{shown(expression)}: {graph.function} must give the same each time it is called."
            )


# --- transformation


@dataclass(frozen=True)
class _Made:
    """One transformed span, as later runs may use it again."""

    content: str  #: digest of the span's files
    graph: str  #: digest of the graph's files
    splits: list[str]
    folder: str
    rows: dict[str, int]
    sizes: dict[str, int]  #: bytes of each file, by its path below the folder


def _transformed(window: _Window, graph: Preprocessor) -> WindowReport:
    plan = window.plan
    digest = fingerprint.digest("transform", EDITION, _versions(), fingerprint.of_tree(plan.graph).digest)
    known = _known(plan.earlier)
    made: dict[int, _Made] = {}
    copies: list[Copying] = []
    for number, content in enumerate(window.contents):
        found = known.get((content, digest, plan.transform))
        if found is not None and _linked(found, Path(plan.destinations[number])):
            window.reads[number].reused = found.folder
            made[number] = found
            continue
        for split in plan.transform:
            copies += _copies(window, graph, (number, split))
    for copying, result in zip(copies, window.parallel(Writing.of(graph), copies), strict=True):
        assert isinstance(result, Written)
        reads = window.reads[copying.piece.place[0]]
        reads.transformed_files += 1
        reads.transformed_rows += result.rows
    counts = [_counts(folder, plan.transform) for folder in map(Path, plan.destinations)]
    _remember(window, digest, counts)
    schema = to_arrow(pl.DataFrame(schema=dict(graph.outputs))).schema
    return WindowReport(
        rows=tuple(counts), columns={column.name: str(column.type) for column in schema}, reads=window.reads
    )


def _copies(window: _Window, graph: Preprocessor, place: Place) -> list[Copying]:
    number, split = place
    folder = Path(window.plan.destinations[number], f"Split-{split}")
    folder.mkdir(parents=True, exist_ok=True)
    files = window.files(place)
    if not files:  # a split without rows has its columns all the same
        pq.write_table(to_arrow(pl.DataFrame(schema=dict(graph.outputs))), folder / "part-00000.parquet")
    return [
        Copying(
            Piece(place, str(path), tuple(range(_row_groups(path)))), str(folder / path.name), window.is_newest(place)
        )
        for path in files
    ]


def _counts(folder: Path, splits: Iterable[str]) -> dict[str, int]:
    """The rows of each split that was written or linked."""
    return {
        split: sum(int(pq.read_metadata(path).num_rows) for path in sorted((folder / f"Split-{split}").iterdir()))
        for split in splits
    }


def _linked(made: _Made, destination: Path) -> bool:
    """Puts the files of an earlier run here too, if they are there with their sizes."""
    source = Path(made.folder)
    files = {name: source / name for name in made.sizes}
    if not all(path.is_file() and path.stat().st_size == made.sizes[name] for name, path in files.items()):
        return False
    for name, path in files.items():
        target = destination / name
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(path, target)
    return True


def _link(source: Path, target: Path) -> None:
    """One file under two names; artifacts never change, so neither can the other."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def _remember(window: _Window, digest: str, counts: Sequence[dict[str, int]]) -> None:
    """Writes down where each transformed span is, and what was read."""
    plan = window.plan
    made = [
        _Made(
            content=content,
            graph=digest,
            splits=list(plan.transform),
            folder=str(folder),
            rows=counted,
            sizes={str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*.parquet"))},
        )
        for content, folder, counted in zip(window.contents, map(Path, plan.destinations), counts, strict=True)
    ]
    for name, records in (("transformed", made), ("reads", window.reads)):
        text = json.dumps([asdict(record) for record in records], indent=1)
        Path(plan.cache, f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _known(earlier: Iterable[str]) -> dict[tuple[str, str, tuple[str, ...]], _Made]:
    """The transformed spans of earlier runs, by content, graph and splits."""
    found: dict[tuple[str, str, tuple[str, ...]], _Made] = {}
    for folder in earlier:
        path = Path(folder, "transformed.json")
        if path.is_file():
            for record in json.loads(path.read_text(encoding="utf-8")):
                made = _Made(**record)
                found.setdefault((made.content, made.graph, tuple(made.splits)), made)
    return found
