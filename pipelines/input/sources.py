"""Sources: datasets of numbers, arrays, tables, files and generators, or combined from other datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.dataset import Dataset, dataset_ops, join_options
from spanwise.pipelines.input.element import UNKNOWN, ElementSpec, each_leaf, parts_of
from spanwise.pipelines.input.files import Paths, check_unique_columns, list_images
from spanwise.pipelines.input.files import list_files as list_paths
from spanwise.pipelines.input.images import DecodeSample, ImageFile
from spanwise.pipelines.input.ops.arrow import Arrow
from spanwise.pipelines.input.ops.as_rows import AsRows
from spanwise.pipelines.input.ops.choose import Choose
from spanwise.pipelines.input.ops.csv import csv
from spanwise.pipelines.input.ops.file_names import file_names
from spanwise.pipelines.input.ops.generator import Generator
from spanwise.pipelines.input.ops.ipc import arrow_files
from spanwise.pipelines.input.ops.parquet import parquet
from spanwise.pipelines.input.ops.random_access import random_access
from spanwise.pipelines.input.ops.range import Range
from spanwise.pipelines.input.ops.row_files import row_files
from spanwise.pipelines.input.ops.sample import Sample
from spanwise.pipelines.input.ops.tar_shards import tar_shards
from spanwise.pipelines.input.ops.tensors import Elements, TensorSlices
from spanwise.pipelines.input.ops.text_lines import text_lines
from spanwise.pipelines.input.ops.tf_records import TFRecords
from spanwise.pipelines.input.ops.zip import Zip

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from spanwise.pipelines.input.readers.descriptor import Dialect


def range(start: int, stop: int | None = None, step: int = 1) -> Dataset:  # noqa: A001  as it is called everywhere
    """Whole numbers, as Python's own `range`."""
    return Dataset(Range(start=0, stop=start, step=step) if stop is None else Range(start=start, stop=stop, step=step))


def from_tensors(value: object) -> Dataset:
    """One element: the value itself."""
    return Dataset(Elements(values=(value,)))


def from_elements(values: Iterable[object]) -> Dataset:
    """The values, one after another, unchanged."""
    return Dataset(Elements(values=tuple(values)))


def from_tensor_slices(tensors: object) -> Dataset:
    """The slices of arrays along their first axis; of a structure of arrays, structures of slices."""
    return Dataset(TensorSlices(tensors=tensors))


def from_arrow(table: pa.Table | pa.RecordBatch) -> Dataset:
    """The rows of a table."""
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise DatasetError(f"from_arrow({type(table).__name__}): expected a pyarrow.Table or RecordBatch.")
    check_unique_columns("from_arrow", table.schema)
    return Dataset(Arrow(table=table))


def from_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,  # noqa: A002  as pyarrow calls it
    shuffle: bool = False,
    seed: int | None = None,
) -> Dataset:
    """The rows of Parquet files, in the order of the paths; `shuffle` puts the row groups of all of them into another.

    `paths` is a path, a pattern, a list of them, or a list of lists: one for each span. A file that lacks a column
    of another one gives nulls. Row groups in which `filter` cannot hold are not read.
    """
    if isinstance(columns, str):
        raise DatasetError(f"from_parquet(columns={columns!r}): expected a list of names: [{columns!r}].")
    chosen = None if columns is None else tuple(columns)
    return Dataset(parquet(paths, chosen, filter, shuffle=shuffle, seed=seed))


def from_arrow_files(paths: Paths) -> Dataset:
    """The rows of Arrow IPC files, mapped into memory."""
    return Dataset(arrow_files(paths))


def from_csv(
    paths: Paths,
    *,
    schema: pa.Schema | None = None,
    delimiter: str | None = None,
    dialect: Dialect | None = None,
) -> Dataset:
    """The rows of CSV files with a header line, read as ExampleGen reads them.

    Without a schema, types are inferred from the first MiB of each file; a later value of another type is an error.
    """
    return Dataset(csv(paths, schema, delimiter, dialect))


def from_json_lines(paths: Paths, *, schema: pa.Schema | None = None, dialect: Dialect | None = None) -> Dataset:
    """The rows of files with one JSON object a line, read as ExampleGen reads them; a key that is missing is null.

    Without a schema, types are inferred from the first MiB of each file; a later value of another type is an error.
    """
    return Dataset(row_files("jsonl", paths, schema, dialect))


def from_tfrecord(
    paths: Paths, *, schema: pa.Schema | None = None, dialect: Dialect | None = None, parse: bool = True
) -> Dataset:
    """The `tf.train.Example` records of TFRecord files as rows, read as ExampleGen reads them, without TensorFlow.

    A feature is a column: of plain values where no record has more than one, else of lists. Without a schema, types are
    inferred from the first MiB of each file. With `parse=False` the elements are the records, as bytes.
    """
    if parse:
        return Dataset(row_files("tfrecord", paths, schema, dialect))
    if schema is not None or dialect is not None:
        raise DatasetError("from_tfrecord(parse=False): a schema or dialect says how records are parsed; leave it out.")
    return Dataset(TFRecords(paths=list_paths("from_tfrecord", paths)))


