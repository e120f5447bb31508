"""Renaming: input columns that are published under other names. Rows are read by the reader of their format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spanwise.components.ingest.readers import reader_of
from spanwise.orchestrator.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import pyarrow as pa

    from spanwise.components.ingest.readers import Descriptor, Dialect, FileLayout, Format, FormatReader, Rejected
    from spanwise.pipelines.input.readers.column import Column


@dataclass(frozen=True, kw_only=True)
class RenamingReader:
    """Reads files of any format and gives their columns other names."""

    names: Mapping[str, str]  #: input name -> published name
    own: FormatReader | None = None  #: the user's own reader

    def describe(self, path: str, fmt: Format, dialect: Dialect) -> FileLayout:
        return rename_layout(reader_of(fmt, self.own).describe(path, fmt, dialect), self.names)

    def infer(
        self, descriptor: Descriptor, dialect: Dialect, known: frozenset[str], blocks: int | None
    ) -> dict[str, pa.DataType]:
        inputs = {published: name for name, published in self.names.items()}
        known = frozenset(inputs.get(name, name) for name in known)
        found = reader_of(descriptor.format, self.own).infer(descriptor, dialect, known, blocks)
        return {self.names.get(name, name): type_ for name, type_ in found.items()}

    def read(
        self, descriptor: Descriptor, dialect: Dialect, columns: Sequence[Column], reject: Callable[[Rejected], None]
    ) -> Iterator[pa.RecordBatch]:
        from spanwise.pipelines.input.readers.column import Misfit

        inputs = {published: name for name, published in self.names.items()}
        read = [replace(column, name=inputs.get(column.name, column.name)) for column in columns]
        try:
            for batch in reader_of(descriptor.format, self.own).read(descriptor, dialect, read, reject):
                yield batch.rename_columns([self.names.get(name, name) for name in batch.schema.names])
        except Misfit as misfit:
            column = None if misfit.column is None else self.names.get(misfit.column, misfit.column)
            raise Misfit(column, misfit.where) from misfit


def select_renamed(renamed: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """The renamings that a span needs whose input has these names: it may have the published names itself.

    Raises:
        ParameterError: two columns would be published under one name.
    """
    found = {name: published for name, published in renamed.items() if name in names}
    result = [found.get(name, name) for name in names]
    for name, published in found.items():
        if result.count(published) > 1:
            raise ParameterError(
                f"rename_columns: '{name}' cannot be published as '{published}', because the input has another column "
                f"of that name. The input has: {', '.join(names)}."
            )
    return found


def rename_previous(
    previous: Sequence[tuple[str, str]] | None, renamed: Mapping[str, str]
) -> Sequence[tuple[str, str]] | None:
    """The columns of the previous span under the names that they have now."""
    if previous is None:
        return None
    there = {name for name, _ in previous}
    return [(renamed[n], type_) if n in renamed and renamed[n] not in there else (n, type_) for n, type_ in previous]


def rename_layout(layout: FileLayout, names: Mapping[str, str]) -> FileLayout:
    """The layout of a file with the published names."""
    return replace(
        layout,
        names=tuple(names.get(name, name) for name in layout.names),
        defaults=tuple((names.get(name, name), default) for name, default in layout.defaults),
    )
