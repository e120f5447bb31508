"""Random graphs of ops over random elements, and what they give by plain Python."""

import dataclasses
import datetime as dt
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from spanwise.pipelines import input as inputs
from spanwise.pipelines.input import Dataset, Ragged
from spanwise.pipelines.input.op import mix_seed
from spanwise.pipelines.input.stacking import unstack
from tests.contract.generated_sources import ELEMENT_SOURCES, ROW_SOURCES
from tests.contract.shapes import Pair, Ride

Epoch = tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """A dataset, and a function of the epoch that gives its elements as a list. A batch is a `Group` there."""

    dataset: Dataset
    expected: Callable[[Epoch], list[Any]]
    can_batch: bool = True  #: whether its elements have one shape
    batched: bool = False
    rows: bool = False


class Group(list[Any]):
    """The elements of a batch."""


# What elements are


def same(found: object, wanted: object) -> bool:  # noqa: C901, PLR0911  a line for each kind
    """Whether an element is the expected one, down to the type of each leaf; a NaN is a NaN."""
    if isinstance(wanted, Group):
        items = found.to_pylist() if isinstance(found, pa.RecordBatch) else list(unstack(found))
        return len(items) == len(wanted) and all(map(same, items, wanted))
    found, wanted = simplified(found), simplified(wanted)
    if isinstance(wanted, Ragged):
        return isinstance(found, Ragged) and all(map(same, found, wanted)) and len(found) == len(wanted)
    if isinstance(found, np.unsignedinteger) and type(wanted) is int:  # numbers above 2**63
        return int(found) == wanted
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, dict):
        return list(found) == list(wanted) and all(same(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, tuple | list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if dataclasses.is_dataclass(wanted):
        return same(vars(found), vars(wanted))
    if isinstance(wanted, np.ndarray):
        if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
            return False
        return same(found.tolist(), wanted.tolist())
    if isinstance(wanted, float):
        return (math.isnan(found) and math.isnan(wanted)) or (found, math.copysign(1, found)) == (
            wanted,
            math.copysign(1, wanted),
        )
    return found == wanted or (found != found and wanted != wanted)  # noqa: PLR0124  not equal to itself


def simplified(value: Any) -> Any:
    """Numbers of NumPy that Python has too as Python's, and lists of numbers as arrays, as which they are batched."""
    if isinstance(value, np.ma.MaskedArray) and not np.ma.getmaskarray(value).any():
        value = value.data
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    return value.item() if isinstance(value, np.generic) and value.dtype.char in "?ldDUS" else value


NUMBERS = st.sampled_from(
    ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "M8[s]", "m8[us]"]
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.just("\0"), max_size=4)
BYTES = st.binary(max_size=4) | st.sampled_from([b"a\0", b"\0", b"\0\0"])
ZONES = st.none() | st.just(dt.UTC) | st.timezones()
LEAVES = {
    "int": st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1),
    "big int": st.integers(-(2**70), 2**70),
    "float": st.floats(),
    "bool": st.booleans(),
    "text": TEXTS,
    "bytes": BYTES,
    "datetime": st.datetimes(timezones=ZONES, allow_imaginary=False),
    "date": st.dates(),
    "time": st.times(),
    "timedelta": st.timedeltas(),
    "decimal": st.decimals(allow_nan=False),
    "complex": st.complex_numbers(),
}


