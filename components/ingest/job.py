"""Ingest: turns the files of one span into Parquet examples, one folder a split, the same bytes wherever it runs.

The rows are read by Beam workers, but no row is ever an element of a Beam collection: the elements are parts (a file,
or a range of one), the work on them is done on Arrow record batches, and only short reports are combined. On another
runner than the embedded one, the input, `destination` and `rejects` must be on storage that every worker sees.

How a column gets its type:

1. A pinned type (`types`) holds. A value that does not fit is a row that cannot be parsed.
2. Otherwise the type of the previous span holds, if every value survives it: whole numbers are read as double, 3.0 as
   int64, a date as a timestamp, and, from CSV, anything as text. If not, it is `ColumnsChanged`: also from int64 to
   double, since the spans of a window must be of one type.
3. Otherwise it is the narrowest type that holds every value of the span (`readers.columns.join`), whatever
   the blocks it was read in. CSV is first read with the types of a sample; when a value does not fit, the whole span
   is surveyed before it is read again.
4. A column without any value has the type of the previous span, or `null`, which any later type may replace.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from spanwise.components.ingest.readers.descriptor import Dialect, FileLayout, Format, ReadAs, Rejected, format_of
from spanwise.orchestrator.errors import ColumnsChanged, ParameterError, UnreadableInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from spanwise.components.ingest.file_parts import Part, Written, WrittenFile
    from spanwise.components.ingest.readers import Reader
    from spanwise.components.ingest.readers.columns import Column, Misfit

__all__ = ["IngestPlan", "IngestReport", "fingerprint", "ingest"]

log = logging.getLogger(__name__)

Result = TypeVar("Result")

#: The runner inside this process. `DirectRunner` would first try to download and start a program.
EMBEDDED_RUNNER = "FnApiRunner"


@dataclass(frozen=True, kw_only=True)
class IngestPlan:
    """What to read, how, and where to."""

    files: Mapping[str, tuple[str, ...]]  #: input split -> local paths, sorted
    destination: str  #: an empty folder; gets Split-<name>/part-00000.parquet and so on
    rejects: str | None = None  #: a folder for rows that cannot be parsed; None: such a row stops the ingest
    ratios: Mapping[str, int] | None = None  #: output split -> weight; None: the output splits are the input splits
    split_key: tuple[str, ...] = ()  #: columns that are hashed to choose the split; empty: the whole row
    previous: Sequence[tuple[str, str]] | None = None  #: columns and types of the previous span, as its report has them
    types: Mapping[str, str] = field(default_factory=dict)  #: columns whose types are pinned
    format: Format | None = None  #: None: by the endings of the files' names
    reader: Reader | None = None  #: of the user's own; instead of a format
    dialect: Dialect = field(default_factory=Dialect)  #: how text files are written, and the sizes of blocks and parts
    runner: str | None = None  #: a Beam runner by name; None: the embedded one
    runner_options: Mapping[str, str | int | float | bool] = field(default_factory=dict)  #: Beam pipeline options


@dataclass(frozen=True, kw_only=True)
class IngestReport:
    """What was written."""

    rows: dict[str, int]  #: output split -> rows
    size_bytes: dict[str, int]  #: output split -> bytes on disk
    columns: tuple[tuple[str, str], ...]  #: names and types, in order; the next span's `previous`
    new_columns: tuple[str, ...]  #: that the previous span did not have
    rejected: int  #: rows that were set aside
    reject_examples: tuple[Rejected, ...]  #: the first of them
    files: tuple[WrittenFile, ...]  #: in order


def ingest(plan: IngestPlan) -> IngestReport:
    """Reads the files of one span and writes them as Parquet.

    Raises:
        ParameterError: the plan contradicts itself or the input.
        UnreadableInput: a file or row cannot be read, or the span has no rows.
        ColumnsChanged: a column of the previous span is missing, or has values of another type.
    """
    from spanwise.components.ingest.file_parts import grouped
    from spanwise.components.ingest.readers.columns import pinned_types

    _check(plan)
    layouts = _describe(plan)
    pins = pinned_types(plan.types)
    parts = [
        part
        for split, described in layouts.items()
        for part in grouped(split, [d for layout in described for d in layout.descriptors], plan.dialect.part_bytes)
    ]
    every = [layout for described in layouts.values() for layout in described]
    try:
        columns, written = _write(plan, parts, every, pins)
        report = _report(plan, columns, written)
        _join_rejects(plan, parts)
    finally:
        _remove_rejects(plan, parts)
    log.info("ingested", extra={"rows": report.rows, "rejected": report.rejected, "files": len(report.files)})
    return report


def fingerprint(files: Mapping[str, tuple[str, ...]]) -> str:
    """A digest of split names, base names, sizes and contents; not of when the files were written.

    Every byte is read, at about 0.9 GB/s or the speed of the storage.

    Raises:
        UnreadableInput: a file cannot be read.
    """
    digest = hashlib.blake2b(b"spanwise ingest 1", digest_size=16)

    def add(text: str) -> None:
        raw = text.encode("utf-8", "surrogateescape")
        digest.update(len(raw).to_bytes(8, "little") + raw)

    for split in sorted(files):
        add(split)
        digest.update(len(files[split]).to_bytes(8, "little"))
        for path in sorted(map(Path, files[split]), key=lambda path: (path.name, path)):
            add(path.name)
            try:
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
                    digest.update(file.tell().to_bytes(8, "little"))
            except OSError as error:
                raise UnreadableInput(f"{path}: cannot be read ({error.strerror}).") from error
            digest.update(content.digest())
    return digest.hexdigest()


def _check(plan: IngestPlan) -> None:
    if not any(plan.files.values()):
        raise UnreadableInput("no files: the span has nothing to ingest.")
    if plan.ratios is not None:
        if len(plan.files) != 1:
            raise ParameterError(
                f"ratios share out one input split, and there are {len(plan.files)}: {', '.join(plan.files)}. "
                "Leave out the ratios, or give one input split."
            )
        wrong = [name for name, weight in plan.ratios.items() if weight <= 0]
        if wrong or not plan.ratios:
            raise ParameterError(f"ratios: each split has a weight of 1 or more, not {dict(plan.ratios)}.")
    if plan.split_key and plan.ratios is None:
        raise ParameterError("split_key chooses between the splits of ratios, and there are no ratios.")
    for folder in (plan.destination, plan.rejects):
        if folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
    if any(Path(plan.destination).iterdir()):
        raise ParameterError(f"destination: {plan.destination} is not empty.")


def _describe(plan: IngestPlan) -> dict[str, list[FileLayout]]:
    """The columns and pieces of every file; all files must be of one format and have the same columns."""
    from spanwise.components.ingest.readers import reader_of

    layouts: dict[str, list[FileLayout]] = {}
    first: tuple[str, ReadAs, FileLayout] | None = None
    for split, paths in plan.files.items():
        layouts[split] = []
        for path in paths:
            fmt: ReadAs = "custom" if plan.reader is not None else plan.format or format_of(path)
            # a reader of the user's own takes any name for its format
            layout = reader_of(fmt, plan.reader).describe(path, cast("Format", fmt), plan.dialect)
            layouts[split].append(layout)
            if first is None:
                first = (path, fmt, layout)
            if fmt != first[1]:
                raise UnreadableInput(f"{path} is {fmt} and {first[0]} is {first[1]}; a span has files of one format.")
    return _completed(layouts)


def _completed(layouts: dict[str, list[FileLayout]]) -> dict[str, list[FileLayout]]:
    """The same with the columns that a file may lack, since the schema of another file has a default for them (Avro).

    Raises:
        UnreadableInput: a file lacks a column for which there is no default.
    """
    every = [layout for described in layouts.values() for layout in described]
    first = every[0]
    defaults = {name: default for layout in every for name, default in layout.defaults}
    for layout in every:
        odd = sorted(set(layout.names).symmetric_difference(first.names) - defaults.keys())
        if odd:
            has, lacks = (layout, first) if odd[0] in layout.names else (first, layout)
            raise UnreadableInput(
                f"the files of one span must have the same columns: '{odd[0]}' is in {has.descriptors[0].path} and not "
                f"in {lacks.descriptors[0].path}."
            )
    names = {name for layout in every for name in layout.names}

    def completed(layout: FileLayout) -> FileLayout:
        absent = tuple((name, defaults[name]) for name in sorted(names - set(layout.names)))
        return replace(layout, descriptors=tuple(replace(piece, absent=absent) for piece in layout.descriptors))

    return {split: [completed(layout) for layout in described] for split, described in layouts.items()}


def _write(
    plan: IngestPlan, parts: Sequence[Part], layouts: Sequence[FileLayout], pins: Mapping[str, pa.DataType]
) -> tuple[tuple[Column, ...], list[Written]]:
    """Writes the parts, with wider types each time a value does not fit an inferred one."""
    from spanwise.components.ingest.file_parts import Writing, write_part
    from spanwise.components.ingest.readers.columns import wider

    found, surveyed = _found_types(plan, parts, layouts, pins)
    while True:
        columns = _settle(plan, found, pins, parts)
        writing = Writing(
            dialect=plan.dialect,
            columns=columns,
            destination=plan.destination,
            rejects=plan.rejects,
            ratios=tuple((plan.ratios or {}).items()),
            split_key=plan.split_key,
            reader=plan.reader,
        )
        written = _on_beam(plan, "Write", parts, partial(write_part, writing=writing))
        misfits = {w.misfit.column for w in written if w.misfit is not None and w.misfit.where is None}
        if not misfits:
            for part in written:
                if part.error is not None:
                    raise part.error
                if part.misfit is not None:
                    raise _changed(
                        plan, parts, pins, next(c for c in columns if c.name == part.misfit.column), part.misfit
                    )
            return columns, written
        if not surveyed:
            log.info("survey", extra={"reason": "a value does not fit the type of the sample", "columns": misfits})
            found, surveyed = _survey(plan, parts, _known(plan, pins)), True
            continue
        for name in misfits:
            assert name is not None, "a survey sees every column"
            narrow = found[name]
            assert narrow is not None, "a misfit is inferred"
            found[name] = wider(narrow)


def _changed(
    plan: IngestPlan, parts: Sequence[Part], pins: Mapping[str, pa.DataType], column: Column, misfit: Misfit
) -> ColumnsChanged:
    """The error for a column with a value that the previous type cannot hold; the whole span tells its new type."""
    from spanwise.components.ingest.readers.columns import changed, wider

    found = _survey(plan, parts, _known(plan, pins) - {column.name})[column.name]
    assert found is not None, "it was surveyed"
    return changed(column, str(wider(found) if found == column.type else found), misfit.where or "")


def _found_types(
    plan: IngestPlan, parts: Sequence[Part], layouts: Sequence[FileLayout], pins: Mapping[str, pa.DataType]
) -> tuple[dict[str, pa.DataType | None], bool]:
    """The types that the input itself has, and whether all of it was looked at. None: a settled column of CSV."""
    import pyarrow as pa

    from spanwise.components.ingest.readers import reader_of
    from spanwise.components.ingest.readers.columns import storable, unify

    head = next(descriptor for part in parts for descriptor in part.descriptors)
    if layouts[0].types is not None:
        types: dict[str, pa.DataType | None] = {}
        for layout in layouts:
            assert layout.types is not None
            path = layout.descriptors[0].path
            for name, type_ in zip(layout.names, layout.types, strict=True):
                before = types.get(name)
                before = type_ if before is None else before
                joined = unify(name, before, type_)
                if joined is None and name not in pins:
                    raise UnreadableInput(
                        f"the files of one span must have the same columns: '{name}' is {type_} in {path} "
                        f"and {before} in a file before it. Pin it: types={{'{name}': ...}}."
                    )
                types[name] = type_ if joined is None else joined
        return types, True
    if head.format == "jsonl":
        surveyed = _survey(plan, parts, _known(plan, pins))
        return {name: None if type_ is None else storable(type_) for name, type_ in surveyed.items()}, True
    if head.format == "tfrecord":
        sampled = _plain(plan, reader_of(head.format).infer(head, plan.dialect, frozenset(), 1))
        enough = sampled and not any(pa.types.is_null(type_) for type_ in sampled.values())
        if enough and not {*dict(plan.previous or ()), *pins} - sampled.keys():
            return dict(sampled), False
        return _survey(plan, parts, frozenset()), True
    known = _known(plan, pins)
    sample = reader_of(head.format).infer(head, plan.dialect, known, 1)
    if any(pa.types.is_null(type_) for type_ in sample.values()):
        return _survey(plan, parts, _known(plan, pins)), True
    return {name: sample.get(name) for name in layouts[0].names}, False


def _survey(plan: IngestPlan, parts: Sequence[Part], known: frozenset[str]) -> dict[str, pa.DataType | None]:
    """The narrowest type of each column over the whole span."""
    from spanwise.components.ingest.file_parts import Survey, survey_part
    from spanwise.components.ingest.readers.columns import join_all

    survey = Survey(dialect=plan.dialect, known=known, reader=plan.reader)
    types: dict[str, pa.DataType] = {}
    for found in _on_beam(plan, "Survey", parts, partial(survey_part, survey=survey)):
        if found.error is not None:
            raise found.error
        types = join_all(types, found.types)
    types = _plain(plan, types)
    names = next((d.names for part in parts for d in part.descriptors), ())
    return {name: types.get(name) for name in names or types}


def _plain(plan: IngestPlan, types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The types without the survey's distinction of lists that have one value at most, which only TFRecord makes."""
    from spanwise.components.ingest.readers.columns import is_single

    if not any(is_single(type_) for type_ in types.values()):
        return dict(types)
    from spanwise.components.ingest.readers.tf_record import settled

    previous = dict(plan.previous or ())
    return {name: settled(type_, previous.get(name)) for name, type_ in types.items()}


