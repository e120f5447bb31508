"""What a dataset is made of: an op describes, a stream runs it, an opening says how one iteration runs.

The contract, for whoever adds an op (one file in `ops/`: a frozen dataclass and its stream):

- An `Op` is data. Its fields that are ops, or tuples of ops, are its inputs. It checks its arguments in
  `__post_init__`, says what its elements are (`spec`) and how many (`cardinality`) where this differs from its first
  input, and `open` makes the stream. It opens its inputs by `opening.open(op)`, never by calling their `open`.
- If `spec` is a `Table`, the elements are rows and travel in blocks: the stream gives RecordBatches of at least one
  row. Every count in an op's arguments is in rows, and the size of the blocks changes no result. Otherwise the stream
  gives one element at a time.
- A `Stream` is an iterator. `state()` is plain data from which the same rest can be given again; `restore` is called
  on a fresh stream, at most once, before the first element. An error raised by `__next__` has used up its element: the
  next call goes on behind it. Ops that cut blocks (`rows.RowCursor`) call `state()` once a block, so keep it fast.
- An op that leaves a seed open has a field `seed` that is None; `assign_seeds` puts a number there before opening.
  One that opens datasets has a field `place`, which `assign_seeds` sets: no two of them draw the same seeds.
- What can be set while the stream runs is a `Knob`, registered with `opening.tuner` when the stream is opened.
- A stream that opens datasets later than itself, one after another, does so from an `InputSeries` of its opening, and
  its state has `InputSeries.unopened`. One that reads its input again from the beginning when it is restored has the
  input's state before the first element in its own, until it has read all. So it is known what a state still needs.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, Self, TypeAlias

from spanwise.orchestrator.errors import DatasetError

if TYPE_CHECKING:
    from spanwise.pipelines.input.element import Spec

Element: TypeAlias = Any
"""Whatever the user's functions make: its type is known to `Op.spec`, not to the type checker."""

State: TypeAlias = dict[str, Any]
"""Where a stream stands: dicts, lists, texts, numbers, bytes, True, False and None."""

Count: TypeAlias = "int | float | None"
"""How many elements: a whole number, `math.inf`, or None if nobody knows before they have been read."""

UNOPENED: Final = "unopened"
"""In the state of a stream: what it has not opened yet."""

AUTOTUNE: Final = -1
"""Given instead of a number of threads, elements or rows: it is found while the dataset runs."""

DEFAULT_BLOCK_ROWS: Final = 32_768


@dataclass(slots=True)
class PassCount:
    """How many elements, or blocks of rows, a pass has yielded."""

    elements: int = 0
    is_resumed: bool = False  #: whether another pass has yielded those before its first


