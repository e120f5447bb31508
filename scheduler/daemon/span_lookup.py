"""Span look-ups: the spans of ticks whose rule only the pipeline file has, asked in a child process ahead of time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from spanwise.orchestrator.errors import SpanwiseError
from spanwise.scheduler.daemon.description import DescriptionRequest, ScheduleDescription
from spanwise.scheduler.schedule.span_rule import CustomSpanRule
from spanwise.scheduler.schedule.ticks import Tick, ticks

AHEAD = 8
"""How many ticks' spans are asked for at once."""

_SECOND = timedelta(seconds=1)


class SpanLookup:
    """The spans of one schedule's ticks, as far as its file has said them."""

    def __init__(self, config: Path | None) -> None:
        self.trouble = ""  #: why some could not be computed
        self._config = config
        self._spans: dict[datetime, int] = {}
        self._by_node: dict[datetime, Mapping[str, int]] = {}  # of the same moments
        self._refused: set[datetime] = set()  # moments of due ticks for which the rule gave nothing
        self._refused_ahead: set[datetime] = set()  # of ticks that come: asked again once they are due
        self._request: DescriptionRequest | None = None
        self._asked: list[datetime] = []
        self._asked_ahead: list[datetime] = []

    @property
    def is_asking(self) -> bool:
        """Whether an answer is to come."""
        return self._request is not None

    def clear(self) -> None:
        """Forgets all spans, and what is being asked: the file was loaded again, and its rule may be another."""
        self._spans.clear()
        self._by_node.clear()
        self._refused.clear()
        self._refused_ahead.clear()
        if self._request is not None:
            self._request.end()
            self._request = None

    def fill(self, tick: Tick, description: ScheduleDescription) -> Tick:
        """The tick with its span, and that of each node, if they are known."""
        if not _is_custom(description) or tick.at not in self._spans:
            return tick
        return replace(tick, span=self._spans[tick.at], by_node=self._by_node[tick.at])

    def missing(self, tick: Tick, description: ScheduleDescription) -> str:
        """Why a span of a tick is missing, if its schedule has a rule that only the file knows; empty when none is."""
        if not _is_custom(description) or tick.at in self._spans:
            return ""
        return self.trouble or description.trouble or "the span rule gave none"

    def ask(
        self, wanted: Sequence[Tick], following: Tick | None, description: ScheduleDescription, since: datetime
    ) -> bool:
        """Whether all spans are known that can be; asks for the others, and for some that come. `since` is taken."""
        if not _is_custom(description):
            return True
        self._collect(description, since)
        if self._request is not None:
            return all(tick.at in self._spans for tick in wanted)
        self._asked = [tick.at for tick in wanted if not self._is_settled(tick)]
        self._asked_ahead = []
        if following is not None and not (self._is_settled(following) or following.at in self._refused_ahead):
            ahead = ticks(description.timetable, following.at - _SECOND)
            self._asked_ahead = [tick.at for tick in itertools.islice(ahead, AHEAD)]
        if unknown := [*self._asked, *self._asked_ahead]:
            self._request = DescriptionRequest(description.source, self._config, unknown)
        return all(self._is_settled(tick) for tick in wanted)

    def _is_settled(self, tick: Tick) -> bool:
        return tick.at in self._spans or tick.at in self._refused

    def _collect(self, description: ScheduleDescription, since: datetime) -> None:
        if self._request is None:
            return
        answer: list[ScheduleDescription] | None = []
        trouble = "its file no longer has a schedule of it"
        try:
            answer = self._request.answer()
        except SpanwiseError as error:
            trouble = str(error)
        if answer is None:
            return
        mine = next((each for each in answer if each.pipeline == description.pipeline), None)
        if mine is not None:
            self._spans = {at: span for at, span in {**self._spans, **mine.spans}.items() if at > since}
            each = {**self._by_node, **mine.by_node}
            self._by_node = {at: each.get(at, {}) for at in self._spans}
            trouble = mine.trouble
        self.trouble = trouble
        self._refused = {at for at in self._asked if at not in self._spans}
        self._refused_ahead = {at for at in self._asked_ahead if at not in self._spans}
        self._request = None


def _is_custom(description: ScheduleDescription) -> bool:
    rules = [description.timetable.span, *(each.rule for each in description.timetable.sources)]
    return any(isinstance(rule, CustomSpanRule) for rule in rules)
