"""Elements of several datasets, each taken from the one whose number another dataset gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spanwise.orchestrator.errors import DatasetError
from spanwise.pipelines.input.element import Spec, merge_specs
from spanwise.pipelines.input.op import Element, Op, Opening, State, Stream
from spanwise.pipelines.input.ops.concatenate import check_same_kind
from spanwise.pipelines.input.ops.sample import gather_rows
from spanwise.pipelines.input.rows import RowCursor, in_rows, open_elements, open_parts
from spanwise.pipelines.input.selection import check_selectable

_CHOICES = 4096  # read at a time for rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Choose(Op):
    choice: Op
    parts: tuple[Op, ...]
    stop_on_empty: bool = True  #: whether to end when a dataset is chosen that has ended

    def __post_init__(self) -> None:
        op = "choose_from_datasets"
        check_same_kind(op, self.parts)
        check_selectable(op, self.parts[0].spec)

    @property
    def needs_all(self) -> str:
        return "choose_from_datasets pairs choices with elements of the whole datasets"

    @property
    def spec(self) -> Spec:
        return self.parts[0].spec if in_rows(self.parts[0]) else merge_specs(part.spec for part in self.parts)

    @property
    def cardinality(self) -> None:
        return None

    def open(self, opening: Opening) -> Stream:
        kind = RowChooseStream if in_rows(self) else ChooseStream
        choices = open_elements(opening, self.choice)
        return kind(self, choices, open_parts(opening, "choose_from_datasets", self.parts))


class ChooseStream(Stream):
    def __init__(self, op: Choose, choices: Stream, sources: list[Stream]) -> None:
        self._op = op
        self._choices = choices
        self._sources = sources
        self._ended = [False] * len(sources)

    def _choose(self) -> int:
        choice: Any = next(self._choices)
        try:
            number = int(choice)
        except (TypeError, ValueError):
            number = -1
        if number != choice or not 0 <= number < len(self._sources):
            raise DatasetError(
                f"choose_from_datasets: the choice {choice!r:.80} is not the number of one of the "
                f"{len(self._sources)} datasets, of which the first is 0."
            )
        return number

    def __next__(self) -> Element:
        while not all(self._ended):
            chosen = self._choose()
            if self._ended[chosen]:
                continue
            try:
                return next(self._sources[chosen])
            except StopIteration:
                self._ended[chosen] = True
                if self._op.stop_on_empty:
                    self._ended = [True] * len(self._ended)
        raise StopIteration

    def _places(self) -> list[State]:
        return [source.state() for source in self._sources]

    def state(self) -> State:
        return {"choice": self._choices.state(), "inputs": self._places(), "ended": list(self._ended)}

    def restore(self, state: State) -> None:
        self._choices.restore(state["choice"])
        for source, its in zip(self._restorable(), state["inputs"], strict=True):
            source.restore(its)
        self._ended = list(state["ended"])

    def _restorable(self) -> list[Any]:
        return list(self._sources)

    def close(self) -> None:
        for source in (self._choices, *self._sources):
            source.close()


class RowChooseStream(ChooseStream):
    """Takes the rows for many choices at once, and puts them in the order of the choices."""

    def __init__(self, op: Choose, choices: Stream, sources: list[Stream]) -> None:
        super().__init__(op, choices, sources)
        self._rows = [RowCursor(source) for source in sources]
        self._failure: Exception | None = None  # raised after the rows of the choices before it
        self._before: State = {}  # of the choices, before these
        self._chosen = 0  # how many they are

    def __next__(self) -> Element:
        import numpy as np

        while not all(self._ended):
            chosen = self._read_choices()
            block, self._ended = gather_rows(
                np.array(chosen), self._rows, self._ended, stop_on_empty=self._op.stop_on_empty
            )
            if block is not None:
                return block
        raise StopIteration

    def _read_choices(self) -> list[int]:
        """Some choices. One that fails ends them, and is raised in its turn."""
        if self._failure is not None:
            failure, self._failure, self._chosen = self._failure, None, 0
            raise failure
        before = self._choices.state()
        chosen: list[int] = []
        while len(chosen) < _CHOICES:
            try:
                chosen.append(self._choose())
            except StopIteration:
                if not chosen:
                    raise
                break
            except Exception as error:
                if not chosen:
                    raise
                self._failure, self._before, self._chosen = error, before, len(chosen)
                break
        return chosen

    def state(self) -> State:
        # an error that is due comes again only behind the choices before it
        choice = self._before if self._chosen else self._choices.state()
        return {**super().state(), "choice": choice, "chosen": self._chosen}

    def restore(self, state: State) -> None:
        super().restore(state)
        for _ in range(state["chosen"]):
            next(self._choices)

    def _places(self) -> list[State]:
        return [rows.state() for rows in self._rows]

    def _restorable(self) -> list[Any]:
        return list(self._rows)