class Consumer(Protocol):
    """Who reads a dataset: its name is part of the names of its jobs in a data service."""

    name: str

    def begin_pass(self) -> PassCount: ...


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a dataset runs. No option changes its elements, except that `deterministic=False` changes their order."""

    seed: int | None = None  #: of the ops that have no seed of their own; None draws one for each iteration
    deterministic: bool = True  #: False lets parallel ops give elements in the order in which they are ready
    block_rows: int = AUTOTUNE  #: how many rows travel together
    optimize: bool = True  #: whether the graph is rewritten before it runs
    without: frozenset[str] = frozenset()  #: names of rewrites to leave out
    autotune: bool = True  #: whether a background thread finds the settings that are AUTOTUNE
    cpu_budget: int | None = None  #: how many cores may be busy; None means those this process may use
    memory_budget_bytes: int | None = None  #: for buffers; None means half of what is free
    consumer: Consumer | None = field(default=None, repr=False, compare=False)  #: who reads it; stays in its process
    in_order: bool = field(default=False, repr=False)  #: whatever `deterministic` says: other passes count on it too


@dataclass(kw_only=True, slots=True)
class Knob:
    """A setting of a running stream, which reads `value` each time it matters."""

    name: str  #: of the op and the setting, such as `map.num_parallel`
    kind: Literal["parallelism", "buffer", "block"]
    value: int
    minimum: int
    maximum: int


def block_knob(rows: int) -> Knob:
    """The knob for the size of blocks; AUTOTUNE leaves it free between sizes that were measured to be good."""
    if rows == AUTOTUNE:
        return Knob(name="block_rows", kind="block", value=DEFAULT_BLOCK_ROWS, minimum=8192, maximum=65_536)
    return Knob(name="block_rows", kind="block", value=rows, minimum=rows, maximum=rows)


class KnobRegistry(Protocol):
    """Takes over knobs, and finds good values for them while the streams run."""

    def register(self, knob: Knob, stream: Stream) -> None: ...


class PassLimits(Protocol):
    """What the windows of a pass may hold together, and how many functions it calls at once."""

    calls: AbstractContextManager[object]

    def join(self, holder: Any) -> Callable[[], None]: ...
    def has_room(self, holder: Any, wanted_bytes: float) -> bool: ...
    @property
    def untried(self) -> int: ...


class CommitRegistry(Protocol):
    """Knows the streams of a pass whose elements are committed."""

    def stored(self, name: str) -> State | None: ...
    def register(self, name: str, stream: Any) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Opening:
    """One iteration of a graph: what its streams have in common."""

    options: Options = field(default_factory=Options)
    seed: int = 0  #: of this iteration; every seed that the user left open comes from it
    epoch: tuple[int, ...] = (0,)  #: the iteration's number, then the round of each `repeat` around the op
    block: Knob = field(default_factory=lambda: block_knob(AUTOTUNE))  #: how many rows travel together
    tuner: KnobRegistry | None = None
    observe: Callable[[Op, Stream], Stream] | None = None  #: wraps each stream as it is opened, to time it
    dataset: Callable[[Op], object] | None = None  #: makes a nested dataset as users' functions know it
    commits: CommitRegistry | None = None  #: the pass's streams whose elements are committed
    budget: PassLimits | None = None  #: of the pass; None for no limits
    report: Callable[[object], None] | None = None  #: receives the reports of ops: `SnapshotUse`
    path: tuple[int, ...] = ()  #: of each `InputSeries` around the op: its own number, then that of the dataset in it
    numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)  #: of what is opened at this path

    def open(self, op: Op) -> Stream:
        stream = op.open(self)
        return stream if self.observe is None else self.observe(op, stream)

    def with_options(self, options: Options, seed: int) -> Opening:
        """For a dataset with these options that a user's function has made: `seed` is for one without a seed."""
        own = seed if options.seed is None else options.seed
        return replace(
            self, seed=own, options=replace(self.options, in_order=self.options.in_order or options.in_order)
        )

    def nested(self, op: Op) -> Any:
        """A nested dataset as users' functions know it."""
        if self.dataset is None:
            raise DatasetError(f"{op.name}: nested datasets are not available here.")
        return self.dataset(op)

    def is_ordered(self, deterministic: bool | None) -> bool:
        """Whether a parallel op keeps the order of its input: as it says itself, or else as the options say."""
        return self.options.in_order or (self.options.deterministic if deterministic is None else deterministic)

    def round(self, number: int) -> Opening:
        """For one of the rounds of a `repeat`: ops that shuffle do it differently in each."""
        return replace(self, epoch=(*self.epoch, number))

    def next_path(self) -> tuple[int, ...]:
        """Names the next thing that is opened; the same in each pass, since a graph is opened in one order."""
        return (*self.path, next(self.numbers))


