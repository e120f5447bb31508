"""Lookahead: elements that are converted ahead of their use, and what counts as used meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from spanwise.pipelines.input.op import State


class Lookahead(Iterator[Any]):
    """One pass, `count` elements ahead. What was converted and not given yet counts neither as given nor as used.

    With `leaves_out` the element that was given last does not count either, if it was not the end.
    """

    def __init__(self, elements: Any, convert: Callable[[Any], Any], count: int, *, leaves_out: bool = False) -> None:
        self.elements = elements
        self._convert = convert
        self._count = count
        self._leaves_out = leaves_out
        self._ready: deque[tuple[State | None, Any]] = deque()  # the place before each element, and what it became
        self._last: State | None = None  # before the element that was given last
        self._failure: Exception | None = None
        self._failed: State | None = None  # the place before it, if it is no end

    def __next__(self) -> Any:
        self.elements.used = self._place()
        while len(self._ready) <= self._count and self._failure is None:
            before = self.elements.place() if self._count or self._leaves_out else None
            self.elements.used = self.elements.used or before
            try:
                self._ready.append((before, self._convert(next(self.elements))))
            except Exception as error:  # noqa: BLE001  also the end: it comes after what is ready
                self._failure = error
                self._failed = None if isinstance(error, StopIteration) else before
        if self._ready:
            self._last, element = self._ready.popleft()
            return element
        self._last = self._failed = self.elements.used = None
        failure, self._failure = self._failure, None
        assert failure is not None
        if isinstance(failure, StopIteration):
            next(self.elements)  # which has ended: now all of it was used
        raise failure

    def _place(self) -> State | None:
        """Before what does not count; None if all does that was taken."""
        if self._leaves_out and self._last is not None:
            return self._last
        return self._ready[0][0] if self._ready else self._failed

    def state(self) -> State:
        """The state of the pass, where its user stands."""
        state: State = self.elements.state(self._place())
        return state

    def restart(self, elements: Any) -> None:
        """Goes on with another pass."""
        self.elements.close()
        self._ready.clear()
        self._failure = self._failed = self._last = None
        self.elements = elements

    def close(self) -> None:
        """Ends the pass."""
        self.elements.used = self._place()
        self._ready.clear()
        self.elements.close()
