"""Commits: which elements of a pass count as used, for sources that others take over when their consumer dies.

A source's place travels in the state of the pass, through every op behind it: what a shuffle or a batch still holds is
not before that place. So the state and what is committed are one thing. A pass commits by itself what its consumer has
asked to go beyond, until the consumer takes its state: from then on only what it commits counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from spanwise.pipelines.input.op import UNOPENED, State

KEY: Final = "commits"
"""In the state of a stream: under which name it is registered here."""

_SHARE: Final = 0.02
"""At most this share of the time of a pass goes into commits."""


class CommittingStream(Protocol):
    """A stream over a source whose elements are committed."""

    is_over: bool  #: whether it has yielded all its elements

    def describe(self) -> State:
        """What a restored pass needs to come to the same elements again."""

    def commit(self, state: State | None, *, wait: bool) -> None:
        """All before the place in its state was used; None for all that it has yielded."""

    def keep_state(self) -> None:
        """From now on the consumer stores its state."""

    def leave(self) -> None:
        """The pass is closed."""


class PassCommits:
    """The committing streams of one pass, in the order in which they began."""

    def __init__(self, restored: Mapping[str, State] | None = None) -> None:
        self._streams: dict[str, CommittingStream] = {}
        self._restored = dict(restored or {})
        self._is_kept = bool(restored)
        self._next_s = 0.0

    def stored(self, name: str) -> State | None:
        """What a stored state says of a stream."""
        return self._restored.get(name)

    def register(self, name: str, stream: CommittingStream) -> None:
        """A stream begins."""
        if self._is_kept:
            stream.keep_state()
        self._streams[name] = stream
        self._restored.pop(name, None)

    @property
    def begun(self) -> list[str]:
        """The names of the streams that have begun; a place has them, since those that begin behind it are not used."""
        return list(self._streams)

    def describe(self, place: State) -> dict[str, State]:
        """What a state needs beside the place; from now on only `commit` commits."""
        self._is_kept = True
        streams = dict(self._streams)
        for stream in streams.values():
            stream.keep_state()
        used = {name for name, reached in self._reached(place).items() if reached is None}
        found = {name: stream.describe() for name, stream in streams.items() if name not in used}
        return {**self._restored, **found}

    def commit(self, place: State, described: Mapping[str, State] | None = None, *, wait: bool = True) -> None:
        """All before a place was used; of streams that its state has described, nothing else."""
        for name, reached in self._reached(place).items():
            if reached is not None or name not in (described or {}):
                self._streams[name].commit(reached, wait=wait)

    def _reached(self, place: State) -> dict[str, State | None]:
        """How far streams were used at a place; None for one that is over, and of which no op needs anything more."""
        begun = place.get("begun", self._streams)
        places: dict[str, State] = {}
        unopened: list[list[int]] = []
        for each in _walk(place["stream"]):
            if UNOPENED in each:
                unopened.append(each[UNOPENED])
            if (name := each.get(KEY)) is not None and _lies_before(each, places.get(name)):
                places[name] = each
        reached: dict[str, State | None] = {}
        for name, stream in dict(self._streams).items():
            if any(_is_among(name, first) for first in unopened):
                continue  # an op still needs what is before its beginning
            if name in places:
                reached[name] = places[name]
            elif stream.is_over and name in begun:
                reached[name] = None
        return reached

    def pass_by(self, place: Callable[[], State], *, is_over: bool = False) -> None:
        """The consumer asks for the next element, or has learned that there is none."""
        now = time.monotonic()
        if self._is_kept or not self._streams or (now < self._next_s and not is_over):
            return
        self.commit(place(), wait=False)
        after = time.monotonic()
        self._next_s = after + (after - now) / _SHARE

    def close(self) -> None:
        for stream in self._streams.values():
            stream.leave()


def stream_name(path: Sequence[int]) -> str:
    """The name of a committing stream."""
    return ".".join(map(str, path))


def _is_among(name: str, first: Sequence[int]) -> bool:
    """Whether a stream is in a series, in the dataset that has this number or in one behind it."""
    *series, number = first
    path = [int(part) for part in name.split(".")]
    return path[: len(series)] == series and path[len(series)] >= number


def _lies_before(state: State, other: State | None) -> bool:
    return other is None or (state["at"], state["given"]) < (other["at"], other["given"])


def _walk(value: Any) -> Iterator[State]:
    """The states that say where committing streams stand, or what was not opened yet."""
    if isinstance(value, dict):
        if KEY in value or UNOPENED in value:
            yield value
        for each in value.values():
            yield from _walk(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _walk(each)