class InputSeries:
    """Datasets that a stream opens one after another, later than itself."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._path = opening.next_path()

    def opening(self, number: int) -> Opening:
        """For one of the datasets."""
        return replace(self._opening, path=(*self._path, number), numbers=itertools.count())

    def unopened(self, *first: int) -> State:
        """For the state of the stream: the first dataset that it has not opened. With a 0 behind it, only that one."""
        return {UNOPENED: [*self._path, *first]}


@dataclass(frozen=True, kw_only=True, eq=False)
class Op(ABC):
    """One step of a dataset; two ops are the same only if they are one object."""

    own_seeds: ClassVar[bool] = False  #: whether it assigns seeds to the ops below it when it is opened
    by_element: ClassVar[bool] = (
        False  #: whether it yields of two datasets, one after the other, what it yields of each
    )
    proves_place: ClassVar[bool] = True  #: whether a state leads another pass to the same place in the same elements
    passes_through: ClassVar[bool] = False  #: whether it passes on its one input's elements without work worth timing

    @property
    def needs_all(self) -> str:
        """Why its elements cannot be computed from parts of its input; empty if they can, in other groups."""
        return "" if self.by_element or not self.inputs else f"{self.name} counts the elements of its whole input"

    @property
    def spec(self) -> Spec:
        """What an element is; if an op does not say, it is as in its first input."""
        return self.inputs[0].spec

    @property
    def cardinality(self) -> Count:
        """How many elements one iteration gives (rows, if the spec is a `Table`); if not said, as many as come in."""
        return self.inputs[0].cardinality

    @abstractmethod
    def open(self, opening: Opening) -> Stream:
        """A stream at the first element. Reads nothing and starts nothing yet."""

    @property
    def name(self) -> str:
        """As shown in error messages and reports."""
        return type(self).__name__

    def __getstate__(self) -> dict[str, object]:
        """Its fields alone: what it has computed of itself says only who has looked at it."""
        return {name: getattr(self, name) for name in _fields_of(type(self))}

    @cached_property
    def inputs(self) -> tuple[Op, ...]:
        found: list[Op] = []
        for name in _fields_of(type(self)):
            value = getattr(self, name)
            if isinstance(value, Op):
                found.append(value)
            elif isinstance(value, tuple):
                found += [item for item in value if isinstance(item, Op)]
        return tuple(found)

    def with_inputs(self, inputs: Sequence[Op]) -> Op:
        """The same op on other inputs; itself if they are the ones it has."""
        if all(new is old for new, old in zip(inputs, self.inputs, strict=True)):
            return self
        rest = iter(inputs)
        changes: dict[str, object] = {}
        for name in _fields_of(type(self)):
            value = getattr(self, name)
            if isinstance(value, Op):
                changes[name] = next(rest)
            elif isinstance(value, tuple) and any(isinstance(item, Op) for item in value):
                changes[name] = tuple(next(rest) if isinstance(item, Op) else item for item in value)
        return replace(self, **changes)


@cache
def _fields_of(op: type[Op]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(op))


class Stream(ABC):
    """An op that runs: gives elements (or blocks of rows) until it raises StopIteration."""

    def __iter__(self) -> Iterator[Element]:
        return self

    @abstractmethod
    def __next__(self) -> Element: ...

    @abstractmethod
    def state(self) -> State:
        """Where it stands, between two elements or blocks."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Puts a new stream where another one stood."""

    def close(self) -> None:  # noqa: B027  most streams hold nothing
        """Releases threads, processes, memory and files; may be called twice."""


class Restorable(Protocol):
    """Something with a state: a stream, or the cursor over one."""

    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


def next_group(source: Stream, size: int, *, drop_remainder: bool) -> list[Element]:
    """The next `size` elements; at the end those that are left.

    Raises:
        StopIteration: none is left, or too few and they are to be dropped.
    """
    elements = list(itertools.islice(source, size))
    if not elements or (drop_remainder and len(elements) < size):
        raise StopIteration
    return elements


class SingleInputStream(Stream):
    """A stream over one input. Its state is that of the input, and of its own attributes those in `state_fields`.

    A stream that cuts blocks passes its cursor as the `place`, whose state then replaces the input's.
    """

    state_fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, source: Stream, place: Restorable | None = None) -> None:
        self._source = source
        self._place = place or source

    def state(self) -> State:
        state: State = {"input": self._place.state()}
        for name in self.state_fields:
            state[name] = getattr(self, name)
        return state

    def restore(self, state: State) -> None:
        self._place.restore(state["input"])
        for name in self.state_fields:
            setattr(self, name, state[name])

    def close(self) -> None:
        self._source.close()


class CountingStream(SingleInputStream):
    """A stream over one input that counts what it reads, so that errors say at which element."""

    state_fields: ClassVar[tuple[str, ...]] = ("at",)

    def __init__(self, source: Stream) -> None:
        super().__init__(source)
        self.at = 0  # elements or rows read, and elements that failed below

    def _read(self) -> tuple[int, Element]:
        """The next element and its number."""
        try:
            element = next(self._source)
        except StopIteration:
            raise
        except Exception:
            self.at += 1  # it has used up an element
            raise
        self.at += 1
        return self.at - 1, element