def _known(plan: IngestPlan, pins: Mapping[str, pa.DataType]) -> frozenset[str]:
    """The columns whose types are settled before a row is read."""
    return frozenset(pins) | frozenset(_previous(plan))


def _previous(plan: IngestPlan) -> dict[str, pa.DataType]:
    """The types of the previous span that say something: `null` says nothing, and nested types are compared as text."""
    import pyarrow as pa

    from spanwise.components.ingest.readers.columns import type_of

    types = {name: type_of(text) for name, text in plan.previous or ()}
    return {name: type_ for name, type_ in types.items() if type_ is not None and not pa.types.is_null(type_)}


def _settle(
    plan: IngestPlan, found: Mapping[str, pa.DataType | None], pins: Mapping[str, pa.DataType], parts: Sequence[Part]
) -> tuple[Column, ...]:
    """The columns to write, by the rules at the head of this module."""
    import pyarrow as pa

    from spanwise.components.ingest.readers.columns import Column, changed, reads_as

    previous = _previous(plan)
    texts = dict(plan.previous or ())
    where = next(d.path for part in parts for d in part.descriptors)
    gone = [name for name in texts if name not in found]
    if gone:
        raise ColumnsChanged(
            f"column '{gone[0]}' ({texts[gone[0]]} in the previous span) is missing: {where} has "
            f"{', '.join(found)}. Restore it, or rename a column back; if it is gone for good, start without a "
            "previous span."
        )
    for what, names in (("types", pins), ("split_key", plan.split_key)):
        unknown = [name for name in names if name not in found]
        if unknown:
            raise ParameterError(f"{what}: the input has no column '{unknown[0]}'; it has: {', '.join(found)}.")
    columns = []
    for name, type_ in found.items():
        if name in pins:
            columns.append(Column(name=name, type=pins[name], source="pinned"))
        elif name in previous:
            column = Column(name=name, type=previous[name], source="previous")
            if type_ is not None and not reads_as(type_, column.type):
                raise changed(column, str(type_), where)
            columns.append(column)
        else:
            assert type_ is not None
            before = texts.get(name, "null")
            if before not in ("null", str(type_)) and not pa.types.is_null(type_):
                raise ColumnsChanged(
                    f"column '{name}' was {before} in the previous span and is {type_} now: {where}. "
                    "Correct the input; if the change is meant, start without a previous span."
                )
            columns.append(Column(name=name, type=type_, source="inferred"))
    return tuple(columns)


