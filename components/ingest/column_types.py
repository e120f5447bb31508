"""Column types: which type each column of a span gets, from pins, the previous span and the values themselves.

1. A pinned type (`types`) holds. A value that does not fit is a row that cannot be parsed. A column that is pinned as
   `inferred` skips rule 2; one in `dropped` is left out, and need not be there.
2. Otherwise the type of the previous span holds, if every value survives it: whole numbers are read as double, 3.0 as
   int64, a date as a timestamp, a list without values as any list, and, from CSV, anything as text. If not, it is
   `ColumnsChanged`: also from int64 to double, since the spans of a window must be of one type, and for a struct that
   lacks a field, which only a pin makes a missing value.
3. Otherwise it is the narrowest type that holds every value of the span (`readers.columns.join`), whatever
   the blocks it was read in. CSV is first read with the types of a sample; when a value does not fit, the whole span
   is surveyed before it is read again.
4. A column without any value has the type of the previous span, or `null`, which any later type may replace.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from spanwise.components.ingest.part import InputPart, Survey, map_parts, survey_part
from spanwise.components.ingest.readers import reader_of
from spanwise.orchestrator.errors import ColumnsChanged, ParameterError, SpanwiseError, UnreadableInput
from spanwise.pipelines.input.known_types import fill_nulls
from spanwise.pipelines.input.readers.column import Column, join_all
from spanwise.pipelines.input.readers.columns import (
    joined_type_error,
    lacking_fields,
    pinned_types,
    reads_as,
    storable,
    type_change_error,
    unify,
    wider,
)
from spanwise.pipelines.input.readers.stored_types import obstacle, parse_type, stored_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spanwise.components.ingest.plan import IngestPlan
    from spanwise.pipelines.input.readers.column import Misfit
    from spanwise.pipelines.input.readers.descriptor import Descriptor, FileLayout

log = logging.getLogger("spanwise.ingest")

INFERRED = "inferred"
"""A pin that lets a column have the type of its values, whatever it was in the previous span."""


class ColumnTypes:
    """The types that the values of a span have, as far as they are known, and the columns that follow from them."""

    def __init__(self, plan: IngestPlan, parts: Sequence[InputPart], layouts: Sequence[FileLayout]) -> None:
        self._plan = plan
        self._parts = parts
        self._inferred = {name for name, text in plan.types.items() if text == INFERRED}
        self._pins = pinned_types({name: text for name, text in plan.types.items() if text != INFERRED})
        self._before = _previous_types(plan)
        free = {*self._inferred, *plan.dropped}
        # what is inside a value is compared with what was found, since a reader that is given a type may leave out more
        self._previous = {
            name: type_ for name, type_ in self._before.items() if name not in free and not pa.types.is_nested(type_)
        }
        self._types, self._surveyed = self._infer(layouts)

    def columns(self) -> tuple[Column, ...]:
        """The columns to write, by the rules at the head of this module.

        Those of the previous span come first, in its order: code may go by their places.

        Raises:
            ColumnsChanged: a column of the previous span is missing, or has another type.
            ParameterError: the plan names a column that the input does not have.
        """
        previous_texts = dict(self._plan.previous or ())
        path = next(d.path for part in self._parts for d in part.descriptors)
        gone = [name for name in previous_texts if name not in {*self._types, *self._plan.dropped}]
        if gone:
            raise ColumnsChanged(
                f"column '{gone[0]}' ({previous_texts[gone[0]]} in the previous span) is missing: {path} has "
                f"{', '.join(self._types)}. Restore it.{self._suggest_name(gone[0])} If it is gone for good, say so: "
                f"{'QueryExampleGen' if self._plan.from_query else 'ExampleGen'}(..., "
                f"drop_columns={[*self._plan.dropped, *gone]})."
            )
        for parameter, names in (("types", self._plan.types), ("split_key", self._plan.split_key)):
            unknown = [name for name in names if name not in self._types]
            if unknown:
                raise ParameterError(
                    f"{parameter}: the input has no column '{unknown[0]}'; it has: {', '.join(self._types)}."
                )
        if self._types and not self._types.keys() - set(self._plan.dropped):
            raise ParameterError(f"drop_columns leaves out all that the input has: {', '.join(self._types)}.")
        ordered = dict.fromkeys([*self._plan.order, *previous_texts, *self._types])
        return tuple(
            self._column(name, self._types[name], path, previous_texts) for name in ordered if name in self._types
        )

    def _suggest_name(self, gone: str) -> str:
        """How to give a new column the name of the one that is gone: the first of its type, else the first there is."""
        before = dict(self._plan.previous or ())
        new = [name for name in self._types if name not in before]
        alike = [name for name in new if str(self._types[name]) == before[gone]]
        if not new:
            return ""
        found = (alike or new)[0]
        if self._plan.from_query:
            return f' If "{found}" is its new name, give it the old one in the query: "{found}" AS "{gone}".'
        return f" If '{found}' is its new name, write rename_columns={{'{found}': '{gone}'}}."

    def _column(self, name: str, type_: pa.DataType | None, path: str, previous_texts: Mapping[str, str]) -> Column:
        if name in self._pins:
            return Column(name=name, type=self._pins[name], source="pinned")
        if name in self._previous:
            column = Column(name=name, type=self._previous[name], source="previous")
            if type_ is not None and not reads_as(type_, column.type):
                raise type_change_error(column, str(type_), path)
            return column
        assert type_ is not None
        type_ = stored_type(type_)
        if name in self._plan.dropped:
            return Column(name=name, type=type_, source="dropped")
        before = self._before.get(name)
        before = None if before is None else fill_nulls(before, type_)
        text = previous_texts.get(name, "null")
        if name in self._inferred or (before is None and text in ("null", str(type_))):
            return Column(name=name, type=type_, source="inferred")
        if before is not None and reads_as(type_, before):
            return Column(name=name, type=before, source="previous")
        kept = before is not None and lacking_fields(type_, before)
        keep = f"types={{'{name}': '{before}'}}, and the fields that it lacks are missing values"
        raise ColumnsChanged(
            f"column '{name}' was {text} in the previous span and is {type_} now: {path}. Correct the "
            f"input. {f'If such fields may be missing, pin the type: {keep}. ' if kept else ''}"
            f"If the change is intended, let the new type hold: types={{'{name}': 'inferred'}}."
        )

    def widen(self, misfits: set[str | None]) -> None:
        """Makes room for values that did not fit inferred types: by a survey first, then type by type."""
        if not self._surveyed:
            log.info(
                "survey-started", extra={"reason": "a value does not fit the type of the sample", "columns": misfits}
            )
            self._types, self._surveyed = self._survey(self._settled), True
            return
        for name in misfits:
            assert name is not None, "a survey sees every column"
            narrow = self._types[name]
            assert narrow is not None, "a misfit is inferred"
            if wider(narrow) == narrow:
                raise UnreadableInput(
                    f"column '{name}' has a value that can be read neither as {narrow} nor otherwise."
                )
            self._types[name] = wider(narrow)

    def refuse(self, column: Column, misfit: Misfit) -> SpanwiseError:
        """The error for a column with a value that its type cannot hold; surveys the span for the new type of it."""
        if column.source == "inferred":
            return joined_type_error(column, misfit.where or "")
        new = self._survey(self._settled - {column.name})[column.name]
        assert new is not None, "it was surveyed"
        return type_change_error(column, str(wider(new) if new == column.type else new), misfit.where or "")

    @property
    def _settled(self) -> frozenset[str]:
        """The columns whose types are settled before a row is read."""
        return frozenset(self._pins) | frozenset(self._previous)

    def _infer(self, layouts: Sequence[FileLayout]) -> tuple[dict[str, pa.DataType | None], bool]:
        """The types of the input, and whether all of it was looked at. None: a settled column of CSV."""
        if layouts[0].types is not None:
            return self._declared(layouts), True
        head = self._head
        dialect = self._plan.dialect
        if head.format == "jsonl":
            surveyed = self._survey(self._settled)
            return {
                name: None if type_ is None else self._storable(name, type_) for name, type_ in surveyed.items()
            }, True
        if head.format == "tfrecord":
            reader = reader_of(head.format, renamed=self._plan.renamed)
            sample = _settle_lists(self._plan, reader.infer(head, dialect, frozenset(), 1))
            enough = sample and not any(pa.types.is_null(type_) for type_ in sample.values())
            if enough and not {*dict(self._plan.previous or ()), *self._pins} - sample.keys():
                return dict(sorted(sample.items())), False
            return self._survey(frozenset()), True
        sample = reader_of(head.format, renamed=self._plan.renamed).infer(head, dialect, self._settled, 1)
        if any(pa.types.is_null(type_) for type_ in sample.values()):
            return self._survey(self._settled), True
        return {name: sample.get(name) for name in layouts[0].names}, False

    def _storable(self, name: str, type_: pa.DataType) -> pa.DataType:
        """As it can be stored; {} where a struct was stays a struct, which is reported as one that lacks fields."""
        before = None if name in {*self._inferred, *self._plan.dropped} else self._before.get(name)
        return type_ if before is not None and lacking_fields(type_, before) else storable(type_)

    def _declared(self, layouts: Sequence[FileLayout]) -> dict[str, pa.DataType | None]:
        """The types that the files themselves declare."""
        types: dict[str, pa.DataType | None] = {}
        for layout in layouts:
            assert layout.types is not None
            path = layout.descriptors[0].path
            for name, type_ in zip(layout.names, layout.types, strict=True):
                if name not in self._plan.dropped and (hurdle := obstacle(type_)) is not None:
                    raise UnreadableInput(
                        f"{path}: column '{name}' {hurdle}. Convert it where it is written, or leave it out: "
                        f"drop_columns=['{name}']."
                    )
                before = types.get(name)
                before = type_ if before is None else before
                joined = unify(name, before, type_)
                lacks = joined is not None and any(lacking_fields(each, joined) for each in (type_, before))
                if (joined is None or lacks) and name not in {*self._pins, *self._plan.dropped}:
                    pin = joined or _pin_for(before, type_)
                    raise UnreadableInput(
                        f"the files of one span must have the same columns: '{name}' is {type_} in {path} and {before} "
                        "in an earlier file. Declare one type in all files"
                        + ("." if pin is None else f", or pin one: types={{'{name}': '{pin}'}}.")
                    )
                types[name] = type_ if joined is None else joined
        return types

    @property
    def _head(self) -> Descriptor:
        """The first piece of the input."""
        return next(descriptor for part in self._parts for descriptor in part.descriptors)

    def _survey(self, settled: frozenset[str]) -> dict[str, pa.DataType | None]:
        """The narrowest type of each column over the whole span."""
        plan = self._plan
        survey = Survey(dialect=plan.dialect, known=settled, reader=plan.reader, renamed=plan.renamed)
        types: dict[str, pa.DataType] = {}
        for part in map_parts(plan, survey, survey_part, self._parts):
            if part.error is not None:
                raise part.error
            types = join_all(types, part.types)
        if self._head.format == "tfrecord":  # its features have no order of their own
            types = dict(sorted(_settle_lists(self._plan, types).items()))
        inputs = next((d.names for part in self._parts for d in part.descriptors), ())
        names = [plan.renamed.get(name, name) for name in inputs]
        return {name: types.get(name) for name in names or types}


def _pin_for(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """A type that values of both can be read as when it is pinned; None if there may be none."""
    if reads_as(other, one):
        return one
    if reads_as(one, other):
        return other
    return None if pa.types.is_nested(one) or pa.types.is_nested(other) else pa.string()


def _previous_types(plan: IngestPlan) -> dict[str, pa.DataType]:
    """The types of the previous span that say something: `null` says nothing."""
    types = {name: parse_type(text) for name, text in plan.previous or ()}
    return {name: type_ for name, type_ in types.items() if type_ is not None and not pa.types.is_null(type_)}


def _settle_lists(plan: IngestPlan, types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The types of features, without the survey's distinction of lists that have one value at most."""
    from spanwise.pipelines.input.readers.tf_record import settle

    previous = dict(plan.previous or ())
    return {name: settle(type_, previous.get(name)) for name, type_ in types.items()}