@st.composite
def element_kinds(draw: Any, depth: int = 2) -> tuple[st.SearchStrategy[Any], bool]:  # noqa: PLR0911  a table
    """A strategy for elements of one kind, and whether they can be batched."""
    kind = draw(
        st.sampled_from(
            ["leaf", "optional", "array", "array", "ragged", "scalar", "texts", "masked", "nested", "nested"]
        )
    )
    if kind == "leaf":
        return LEAVES[draw(st.sampled_from(sorted(LEAVES)))], True
    if kind == "optional":
        return st.none() | LEAVES[draw(st.sampled_from(sorted(LEAVES)))], True
    if kind == "ragged":
        dtype = draw(NUMBERS)
        return arrays.arrays(dtype, st.integers(0, 3).map(lambda size: (size,))), False
    if kind in {"array", "scalar", "masked", "texts"}:
        shape = () if kind == "scalar" else draw(arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=3))
        if kind == "texts":
            return arrays.arrays(object, shape, elements=draw(st.sampled_from([TEXTS, BYTES, st.none() | TEXTS]))), True
        one = arrays.arrays(draw(NUMBERS), shape)
        if kind == "masked" and 0 not in shape:
            return st.builds(
                np.ma.MaskedArray, one, arrays.arrays(bool, shape).filter(lambda mask: not mask.all())
            ), True
        return one.map(lambda array: array[()]) if kind == "scalar" else one, True
    if not depth:
        return LEAVES["int"], True
    parts = [draw(element_kinds(depth=depth - 1)) for _ in range(2)]
    (left, _), (right, _) = parts
    build = draw(st.sampled_from([Pair, Ride, lambda a, b: (a, b), lambda a, b: {"a": a, "b": b}]))
    return st.builds(build, left, right), all(can for _, can in parts)


COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), LEAVES["int"]),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float16": (pa.float16(), st.floats(width=16).map(np.float16)),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (pa.float64(), st.floats()),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), TEXTS),
    "large string": (pa.large_string(), TEXTS),
    "binary": (pa.binary(), BYTES),
    "fixed binary": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "date": (pa.date32(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "seconds": (pa.time32("s"), st.times().map(lambda time: time.replace(microsecond=0))),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
    "moment": (pa.timestamp("ms", "UTC"), st.datetimes().map(lambda at: at.replace(microsecond=0, tzinfo=dt.UTC))),
    "duration": (pa.duration("us"), st.timedeltas(dt.timedelta(-1000), dt.timedelta(1000))),
    "decimal": (pa.decimal128(20, 3), st.decimals(-1000, 1000, places=3)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b\0", ""])),
    "list": (pa.list_(pa.int32()), st.lists(st.none() | st.integers(-9, 9), max_size=3)),
    "list view": (pa.list_view(pa.int16()), st.lists(st.integers(-9, 9), max_size=3)),
    "vector": (pa.list_(pa.float32(), 2), st.lists(st.floats(width=32), min_size=2, max_size=2)),
    "struct": (
        pa.struct([("a", pa.int8()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.integers(-9, 9), "b": TEXTS}),
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        st.lists(st.tuples(TEXTS, st.integers(-9, 9)), max_size=2, unique_by=lambda pair: pair[0]),
    ),
    "null": (pa.null(), st.none()),
}
for _size in ((2, 2), (1, 3, 2), (2, 0)):
    _type, _values = pa.int16(), st.integers(-9, 9)
    for _axis in reversed(_size):
        _type, _values = pa.list_(_type, _axis), st.lists(_values, min_size=_axis, max_size=_axis)
    COLUMNS[f"tensor {_size}"] = (_type, _values)

CSV = ("int64", "bool")  # types of which the text says all


@st.composite
def tables(draw: Any) -> pa.Table:
    """Some rows, in chunks, with a number for each."""
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3, unique=True))
    count = draw(st.integers(0, 11))
    columns = {"row": pa.array(range(count), pa.int64())}
    for name in names:
        type_, values = COLUMNS[name]
        some = st.none() | values if draw(st.booleans()) else values
        columns[name] = pa.array(draw(st.lists(some, min_size=count, max_size=count)), type_)
    table = pa.table(columns)
    cut = draw(st.integers(0, count))
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)])


# Sources


@st.composite
def sources(draw: Any, folder: Any) -> Graph:
    if draw(st.booleans()):
        return draw(row_sources(folder))
    if draw(st.integers(0, 3)) == 0:
        dataset, expected = draw(st.sampled_from(ELEMENT_SOURCES))(draw, folder)
        return Graph(dataset, expected, can_batch=False)
    values, can_batch = draw(element_kinds())
    found = draw(st.lists(values, max_size=11))
    kind = draw(st.sampled_from(["elements", "generator", "slices"]))
    if (
        kind == "slices"
        and found
        and isinstance(found[0], np.ndarray)
        and can_batch
        and not isinstance(found[0], np.ma.MaskedArray)
    ):
        return Graph(inputs.from_tensor_slices(np.stack(found)), lambda _: found)
    if kind == "generator":
        return Graph(inputs.from_generator(lambda: iter(found)), lambda _: found, can_batch)
    return Graph(inputs.from_elements(found), lambda _: found, can_batch)