def _on_beam(plan: IngestPlan, label: str, parts: Sequence[Part], work: Callable[[Part], Result]) -> list[Result]:
    """Does the work on every part with the plan's runner; the results are in the order of the parts."""
    results = Path(plan.destination, ".results")
    try:
        with _unhandled_root_logger():
            _run_graph(plan, label, parts, work, results)
        # our own workers wrote it just now
        found: list[tuple[int, Result]] = pickle.loads(results.read_bytes())  # noqa: S301 -- see above
    finally:
        results.unlink(missing_ok=True)
    return [result for _, result in sorted(found, key=lambda pair: pair[0])]


def _run_graph(
    plan: IngestPlan, label: str, parts: Sequence[Part], work: Callable[[Part], Result], results: Path
) -> None:
    beam = import_module("apache_beam")
    beam_options = import_module("apache_beam.options.pipeline_options")
    # flags=[]: by default Beam reads the command line of this process
    options = beam_options.PipelineOptions(flags=[], **dict(plan.runner_options))
    try:
        pipeline = beam.Pipeline(runner=plan.runner or EMBEDDED_RUNNER, options=options)
    except (ValueError, ImportError) as error:
        raise ParameterError(f"runner: Beam has none called '{plan.runner}' here ({error}).") from error
    elements = pipeline | "Parts" >> beam.Create(list(enumerate(parts)))
    if len(parts) > 1:
        elements |= "Spread" >> beam.Reshuffle()  # otherwise a runner may do all parts on one worker
    done = elements | label >> beam.Map(_numbered, work)
    together = done | "Collect" >> beam.CombineGlobally(beam.combiners.ToListCombineFn())
    _ = together | "Save" >> beam.Map(_save, str(results))
    pipeline.run().wait_until_finish()


