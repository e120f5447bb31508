"""Ingest: turns the files of one span into Parquet examples, one folder a split, the same bytes wherever it runs.

The rows are read by Beam workers, but no row is ever an element of a Beam collection: the elements are parts (a file,
or a range of one), the work on them is done on Arrow record batches, and only short reports are combined. On another
runner than the embedded one, the input, `destination` and `rejects` must be on storage that every worker sees.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from spanwise.components.ingest.column_types import ColumnTypes
from spanwise.components.ingest.fingerprint import refuse_changed, stamp
from spanwise.components.ingest.part import PartWriter, Survey, divide, map_parts, survey_part, write_part
from spanwise.components.ingest.part_files import rejects_name
from spanwise.components.ingest.plan import IngestPlan, IngestReport
from spanwise.components.ingest.readers import reader_of
from spanwise.components.ingest.readers.renaming import rename_layout, rename_previous, select_renamed
from spanwise.orchestrator.errors import ParameterError, SpanwiseError, UnreadableInput
from spanwise.pipelines.input.readers.descriptor import Dialect, FileLayout, Format, ReadAs, format_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa

    from spanwise.components.ingest.part import InputPart, WrittenPart
    from spanwise.pipelines.input.readers.column import Column

log = logging.getLogger("spanwise.ingest")


def ingest(plan: IngestPlan) -> IngestReport:
    """Reads the files of one span and writes them as Parquet.

    Raises:
        ParameterError: the plan contradicts itself or the input.
        UnreadableInput: a file or row cannot be read, a file changes meanwhile, or the span has no rows.
        ColumnsChanged: a column of the previous span is missing, or has values of another type.
    """
    with _naming_sources(plan):
        _check(plan)
        before = stamp(plan.files) if plan.stamp is None else plan.stamp
        refuse_changed(plan.files, before, plan.fingerprint, plan.sources)
        try:
            report = _ingest(plan)
        except Exception:
            refuse_changed(plan.files, before, plan.fingerprint, plan.sources)  # a torn file may fail in any way
            raise
        refuse_changed(plan.files, before, plan.fingerprint, plan.sources)
    log.info("span-ingested", extra={"rows": report.rows, "rejected": report.rejected, "files": len(report.files)})
    return report


@contextmanager
def _naming_sources(plan: IngestPlan) -> Iterator[None]:
    """Errors name the objects that were to be read, not their copies."""
    try:
        yield
    except SpanwiseError as error:
        message = str(error)
        for copy, source in plan.sources.items():
            message = message.replace(copy, source)
        error.args = (message,)
        raise


def _ingest(plan: IngestPlan) -> IngestReport:
    layouts, renamed = _describe(plan), plan.renamed
    parts = [
        part
        for split, described in layouts.items()
        for part in divide(split, [d for layout in described for d in layout.descriptors], plan.dialect.part_bytes)
    ]
    if plan.renamed:
        plan = _select_renamed(plan, _input_names(plan, layouts, parts))
        layouts = {split: [rename_layout(each, plan.renamed) for each in found] for split, found in layouts.items()}
    every = [layout for described in layouts.values() for layout in described]
    first = every[0].descriptors[0]
    if first.format in ("csv", "tsv"):
        plan = replace(plan, dialect=_null_values_of_input(plan, first.names, renamed))
        plan.dialect.check_null_values(first.path, first.names)
    try:
        columns, written = _write(plan, parts, every)
        report = _report(plan, columns, written)
        _join_rejects(plan, parts)
    finally:
        _remove_rejects(plan, parts)
    return report


def _input_names(
    plan: IngestPlan, layouts: Mapping[str, Sequence[FileLayout]], parts: Sequence[InputPart]
) -> dict[str, None]:
    """The columns of all files of the span, in order of first appearance; of JSON and TFRecord, those of all rows."""
    names = dict.fromkeys(name for described in layouts.values() for layout in described for name in layout.names)
    if names:
        return names
    survey = Survey(dialect=plan.dialect, known=frozenset(), reader=plan.reader)
    for part in map_parts(plan, survey, survey_part, parts):
        if part.error is not None:
            raise part.error
        names |= dict.fromkeys(part.types)
    return names


def _select_renamed(plan: IngestPlan, names: Collection[str]) -> IngestPlan:
    """The plan with only the renamings that the input of this span needs; it may have the new names already."""
    order = rename_previous([(name, "") for name in plan.order], plan.renamed) or ()
    return replace(
        plan,
        renamed=select_renamed(plan.renamed, names),
        previous=rename_previous(plan.previous, plan.renamed),
        order=tuple(name for name, _ in order),
    )


def _null_values_of_input(plan: IngestPlan, names: Collection[str], renamed: Mapping[str, str]) -> Dialect:
    """The dialect with `null_values` by the names that the input of a span has, whichever name a column has there.

    The plan is the one for the span, `renamed` what the user says of all spans. What is dropped may be missing.
    """
    asked = plan.dialect.null_values
    if not isinstance(asked, Mapping):
        return plan.dialect
    inputs = {published: name for name, published in plan.renamed.items()}
    found = {}
    for name in sorted(asked, key=inputs.__contains__):  # a published name counts before one of the input
        here = inputs.get(name) or (name if name in names else renamed.get(name, name))
        if here in names or here not in plan.dropped:
            found[here] = asked[name]
    return replace(plan.dialect, null_values=found)


def _format(plan: IngestPlan, path: str) -> ReadAs:
    return "custom" if plan.reader is not None else plan.format or format_of(path)


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
    dialect = plan.dialect
    if isinstance(dialect.null_values, Mapping):  # may have names that a column has in other spans only
        dialect = replace(dialect, null_values=None)
    layouts: dict[str, list[FileLayout]] = {}
    first: tuple[str, ReadAs, FileLayout] | None = None
    for split, paths in plan.files.items():
        layouts[split] = []
        for path in paths:
            fmt = _format(plan, path)
            # a reader of the user's own takes any name for its format
            layout = reader_of(fmt, plan.reader).describe(path, cast("Format", fmt), dialect)
            layouts[split].append(layout)
            if first is None:
                first = (path, fmt, layout)
            if fmt != first[1]:
                raise UnreadableInput(f"{path} is {fmt} and {first[0]} is {first[1]}; a span has files of one format.")
    return _complete(layouts)


def _complete(layouts: dict[str, list[FileLayout]]) -> dict[str, list[FileLayout]]:
    """The same with the columns that a file may lack, since the schema of another file has a default for them (Avro).

    Raises:
        UnreadableInput: a file lacks a column for which there is no default, or several.
    """
    every = [layout for described in layouts.values() for layout in described]
    first = every[0]
    defaults = _agreed_defaults(every)
    for layout in every:
        odd = sorted(set(layout.names).symmetric_difference(first.names) - defaults.keys())
        if odd:
            has, lacks = (layout, first) if odd[0] in layout.names else (first, layout)
            raise UnreadableInput(
                f"the files of one span must have the same columns: '{odd[0]}' is in {has.descriptors[0].path} and not "
                f"in {lacks.descriptors[0].path}."
            )
    names = {name for layout in every for name in layout.names}

    def complete(layout: FileLayout) -> FileLayout:
        absent = tuple((name, defaults[name]) for name in sorted(names - set(layout.names)))
        return replace(layout, descriptors=tuple(replace(piece, absent=absent) for piece in layout.descriptors))

    return {split: [complete(layout) for layout in described] for split, described in layouts.items()}


def _agreed_defaults(layouts: Sequence[FileLayout]) -> dict[str, object]:
    """The defaults of the columns that some files lack."""
    found: dict[str, tuple[str, Any]] = {}
    everywhere = set[str].intersection(*(set(layout.names) for layout in layouts))
    for layout in layouts:
        path = layout.descriptors[0].path
        for name, default in cast("tuple[tuple[str, pa.Scalar[Any]], ...]", layout.defaults):
            if name in everywhere:
                continue
            where, other = found.setdefault(name, (path, default))
            one, two = other.as_py(), default.as_py()
            if one != two and repr(one) != repr(two):  # NaN
                lacks = next(each.descriptors[0].path for each in layouts if name not in each.names)
                raise UnreadableInput(
                    f"{lacks} lacks '{name}', whose default is {one!r} by the schema of {where} and {two!r} by that of "
                    f"{path}. Write the file with the column."
                )
    return {name: default for name, (_, default) in found.items()}


def _write(
    plan: IngestPlan, parts: Sequence[InputPart], layouts: Sequence[FileLayout]
) -> tuple[tuple[Column, ...], list[WrittenPart]]:
    """Writes the parts, with wider types each time a value does not fit an inferred one."""
    types = ColumnTypes(plan, parts, layouts)
    while True:
        columns = types.columns()
        writer = PartWriter(
            dialect=plan.dialect,
            columns=columns,
            destination=plan.destination,
            rejects=plan.rejects,
            from_query=plan.from_query,
            ratios=tuple((plan.ratios or {}).items()),
            split_key=plan.split_key,
            reader=plan.reader,
            renamed=plan.renamed,
            sources=plan.sources,
        )
        written = map_parts(plan, writer, write_part, parts)
        misfits = {w.misfit.column for w in written if w.misfit is not None and w.misfit.where is None}
        if misfits:
            types.widen(misfits)
            continue
        for part in written:
            if part.error is not None:
                raise part.error
            if part.misfit is not None:
                raise types.refuse(next(c for c in columns if c.name == part.misfit.column), part.misfit)
        return columns, written


def _report(plan: IngestPlan, columns: Sequence[Column], written: Sequence[WrittenPart]) -> IngestReport:
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
    written_columns = [column for column in columns if column.source != "dropped"]
    names = [column.name for column in written_columns]
    return IngestReport(
        rows=rows,
        size_bytes=sizes,
        columns=tuple((column.name, str(column.type)) for column in written_columns),
        new_columns=() if before is None else tuple(name for name in names if name not in before),
        rejected=rejected,
        reject_examples=tuple(examples[:10]),
        files=tuple(sorted(files, key=lambda file: (list(rows).index(file.split), file.name))),
    )


def _join_rejects(plan: IngestPlan, parts: Sequence[InputPart]) -> None:
    """One file of all rejected rows, in input order; none if there are none."""
    if plan.rejects is None:
        return
    joined = Path(plan.rejects, "rejects.jsonl")
    draft = joined.with_name(joined.name + ".tmp")
    with draft.open("wb") as out:
        for part in parts:
            with Path(plan.rejects, rejects_name(part.split, part.index)).open("rb") as file:
                shutil.copyfileobj(file, out)
        size = out.tell()
    if size:
        draft.replace(joined)
    else:
        draft.unlink()


def _remove_rejects(plan: IngestPlan, parts: Sequence[InputPart]) -> None:
    for part in parts if plan.rejects is not None else ():
        Path(plan.rejects or "", rejects_name(part.split, part.index)).unlink(missing_ok=True)