def check_whole(op: str, argument: str, value: object, *, at_least: int = 1, autotune: bool = False) -> None:
    """Refuses an argument that is not a whole number, or too small.

    Raises:
        DatasetError: says which argument of which op, and what it was.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not (value >= at_least or (autotune and value == AUTOTUNE))
    ):
        also = ", or AUTOTUNE" if autotune else ""
        raise DatasetError(f"{op}({argument}={value!r}): expected a whole number of at least {at_least}{also}.")


def check_shares(op: str, argument: str, values: Sequence[object]) -> None:
    """Refuses numbers that say no shares of a whole: of weights or classes.

    Raises:
        DatasetError: says which argument of which op, and what it was.
    """
    shares: list[float] = [float(each) for each in values if isinstance(each, Real) and float(each) >= 0]
    if len(shares) < len(values) or not 0 < sum(shares) < math.inf:
        raise DatasetError(
            f"{op}({argument}={list(values)}): expected numbers of at least 0, at least one of them above 0."
        )


def needs_full_groups(op: Op, *, drop_remainder: bool) -> str:
    """`Op.needs_all` of an op that groups elements: what is left over differs from part to part."""
    if not drop_remainder or op.inputs[0].cardinality == math.inf:
        return ""
    return f"{op.name}(drop_remainder=True) drops the rest of each part"


def check_callable(op: str, argument: str, value: object) -> None:
    """Refuses an argument that cannot be called.

    Raises:
        DatasetError: says which argument of which op, and what it was.
    """
    if not callable(value):
        raise DatasetError(f"{op}({argument}={value!r}): expected a function.")


def count_some(count: Count) -> Count:
    """How many elements some of `count` are, or make: without end if these are, or else unknown."""
    return math.inf if count == math.inf else None


def ceil_div(count: Count, size: int, *, drop: bool = False) -> Count:
    """How many groups of `size` there are in `count` elements; `drop` leaves out a last, smaller one."""
    if count is None or count == math.inf:
        return count
    return int(count) // size if drop else -(-int(count) // size)


def mix_seed(seed: int, *more: int) -> int:
    """A seed computed from numbers, the same on every machine; other numbers give another one."""
    text = ",".join(map(str, (seed, *more)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def rebuild(op: Op, change: Callable[[Op], Op], *, stop: Callable[[Op], bool] | None = None) -> Op:
    """The graph with `change` applied to each op, inputs first; what is shared stays shared.

    What lies below an op for which `stop` holds is left as it is.
    """
    done: dict[int, Op] = {}

    def walk(old: Op) -> Op:
        if id(old) not in done:
            below = old if stop is not None and stop(old) else old.with_inputs([walk(each) for each in old.inputs])
            done[id(old)] = change(below)
        return done[id(old)]

    return walk(op)


class DrawnSeed(int):
    """A seed that a pass has drawn for an op without one."""

    number: int  #: of the op among those of the graph that had none

    @classmethod
    def draw(cls, seed: int, number: int) -> Self:
        made = cls(mix_seed(seed, number))
        made.number = number
        return made


def assign_seeds(op: Op, seed: int) -> Op:
    """The graph with a seed for each op that has none: the same seed gives the same graph.

    Seeds that another pass has drawn are drawn anew. So it may be called with a part of a graph, which then has the
    seeds that it has in the whole.
    """
    numbers, places = itertools.count(), itertools.count()

    def give(each: Op) -> Op:
        if getattr(each, "place", 0) is None:
            place: dict[str, object] = {"place": next(places)}
            return replace(each, **place)
        own = getattr(each, "seed", 0)
        if own is not None and not isinstance(own, DrawnSeed):
            return each
        drawn = DrawnSeed.draw(seed, next(numbers) if own is None else own.number)
        changes: dict[str, object] = {"seed": drawn}
        return each if own == drawn else replace(each, **changes)

    return rebuild(op, give, stop=lambda each: each.own_seeds)


def list_ops(op: Op) -> list[Op]:
    """Every op of the graph once, inputs first."""
    found: dict[int, Op] = {}

    def walk(each: Op) -> None:
        if id(each) not in found:
            for below in each.inputs:
                walk(below)
            found[id(each)] = each

    walk(op)
    return list(found.values())
