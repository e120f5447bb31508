"""Analyzers: what is learned from all rows of a window: accumulate a batch, merge, and finish with a value."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from spanwise.components.deferred_polars import pl
from spanwise.components.transform.analyzers import plain
from spanwise.components.transform.analyzers.plain import Plain

if TYPE_CHECKING:
    from spanwise.components.statistics.accumulators import Accumulator

State = TypeVar("State")
Accumulated = TypeVar("Accumulated", bound="Accumulator")


class PreprocessingError(ValueError):
    """A mistake in a preprocessing function or in the data it was applied to; the message is complete."""


class Analyzer(Generic[State]):
    """An analyzer is a frozen dataclass with three methods; its fields are its parameters.

        @dataclass(frozen=True)
        class Longest(Analyzer[int]):
            def accumulate(self, *values: pl.Series) -> int:
                return values[0].str.len_chars().max() or 0

            def merge(self, states: Sequence[int]) -> int:
                return max(states)

            def finish(self, state: int) -> Plain:
                return state

        def preprocess(columns):
            return {"share": columns["name"].str.len_chars() / analyze(Longest(), columns["name"])}

    `merge` must give the same however the rows were cut into batches, up to the rounding of floats: states are merged
    by file, by span and over the window, always in the order of the rows. What `finish` returns, and a state unless
    `pack` and `unpack` are overridden, is plain: numbers, text, bytes, dates, and lists and dicts of them.
    """

    finishing: ClassVar[tuple[str, ...]] = ()
    """Parameters that only `finish` reads: when they change, the accumulated states are reused."""

    def accumulate(self, *values: pl.Series) -> State:
        """The state of one batch: a series for each expression that was passed to `analyze`, perhaps without rows."""
        raise NotImplementedError

    def merge(self, states: Sequence[State]) -> State:
        """The state of all rows, from those of their parts; there is at least one."""
        raise NotImplementedError

    def finish(self, state: State) -> Plain:
        """The value that was learned."""
        raise NotImplementedError

    def refusal(self, *types: pl.DataType) -> str | None:  # noqa: ARG002  for those that override it
        """Why expressions of these types cannot be analyzed; None if they can."""
        return None

    def pack(self, state: State) -> bytes:
        """The state as it is stored between runs: the same bytes for the same state."""
        return plain.dumps(cast("Plain", state)).encode()

    def unpack(self, raw: bytes) -> State:
        """The reverse of `pack`."""
        return cast("State", plain.loads(raw.decode()))

    @property
    def label(self) -> str:
        """Class and parameters; names the value of this analyzer in the graph on disk."""
        return self._label(())

    @property
    def state_label(self) -> str:
        """Class and those parameters on which a state depends."""
        return self._label(self.finishing)

    def _label(self, without: Sequence[str]) -> str:
        fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        parameters = [f"{f.name}={plain.dumps(getattr(self, f.name))}" for f in fields if f.name not in without]
        return ", ".join([type(self).__name__, *parameters])


class AccumulatorAnalyzer(Analyzer[Accumulated]):
    """An analyzer that is an accumulator of `components.statistics` and a `finish`.

    Accumulators are imported only where rows are analyzed: where a graph is applied, its values are all there is.
    """

    accumulator: ClassVar[str]  #: its name in `components.statistics.accumulators`

    def prepare(self, values: pl.Series) -> pl.Series:
        """The values as the accumulator takes them."""
        return values

    def accumulate(self, *values: pl.Series) -> Accumulated:
        return self._class().accumulate(self.prepare(values[0]).rechunk().to_arrow())

    def merge(self, states: Sequence[Accumulated]) -> Accumulated:
        return functools.reduce(lambda one, other: one.merge(other), states)

    def pack(self, state: Accumulated) -> bytes:
        from spanwise.components.statistics.accumulators import to_bytes

        return to_bytes(state)

    def unpack(self, raw: bytes) -> Accumulated:
        from spanwise.components.statistics.accumulators import from_bytes

        return from_bytes(self._class(), raw)

    def _class(self) -> type[Accumulated]:
        module = import_module("spanwise.components.statistics.accumulators")
        return cast("type[Accumulated]", getattr(module, self.accumulator))


def is_number(type_: pl.DataType) -> bool:
    """Whether values of this type are numbers; a bool is 0 or 1, and a column of nothing but nulls fits everywhere."""
    return type_.is_numeric() or type_ in (pl.Boolean, pl.Null)