def fits_parquet(column: pa.ChunkedArray) -> bool:
    """Whether pyarrow reads what it wrote: it refuses lists of one length of which one is missing, or of length 0."""
    return not pa.types.is_fixed_size_list(column.type) or not (column.null_count or "[0]" in str(column.type))


@st.composite
def row_sources(draw: Any, folder: Any) -> Graph:
    if draw(st.integers(0, 4)) == 0:
        dataset, found = draw(st.sampled_from(ROW_SOURCES))(draw, folder)
        return Graph(dataset, lambda _: found, rows=True)
    table = draw(tables())
    rows = table.to_pylist()
    kind = draw(st.sampled_from(["arrow", "arrow", "parquet", "ipc", "generator"]))
    path = folder / f"rows.{kind}"
    if kind == "parquet" and rows and all(map(fits_parquet, table.columns)):
        pq.write_table(table, path, row_group_size=draw(st.integers(1, 6)), store_schema=True)
        dataset = inputs.from_parquet(path)
        if dataset.spec.schema.remove_metadata() != table.schema:  # Parquet has fewer types than Arrow
            dataset = inputs.from_arrow(table)
    elif kind == "ipc":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=4)
        dataset = inputs.from_arrow_files(path)
    elif kind == "generator":
        dataset = inputs.from_generator(lambda: iter(rows), spec=table.schema)
    else:
        dataset = inputs.from_arrow(table)
    return Graph(dataset, lambda _: rows, rows=True)


# Steps: each makes of a graph another one


def order(seed: int, count: int, size: int | None, epoch: Epoch) -> list[int]:
    """The order in which a shuffle gives elements: that of each window follows from the seed, the epoch and its number."""
    size, mixed, places = size or max(count, 1), mix_seed(seed, *epoch), []
    for number, start in enumerate(range(0, count, size)):
        generator = np.random.Generator(np.random.PCG64(mix_seed(mixed, number)))
        places += [start + int(at) for at in generator.permutation(min(size, count - start))]
    return places


def _then(graph: Graph, dataset: Dataset, change: Callable[[list[Any]], list[Any]], **changes: Any) -> Graph:
    if graph.rows and not changes.get("rows", True):  # as dicts, whose lists may differ in length
        changes["can_batch"] = not any(map(pa.types.is_nested, graph.dataset.spec.schema.types))
    return dataclasses.replace(graph, dataset=dataset, expected=lambda epoch: change(graph.expected(epoch)), **changes)


def groups(values: list[Any], size: int, *, drop: bool) -> list[Any]:
    found = [Group(values[at : at + size]) for at in range(0, len(values), size)]
    return [group for group in found if len(group) == size] if drop else found


def take(draw: Any, graph: Graph) -> Graph:
    count = draw(st.integers(-1, 12))
    return _then(graph, graph.dataset.take(count), lambda found: found if count < 0 else found[:count])


def skip(draw: Any, graph: Graph) -> Graph:
    count = draw(st.integers(0, 6))
    return _then(graph, graph.dataset.skip(count), lambda found: found[count:])


def take_while(draw: Any, graph: Graph) -> Graph:
    limit = draw(st.integers(0, 8))
    if graph.rows:
        condition = draw(st.sampled_from([inputs.col("row") < limit, lambda row: row["row"] < limit]))
        dataset = graph.dataset.take_while(condition)
        return _then(graph, dataset, lambda found: list(itertools.takewhile(lambda row: row["row"] < limit, found)))
    numbered = graph.dataset.enumerate().take_while(lambda number, _: number < limit)
    return _then(graph, numbered.map(second), lambda found: found[:limit])