def from_text(paths: Paths, *, dialect: Dialect | None = None) -> Dataset:
    """The lines of text files, without their newlines; of the dialect, the encoding counts."""
    return Dataset(text_lines(paths, dialect))


def from_webdataset(
    paths: Paths, *, decode: bool = True, channels: int = 3, size: tuple[int, int] | None = None, **options: Any
) -> Dataset:
    """The samples of WebDataset tar files: dicts of `__key__` and, by their endings, of the files that share it.

    Texts, whole numbers (`cls`), JSON, `npy` arrays and images are decoded, images as `from_images` does it; other
    files stay bytes, as all of them do with `decode=False`. Options are those of `map`, such as `num_parallel`.
    """
    shards = Dataset(tar_shards(paths))
    return shards.map(DecodeSample(channels=channels, size=size), **options) if decode else shards


def from_images(
    paths: Paths,
    *,
    channels: int = 3,
    size: tuple[int, int] | None = None,
    labels: Sequence[str] | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    **options: Any,
) -> Dataset:
    """Image files as dicts of `image` (height, width, channels), `label`, the name of their folder, and `path`.

    A folder stands for all images in and below it. With `labels`, the label is the folder's number in that list.
    `size` is the height and width that images are resized to. Options are those of `map`, such as `num_parallel`.
    """
    files = list_images(paths)
    read = ImageFile(channels=channels, size=size, labels=None if labels is None else tuple(labels))
    return Dataset(file_names("from_images", files, shuffle=shuffle, seed=seed)).map(read, **options)


def from_random_access(
    source: Any, *, shuffle: bool = False, seed: int | None = None, spec: ElementSpec = UNKNOWN
) -> Dataset:
    """`source[0]`, `source[1]` and so on to `len(source)`; `shuffle` takes all of them in another order each pass.

    The order is computed number by number, so it needs no buffer, and no element is read before its turn. `take`,
    `skip` and `shard` that follow at once read only what they give.
    """
    return Dataset(random_access(source, shuffle=shuffle, seed=seed, result=spec))


def list_files(paths: Paths, *, shuffle: bool = False, seed: int | None = None) -> Dataset:
    """The names of files, in their order, or shuffled anew for each pass; read them with `interleave` or `map`."""
    return Dataset(file_names("list_files", paths, shuffle=shuffle, seed=seed))


def from_generator(
    function: Callable[..., Iterable[Any]], *arguments: object, spec: ElementSpec | pa.Schema | None = None
) -> Dataset:
    """The elements of the iterable that `function(*arguments)` returns for each pass.

    A schema as `spec` turns its dicts into rows. A restored pass generates the elements again.
    """
    import pyarrow as pa

    if isinstance(spec, pa.Schema):
        return Dataset(AsRows(input=Generator(function=function, arguments=arguments), schema=spec))
    return Dataset(Generator(function=function, arguments=arguments, result=UNKNOWN if spec is None else spec))


def zip(*datasets: Any) -> Dataset:  # noqa: A001  as it is called everywhere
    """Tuples of one element of each dataset, as long as all of them last; rows are dicts in them.

    A single argument that is a dict, tuple or dataclass of datasets, also a nested one, gives elements that are built
    like it.
    """
    if len(datasets) == 1 and parts_of(datasets[0]) is not None:
        found: list[Dataset] = []

        def number(leaf: Any) -> int:
            found.append(leaf)
            return len(found) - 1

        structure = each_leaf(number, datasets[0])
        return Dataset(Zip(parts=dataset_ops("zip", found), structure=structure), join_options("zip", found))
    return Dataset(Zip(parts=dataset_ops("zip", datasets)), join_options("zip", datasets))


def choose_from_datasets(datasets: Sequence[Dataset], choices: Dataset, *, stop_on_empty: bool = True) -> Dataset:
    """Elements of the datasets, each taken from the one whose number `choices` gives.

    It ends with the choices, or when a dataset is chosen that has ended; with `stop_on_empty=False` such choices are
    passed over.
    """
    (choice,) = dataset_ops("choose_from_datasets(choices=)", [choices])
    parts = dataset_ops("choose_from_datasets", datasets)
    settings = join_options("choose_from_datasets", [*datasets, choices])
    return Dataset(Choose(choice=choice, parts=parts, stop_on_empty=stop_on_empty), settings)


def sample_from_datasets(
    datasets: Sequence[Dataset],
    weights: Sequence[float] | None = None,
    *,
    seed: int | None = None,
    stop_on_empty: bool = False,
    reshuffle_each_iteration: bool = True,
) -> Dataset:
    """Elements of the datasets, each drawn with its weight; without weights all are drawn alike.

    When one ends, the others go on; `stop_on_empty` ends there.
    """
    op = Sample(
        parts=dataset_ops("sample_from_datasets", datasets),
        weights=tuple(weights) if weights is not None else (1.0,) * len(datasets),
        seed=seed,
        stop_on_empty=stop_on_empty,
        reshuffle_each_iteration=reshuffle_each_iteration,
    )
    return Dataset(op, join_options("sample_from_datasets", datasets))


def col(name: str) -> pc.Expression:
    """A column in a condition for `filter`: `col("fare") > 3`."""
    import pyarrow.compute as pc

    return pc.field(name)
