"""Slots: one element each on its way from the input, through the function that is called with it, to the consumer."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from spanwise.pipelines.input.op import Element, State


class AheadSlot:
    """One element on its way to the consumer."""

    __slots__ = ("at", "cpu_s", "element", "end", "error", "given", "origin", "paused", "ready", "stop", "took_s")

    def __init__(self, origin: Origin | None, at: int) -> None:
        self.origin = origin
        self.at = self.stop = at  # which rows or elements of the input it is made of, counted from the start
        self.element: Element = None
        self.error: BaseException | None = None
        self.end = False  # there is no more
        self.paused = False  # there is more, which the consumer is to take itself
        self.given = False
        self.took_s = self.cpu_s = 0.0
        self.ready = threading.Lock()
        self.ready.acquire()


@dataclass(frozen=True, eq=False)
class Origin:
    """A state of the input from which elements can be taken again."""

    state: State
    at: int  #: rows or elements before it, counted from the start