def shard(draw: Any, graph: Graph) -> Graph:
    shards = draw(st.integers(1, 3))
    index = draw(st.integers(0, shards - 1))
    return _then(graph, graph.dataset.shard(shards, index), lambda found: found[index::shards])


def repeat(draw: Any, graph: Graph) -> Graph:
    count = draw(st.integers(0, 3))
    if count == 1:
        return dataclasses.replace(graph, dataset=graph.dataset.repeat(1))

    def expected(epoch: Epoch) -> list[Any]:
        return [value for number in range(count) for value in graph.expected((*epoch, number))]

    return dataclasses.replace(graph, dataset=graph.dataset.repeat(count), expected=expected)


def shuffle(draw: Any, graph: Graph) -> Graph:
    size, seed, again = draw(st.none() | st.integers(1, 12)), draw(st.integers(0, 9)), draw(st.booleans())

    def expected(epoch: Epoch) -> list[Any]:
        found = graph.expected(epoch)
        return [found[place] for place in order(seed, len(found), size, epoch if again else ())]

    dataset = graph.dataset.shuffle(size, seed=seed, reshuffle_each_iteration=again)
    return dataclasses.replace(graph, dataset=dataset, expected=expected)


def cache(_: Any, graph: Graph) -> Graph:
    return dataclasses.replace(graph, dataset=graph.dataset.cache(), expected=lambda _: graph.expected((0,)))


def prefetch(draw: Any, graph: Graph) -> Graph:
    return dataclasses.replace(graph, dataset=graph.dataset.prefetch(draw(st.integers(0, 3))))


def concatenate_with_itself(_: Any, graph: Graph) -> Graph:
    return _then(graph, graph.dataset.concatenate(graph.dataset.take(2)), lambda found: [*found, *found[:2]])


def zipped(_: Any, graph: Graph) -> Graph:
    dataset = inputs.zip(graph.dataset, inputs.range(7))
    return _then(graph, dataset, lambda found: list(zip(found, range(7), strict=False)), rows=False)


def enumerated(_: Any, graph: Graph) -> Graph:
    if graph.rows:
        if "index" in graph.dataset.spec.schema.names:
            return graph
        return _then(
            graph, graph.dataset.enumerate(3), lambda found: [{"index": at, **row} for at, row in enumerate(found, 3)]
        )
    return _then(graph, graph.dataset.enumerate(3), lambda found: list(enumerate(found, 3)))


def mapped(draw: Any, graph: Graph) -> Graph:
    """An element in a dict, made by the consumer or by threads."""
    dataset = graph.dataset.map(in_dict, num_parallel=draw(st.sampled_from([None, 1, 3])))
    spread = lambda value: in_dict(*value) if type(value) is tuple else in_dict(value)  # noqa: E731
    return _then(graph, dataset, lambda found: [spread(value) for value in found], rows=False)


def in_dict(*value: object) -> dict[str, object]:
    return {"value": value[0] if len(value) == 1 else Pair(*value) if len(value) == 2 else value}


def vectorized(draw: Any, graph: Graph) -> Graph:
    if not graph.rows:
        return graph
    kind = draw(st.sampled_from(["arrow", "numpy"]))
    schema = graph.dataset.spec.schema
    dataset = graph.dataset.map(
        lambda block: block,
        vectorized=True,
        format=kind,
        spec=schema,
        num_parallel=draw(st.sampled_from([None, 2])),
        stateless=draw(st.booleans()),
    )
    return dataclasses.replace(graph, dataset=dataset)


def filtered(draw: Any, graph: Graph) -> Graph:
    """Every other element, by a count; of rows, by an expression, a mask or row by row."""
    if not graph.rows:
        return _then(
            graph,
            graph.dataset.enumerate().filter(is_even).map(second),
            lambda found: found[::2],
        )
    limit = draw(st.integers(0, 8))
    predicate: Any = {
        "expression": inputs.col("row") < limit,
        "mask": lambda columns: columns["row"] < limit,
        "row": lambda row: row["row"] < limit,
    }[kind := draw(st.sampled_from(["expression", "mask", "row"]))]
    dataset = graph.dataset.filter(predicate, vectorized=kind == "mask")
    return _then(graph, dataset, lambda found: [row for row in found if row["row"] < limit])