@contextmanager
def _unhandled_root_logger() -> Iterator[None]:
    """Beam logs through the root logger, which would give a root without handlers one for good."""
    root = logging.getLogger()
    quiet = logging.NullHandler()
    root.addHandler(quiet)
    try:
        yield
    finally:
        root.removeHandler(quiet)


def _numbered(pair, work):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- Beam would check annotations as its own types
    return pair[0], work(pair[1])


def _save(found, path):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 -- as above
    draft = Path(path + ".tmp")
    draft.write_bytes(pickle.dumps(found))
    draft.replace(path)


def _report(plan: IngestPlan, columns: Sequence[Column], written: Sequence[Written]) -> IngestReport:
    rows: dict[str, int] = dict.fromkeys(plan.ratios or plan.files, 0)
    sizes = dict(rows)
    files = [file for part in written for file in part.files]
    for file in files:
        rows[file.split] += file.rows
        sizes[file.split] += file.size_bytes
    examples = [example for part in written for example in part.examples]
    rejected = sum(part.rejected for part in written)
    if not any(rows.values()):
        paths = [path for paths in plan.files.values() for path in paths]
        first = f" The first: {examples[0].path}, line {examples[0].line}: {examples[0].reason}." if examples else ""
        raise UnreadableInput(
            f"the span has no rows: {paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''}, "
            f"{rejected} rows rejected.{first} Nothing was ingested."
        )
    before = dict(plan.previous) if plan.previous is not None else None
    names = [column.name for column in columns]
    return IngestReport(
        rows=rows,
        size_bytes=sizes,
        columns=tuple((column.name, str(column.type)) for column in columns),
        new_columns=() if before is None else tuple(name for name in names if name not in before),
        rejected=rejected,
        reject_examples=tuple(examples[:10]),
        files=tuple(sorted(files, key=lambda file: (list(rows).index(file.split), file.name))),
    )


def _join_rejects(plan: IngestPlan, parts: Sequence[Part]) -> None:
    """One file of all rejected rows, in input order; none if there are none."""
    from spanwise.components.ingest.file_parts import rejects_name

    if plan.rejects is None:
        return
    joined = Path(plan.rejects, "rejects.jsonl")
    draft = joined.with_name(joined.name + ".tmp")
    with draft.open("wb") as out:
        for part in parts:
            with Path(plan.rejects, rejects_name(part)).open("rb") as file:
                shutil.copyfileobj(file, out)
        size = out.tell()
    if size:
        draft.replace(joined)
    else:
        draft.unlink()


def _remove_rejects(plan: IngestPlan, parts: Sequence[Part]) -> None:
    from spanwise.components.ingest.file_parts import rejects_name

    for part in parts if plan.rejects is not None else ():
        Path(plan.rejects or "", rejects_name(part)).unlink(missing_ok=True)
