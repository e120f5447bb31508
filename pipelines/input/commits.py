"""Commits: which elements of a pass count as used, for sources that others take over when their consumer dies.

A source's place travels in the state of the pass, through every op behind it: what a shuffle or a batch still holds is
not before that place. So the state and what is committed are one thing. A pass commits by itself what its consumer has
asked to go beyond, until the consumer takes its state: from then on only what it commits counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from spanwise.pipelines.input.op import State

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
        self._begun: dict[str, int] = {}  # by epoch
        self._next_s = 0.0

    def name(self, epoch: str) -> str:
        """A name for the next stream of an epoch; the same in a pass that was restored before it began."""
        number = self._begun.get(epoch, 0)
        self._begun[epoch] = number + 1
        return f"{epoch}/{number}"

    def stored(self, name: str) -> State | None:
        """What a stored state says of a stream."""
        return self._restored.get(name)

    def register(self, name: str, stream: CommittingStream) -> None:
        """A stream begins."""
        epoch, _, number = name.rpartition("/")
        self._begun[epoch] = max(self._begun.get(epoch, 0), int(number) + 1)
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
        used = self._used(place)
        found = {name: stream.describe() for name, stream in streams.items() if name not in used}
        return {**self._restored, **found}

    def commit(self, place: State, described: Mapping[str, State] | None = None, *, wait: bool = True) -> None:
        """All before a place was used; of streams that its state has described, nothing else."""
        for name in self._used(place):
            if name not in (described or {}):
                self._streams[name].commit(None, wait=wait)
        for name, each in _places(place["stream"]).items():
            if name in self._streams:
                self._streams[name].commit(each, wait=wait)

    def _used(self, place: State) -> list[str]:
        """The streams that are over, and that no op refers to: they began before all to which one does."""
        begun, places = place.get("begun", self._streams), _places(place["stream"])
        names = [name for name in self._streams if name in begun]
        first = min((names.index(name) for name in places if name in names), default=len(names))
        return [name for name in names[:first] if self._streams[name].is_over]

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


def _places(state: State) -> dict[str, State]:
    """The states of committing streams in the state of a pass; of one that occurs twice, the earlier."""
    found: dict[str, State] = {}
    for each in _walk(state):
        name = each[KEY]
        if name not in found or (each["at"], each["given"]) < (found[name]["at"], found[name]["given"]):
            found[name] = each
    return found


def _walk(value: Any) -> Iterator[State]:
    if isinstance(value, dict):
        if KEY in value:
            yield value
        for each in value.values():
            yield from _walk(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _walk(each)