def is_even(number: int, _: object) -> bool:
    return number % 2 == 0


def second(_: int, value: object) -> object:
    return value


def scanned(_: Any, graph: Graph) -> Graph:
    dataset = graph.dataset.scan(0, lambda carried, value: (carried + 1, Pair(carried, value)))
    return _then(graph, dataset, lambda found: [Pair(at, value) for at, value in enumerate(found)], rows=False)


def randomly_mapped(draw: Any, graph: Graph) -> Graph:
    """Numbers of each element's own, whatever computes them."""
    seed = draw(st.integers(0, 9))
    dataset = graph.dataset.random_map(with_number, seed=seed, num_parallel=draw(st.sampled_from([None, 2])))

    def expected(epoch: Epoch) -> list[Any]:
        mixed = mix_seed(seed, *epoch)
        generators = (np.random.Generator(np.random.PCG64(mix_seed(mixed, at))) for at in itertools.count())
        return [
            with_number(*(value if type(value) is tuple else (value,)), numbers)
            for value, numbers in zip(graph.expected(epoch), generators, strict=False)
        ]

    can_batch = graph.can_batch and not (graph.rows and any(map(pa.types.is_nested, graph.dataset.spec.schema.types)))
    return dataclasses.replace(graph, dataset=dataset, expected=expected, rows=False, can_batch=can_batch)


def with_number(*parts: Any) -> Pair:
    *value, numbers = parts
    return Pair(value[0] if len(value) == 1 else Pair(*value), int(numbers.integers(1000)))


def grouped(draw: Any, graph: Graph) -> Graph:
    """By the remainder of their numbers, in groups that are given when they are full, and then the rest."""
    keys, size = draw(st.integers(1, 3)), draw(st.integers(1, 4))

    def change(found: list[Any]) -> list[Any]:
        waiting: dict[int, list[Any]] = {}
        given: list[Any] = []
        for at, value in enumerate(found):
            group = waiting.setdefault(at % keys, [])
            group.append(value)
            if len(group) == size:
                given += waiting.pop(at % keys)
        return given + [value for group in waiting.values() for value in group]

    if graph.rows:
        if "index" in graph.dataset.spec.schema.names:
            return graph
        indexed = graph.dataset.enumerate()
        dataset = indexed.group_by_window(
            lambda row: row["index"] % keys, lambda _, group: group, size, spec=indexed.spec.schema
        ).select(*graph.dataset.spec.schema.names)
        return _then(graph, dataset, change)
    dataset = graph.dataset.enumerate().group_by_window(
        lambda number, _: number % keys, lambda _, group: group.map(second), size
    )
    return _then(graph, dataset, change)


def zipped_nested(_: Any, graph: Graph) -> Graph:
    dataset = inputs.zip({"a": graph.dataset, "b": (inputs.range(7), inputs.range(3, 20))})
    return _then(
        graph,
        dataset,
        lambda found: [{"a": value, "b": (at, at + 3)} for at, value in enumerate(found[:7])],
        rows=False,
    )


def chosen(draw: Any, graph: Graph) -> Graph:
    """Of itself and its first two, in turns that were drawn; until a dataset is chosen that has ended, or over it."""
    turns, stop = draw(st.lists(st.integers(0, 1), max_size=12)), draw(st.booleans())
    dataset = inputs.choose_from_datasets(
        [graph.dataset, graph.dataset.take(2)], inputs.from_elements(turns), stop_on_empty=stop
    )

    def change(found: list[Any]) -> list[Any]:
        queues = [list(found), list(found[:2])]
        given = []
        for turn in turns:
            if queues[turn]:
                given.append(queues[turn].pop(0))
            elif stop:
                break
        return given

    return _then(graph, dataset, change)


