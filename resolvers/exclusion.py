"""Exclusions: spans that a window leaves out by name, whatever was published for them. Pure.

An excluded span is not wanted, so it is not a gap; nothing older takes its place, so the window keeps its ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spanwise.orchestrator import Calendar, ParameterError, UsageError


@dataclass(frozen=True)
class Exclusion:
    """Spans that are left out."""

    calendar: Calendar
    ranges: tuple[tuple[int, int], ...] = ()  #: first and last span of each

    @classmethod
    def parse(cls, calendar: Calendar, given: Iterable[int | str], node: str) -> Exclusion:
        """What a pipeline's author wrote: spans and ranges, such as `("2013-12-25", "2013-12-30..2014-01-02")`.

        Raises:
            ParameterError: one of them is not a span.
        """
        if isinstance(given, str):
            raise ParameterError(f"{node}.exclude is the text {given!r}; write a tuple of spans: exclude=({given!r},).")
        try:
            return cls(calendar, tuple((s, s) if isinstance(s, int) else calendar.parse_range(s) for s in given))
        except UsageError as error:
            raise ParameterError(f"{node}.exclude: {error}") from error

    def of_run(self, node: str, typed: Iterable[str]) -> Exclusion:
        """With the spans that a run leaves out besides: `2013-12-25` is for all nodes, `Recent=2013-12-25` for one."""
        mine = [text.rpartition("=") for text in typed]
        more = tuple(self.calendar.parse_range(label) for name, _, label in mine if name in ("", node))
        return Exclusion(self.calendar, (*self.ranges, *more))

    def __contains__(self, span: int) -> bool:
        return any(first <= span <= last for first, last in self.ranges)

    def labels(self) -> Sequence[str]:
        """The spans and ranges as people write them."""
        return [
            self.calendar.label(first) + (f"..{self.calendar.label(last)}" if last != first else "")
            for first, last in self.ranges
        ]
