"""Files: how paths, URLs and patterns become files, and how the rows of many files become one stream."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spanwise.orchestrator.errors import ColumnsChanged, DatasetError, UnreadableInput
from spanwise.orchestrator.storage import as_os_errors, is_readable_url, list_objects
from spanwise.pipelines.input.file_state import FileStates
from spanwise.pipelines.input.op import State, Stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

IMAGE_ENDINGS: Final = ("bmp", "gif", "jpeg", "jpg", "png", "ppm", "tif", "tiff", "webp")

PathLike: TypeAlias = "str | os.PathLike[str]"
Paths: TypeAlias = "PathLike | Iterable[PathLike | Iterable[PathLike]]"
"""One path, several, or several for each span. Each may be a URL, or a pattern such as `day/*.parquet`."""


def list_files(op: str, paths: Paths) -> tuple[str, ...]:
    """The files, in the order given; those of one pattern by name.

    Raises:
        DatasetError: there is none, or none that matches a pattern.
    """
    if isinstance(paths, str | os.PathLike):
        path = os.fspath(paths)
        if "*" not in path and ("://" in path or not glob.has_magic(path)):  # URLs have `?` and `[` of their own
            return (path,)
        found = tuple(sorted(_remote(path) if "://" in path else glob.glob(path)))  # noqa: PTH207  texts, as given
        if not found:
            raise DatasetError(f"{op}({path!r}): no file matches this pattern.")
        return found
    if isinstance(paths, bytes) or not isinstance(paths, Iterable):
        raise DatasetError(f"{op}({paths!r:.80}): expected a path, a URL, a pattern, or a list of these.")
    files = tuple(file for each in paths for file in list_files(op, each))
    if not files:
        raise DatasetError(f"{op}([]): expected at least one file.")
    return files


def list_images(paths: Paths) -> tuple[str, ...]:
    """Image files; a folder stands for those in and below it, by name.

    Raises:
        DatasetError: there is no such file, or there are no images in a folder.
    """
    if not isinstance(paths, str | os.PathLike):
        if isinstance(paths, bytes) or not isinstance(paths, Iterable):
            raise DatasetError(f"from_images({paths!r:.80}): expected a path, a URL, a pattern, or a list of these.")
        return tuple(file for each in paths for file in list_images(each))
    path = os.fspath(paths)
    if "*" in path:
        return list_files("from_images", path)
    from pyarrow.fs import FileSelector

    system, name = locate(path)
    if system.get_file_info(name).is_file:
        return (path,)
    found = system.get_file_info(FileSelector(name, recursive=True, allow_not_found=True))
    below = sorted(each.path for each in found if each.is_file and each.extension.lower() in IMAGE_ENDINGS)
    if not below:
        raise DatasetError(f"from_images({path!r}): no images in it. Their names end in {', '.join(IMAGE_ENDINGS)}.")
    return tuple(path.rstrip("/") + each[len(name.rstrip("/")) :] for each in below)


def _remote(pattern: str) -> list[str]:
    if is_readable_url(pattern):
        with as_os_errors():
            return list(list_objects(pattern))
    filesystem, stem = _by_fsspec(pattern)
    return [filesystem.unstrip_protocol(name) for name in filesystem.glob(stem)]


def locate(path: str) -> tuple[FileSystem, str]:
    """The file system of a path or URL, and its name there.

    Object storage and web servers are read by way of `orchestrator.storage`, other URLs by pyarrow where it knows them
    (HDFS), else by fsspec.

    Raises:
        DatasetError: nobody knows such a URL.
    """
    import pyarrow as pa
    from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

    scheme, is_url, name = path.partition("://")
    if not is_url:
        return LocalFileSystem(), path
    if is_readable_url(path):
        from spanwise.orchestrator.storage.object_files import ObjectFileSystem

        return PyFileSystem(ObjectFileSystem(scheme)), name
    try:
        return FileSystem.from_uri(path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # none of pyarrow's, or not in this build
        filesystem, name = _by_fsspec(path)
        return PyFileSystem(FSSpecHandler(filesystem)), name  # type: ignore[abstract]  # by the stubs


def _by_fsspec(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        filesystem, name = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise DatasetError(f"{url}: cannot be read as a URL ({error}).") from error
    return filesystem, name


def file_stamp(system: FileSystem, name: str, mtime_ns: int | None) -> int | str | None:
    """What changes when a file does: an object's revision, a modification time, or fsspec's key for a file without.

    None where only its bytes tell: the file of a web server that sends no tag for it.
    """
    from pyarrow.fs import PyFileSystem

    if isinstance(system, PyFileSystem) and hasattr(system.handler, "stamp"):
        stamp: str | None = system.handler.stamp(name)
        return stamp
    if mtime_ns is None and isinstance(system, PyFileSystem):
        handler: Any = system.handler
        key: str = handler.fs.ukey(name)
        return key
    return mtime_ns


def unify_schemas(
    who: str,
    schemas: Iterable[tuple[str, pa.Schema]],
    fix: Callable[[str], str] = lambda _: "Rewrite one of the files with the type of the other.",
) -> pa.Schema:
    """Every column that any of the files has; a file that lacks one, or has only nulls in it, gives nulls.

    Of lists and structs the same holds inside: those of a file that has only empty lists are of the others' type.

    `schemas` has a name for each file; `fix` says what to do about a column.

    Raises:
        ColumnsChanged: two files have different types for one column.
    """
    import pyarrow as pa

    from spanwise.pipelines.input.known_types import agree

    found: dict[str, tuple[pa.DataType, str]] = {}
    for name, schema in schemas:
        check_unique_columns(f"{who}: {name}", schema)
        for field in schema:
            before, where = found.get(field.name, (pa.null(), name))
            joined = agree(before, field.type)
            if joined is None:
                raise ColumnsChanged(
                    f"{who}: column {field.name!r} is {before} in {where} and {field.type} in {name}. {fix(field.name)}"
                )
            found[field.name] = (joined, name if joined != before else where)
    return pa.schema([(name, type_) for name, (type_, _) in found.items()])


def refuse_other_columns(path: str, now: pa.Schema, schema: pa.Schema, had: Container[str]) -> None:
    """Refuses a file that has lost a column since the dataset was made, whose rows would be null, or changed its type.

    Raises:
        UnreadableInput: names the file and the column.
    """
    from spanwise.pipelines.input.known_types import fill_nulls

    for field in schema:
        at = now.get_field_index(field.name)
        if at < 0 and field.name in had:
            change = f"it has no column {field.name!r} any more"
        elif at >= 0 and fill_nulls(now.field(at).type, field.type) != field.type:
            change = f"its column {field.name!r} is {now.field(at).type} now, and was {field.type}"
        else:
            continue
        raise UnreadableInput(f"{path} was replaced after the dataset was made: {change}. Make the dataset again.")


def check_unique_columns(who: str, schema: pa.Schema) -> None:
    """Refuses two columns of the same name, of which a dict could hold only one.

    Raises:
        DatasetError: names them.
    """
    double = sorted(name for name, count in Counter(schema.names).items() if count > 1)
    if double:
        raise DatasetError(f"{who}: several columns are named {', '.join(map(repr, double))}; rename them.")


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the columns and types of the schema; what it lacks is null."""
    import pyarrow as pa

    if batch.schema.equals(schema):
        return batch
    if not schema:
        return batch.select([])  # made from no columns, it would have no rows
    arrays = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        column = pa.nulls(batch.num_rows, field.type) if at < 0 else batch.column(at)
        arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class PartStream(Stream):
    """Reads parts (files, row groups) one after another. Its state: which part, and how many of its rows are used.

    `read` opens a part; `finish` makes a block of rows that were read, which may leave some out.
    """

    def __init__(
        self,
        count: int,
        read: Callable[[int], Iterator[pa.RecordBatch]],
        finish: Callable[[pa.RecordBatch], pa.RecordBatch],
        name: Callable[[int], str],
        order: Sequence[int] | None = None,
        rows: Callable[[int], int | None] = lambda _: None,
    ) -> None:
        self._order = range(count) if order is None else order
        self._read = read
        self._finish = finish
        self._name = name
        self._rows = rows  # of a part, if known: one that is used up need not be opened again
        self._number = 0  # of the part in the order
        self._used = 0  # rows of it
        self._files = FileStates()
        self._open = ""
        self._batches: Iterator[pa.RecordBatch] | None = None

    def __next__(self) -> pa.RecordBatch:
        import pyarrow as pa

        while self._number < len(self._order):
            part = self._order[self._number]
            name = self._name(part)
            try:
                if self._batches is None:
                    if name != self._open:  # the part before may have been of the same file
                        self._files.begin(name)
                        self._open = name
                    self._batches = _after(self._used, self._read(part))
                batch = next(self._batches)
                self._used += batch.num_rows
                self._files.check(name)
                block = self._finish(batch)
            except StopIteration:
                self._number, self._used, self._batches = self._number + 1, 0, None
                self._files.check(name)
                continue
            except (pa.ArrowException, OSError, UnreadableInput) as error:
                self._files.check(name)  # a torn row is reported as the change that tore it
                if isinstance(error, UnreadableInput):
                    raise
                raise UnreadableInput(f"{name}: cannot be read ({error}).") from error
            if block.num_rows:
                return block
        raise StopIteration

    def state(self) -> State:
        return {"part": self._number, "rows": self._used}

    def restore(self, state: State) -> None:
        self._number, self._used = state["part"], state["rows"]
        if self._used and self._rows(self._order[self._number]) == self._used:
            self._number, self._used = self._number + 1, 0

    def close(self) -> None:
        self._batches = None


def _after(rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches without the first `rows` rows."""
    for batch in batches:
        if rows < batch.num_rows:
            yield batch.slice(rows) if rows else batch
        rows = max(rows - batch.num_rows, 0)