def deduplicated(draw: Any, graph: Graph) -> Graph:
    count = draw(st.integers(1, 5))
    dataset = graph.dataset.map(count_only if graph.rows else in_dict).enumerate()
    dataset = dataset.map(lambda number, _: number % count).unique()
    return _then(graph, dataset, lambda found: list(range(len(found)))[:count], rows=False, can_batch=True)


def count_only(_: object) -> int:
    return 0


def flat_mapped(draw: Any, graph: Graph) -> Graph:
    length, block = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    dataset = graph.dataset.enumerate() if not graph.rows else graph.dataset.map(numbered)
    dataset = dataset.interleave(twice, cycle_length=length, block_length=block)

    def change(found: list[Any]) -> list[Any]:
        queues = [[value] * (at % 3) for at, value in enumerate(found)]
        return in_turns(queues, length, block)

    if graph.rows:
        change = lambda found: in_turns([[row] * (row["row"] % 3) for row in found], length, block)  # noqa: E731
    return _then(graph, dataset, change, rows=False)


def numbered(row: dict[str, Any]) -> tuple[int, Any]:
    return row["row"], row


def twice(number: int, value: object) -> Dataset:
    return inputs.from_elements([value]).repeat(number % 3)


def in_turns(queues: list[list[Any]], length: int, block: int) -> list[Any]:
    """What `interleave` gives: `block` elements of each of `length` queues in turns; a queue that ends makes room."""
    waiting = iter(queues)
    slots: list[list[Any] | None] = [list(queue) for _, queue in zip(range(length), waiting, strict=False)]
    slots += [None] * (length - len(slots))
    found: list[Any] = []
    while any(slot is not None for slot in slots):
        for at, slot in enumerate(slots):
            if slot is None:
                continue
            given, rest = slot[:block], slot[block:]
            found += given
            slots[at] = rest if len(given) == block else next(([*queue] for queue in waiting), None)
    return found


def windowed(draw: Any, graph: Graph) -> Graph:
    size, shift, stride = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    drop = draw(st.booleans())
    spec = graph.dataset.spec if graph.rows else None
    dataset = graph.dataset.window(size, shift=shift, stride=stride, drop_remainder=drop)
    reach = (size - 1) * stride + 1

    def change(found: list[Any]) -> list[Any]:
        starts = range(0, len(found), shift)
        return [
            value
            for start in starts
            if not drop or start + reach <= len(found)
            for value in found[start : start + reach : stride]
        ]

    return _then(graph, dataset.flat_map(lambda window: window, spec=spec), change)


def batch(draw: Any, graph: Graph) -> Graph:
    size, drop = draw(st.integers(1, 5)), draw(st.booleans())
    dataset = graph.dataset.batch(size, drop_remainder=drop)
    return _then(graph, dataset, lambda found: groups(found, size, drop=drop), batched=True)


def unbatched(draw: Any, graph: Graph) -> Graph:
    size = draw(st.integers(1, 4))
    made = batch(draw, graph)
    flat = lambda found: [value for group in found for value in group]  # noqa: E731
    if draw(st.booleans()):
        return _then(made, made.dataset.unbatch(), flat, batched=False)
    return _then(made, made.dataset.rebatch(size), lambda found: groups(flat(found), size, drop=False))


STEPS = [
    take,
    take_while,
    skip,
    shard,
    repeat,
    shuffle,
    shuffle,
    cache,
    prefetch,
    concatenate_with_itself,
    zipped,
    enumerated,
    mapped,
    vectorized,
    filtered,
    scanned,
    flat_mapped,
    windowed,
    randomly_mapped,
    grouped,
    zipped_nested,
    chosen,
    deduplicated,
    unbatched,
    batch,
]


@st.composite
def graphs(draw: Any, folder: Any) -> Graph:
    """A source and up to five steps; a batch is the last of them."""
    graph = draw(sources(folder))
    for step in draw(st.lists(st.sampled_from(STEPS), max_size=5)):
        if step in {batch, unbatched} and not graph.can_batch:
            continue
        if graph.batched:
            break
        if len(graph.expected((0,))) > 60:
            break
        graph = step(draw, graph)
    return graph
