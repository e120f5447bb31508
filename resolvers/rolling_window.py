"""Rolling windows: which spans a run learns from (law 5).

`RollingWindow` counts span numbers, so a gap shows. `LatestSpans` counts spans that exist, whatever lies between.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from spanwise.orchestrator import (
    Artifact,
    Calendar,
    Channel,
    History,
    Node,
    ParameterError,
    Resolver,
    WindowIncomplete,
    version_key,
)
from spanwise.orchestrator.run import as_typed
from spanwise.resolvers import spans

_NAMED = 5  # more missing spans than this are summed up in a message


@dataclass(frozen=True, kw_only=True)
class WindowSpan:
    """What a window says of one span that it wants."""

    span: int
    label: str
    chosen: Artifact | None  #: the newest version; None when nothing was published for the span
    superseded: tuple[Artifact, ...] = ()  #: what was published for it before, oldest first


class RollingWindow(Resolver):
    """The newest version of each of the `size` spans that end at the newest span.

    A backfilled old span does not move the window (RFC, Version Handling): it ends at the highest span there is, or
    at the span `at`. Before `since` there is no history, so the first days of a pipeline have shorter windows.
    Ids advance by `step`; up to `missing` spans may be absent, and then are left out.
    """

    def __init__(
        self,
        source: Channel,
        *,
        size: int,
        since: int | str | None = None,
        step: int = 1,
        missing: int = 0,
        at: int | str | None = None,
        name: str | None = None,
        after: Sequence[Node] = (),
    ) -> None:
        super().__init__(source, name=name, after=after, many=True)
        _refuse_below(self.name, "size", size, 1)
        _refuse_below(self.name, "step", step, 1)
        _refuse_below(self.name, "missing", missing, 0)
        self.calendar = calendar_of(source)
        self.size, self.step, self.missing = size, step, missing
        self.since = _span(self.calendar, since)
        self.at = _span(self.calendar, at)
        self.parameters = {
            "size": size,
            "since": written(self.calendar, self.since),
            "step": step,
            "missing": missing,
            "at": written(self.calendar, self.at),
        }

    def resolve(self, history: History) -> Sequence[Artifact]:
        found = self.explain(history)
        self.refuse(history, found)
        return [s.chosen for s in found if s.chosen is not None]

    def refuse(self, history: History, found: Sequence[WindowSpan]) -> None:
        """Refuses a window that lacks more than may be missing.

        Raises:
            WindowIncomplete: the message names what is missing and what mends it.
        """
        absent = [s for s in found if s.chosen is None]
        if len(absent) > self.missing or len(absent) == len(found):
            raise WindowIncomplete(self._incomplete(history, found, absent))

    def explain(self, history: History, at: int | None = None) -> tuple[WindowSpan, ...]:
        """Every span the window wants, oldest first, with what it would read and what that replaces.

        `at` has the window end there instead.

        Raises:
            WindowIncomplete: no span was published yet.
        """
        end = at if at is not None else self.at if self.at is not None else next(history.spans(), None)
        if end is None:
            raise WindowIncomplete(
                f"{self.name} has nothing to choose from: no span of {self.source!r} was published"
                + (
                    f" by {history.as_of.astimezone():%Y-%m-%d %H:%M %Z}."
                    if history.as_of
                    else " yet; run its pipeline first."
                )
            )
        wanted = spans.window((end,), self.size, end=end, since=self.since, step=self.step).wanted
        return tuple(explained(history, self.calendar, span) for span in wanted)

    def _incomplete(self, history: History, found: Sequence[WindowSpan], absent: Sequence[WindowSpan]) -> str:
        names = ", ".join(s.label for s in absent[:_NAMED])
        more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
        source = as_typed(history.run.source) or f"{history.run.pipeline}.py"
        first = next((s.label for s in found if s.chosen is not None), found[-1].label)
        allowed = f" ({self.missing} may be)" if self.missing else ""
        return (
            f"{self.name} wants the {len(found)} spans {found[0].label} to {found[-1].label} of {self.source!r}, and "
            f"{len(absent)} {'is' if len(absent) == 1 else 'are'} missing{allowed}: {names}{more}.\n"
            f"Ingest each:  spanwise run {source} --span {absent[0].label} --to {self.source.node}\n"
            f"If history begins at {first}, say so: since={first!r}; if gaps are to be expected: missing={len(absent)}."
        )


class LatestSpans(Resolver):
    """The newest version of each of the `n` highest spans that exist, whatever the gaps between them."""

    def __init__(self, source: Channel, *, n: int, name: str | None = None, after: Sequence[Node] = ()) -> None:
        super().__init__(source, name=name, after=after, many=True)
        _refuse_below(self.name, "n", n, 1)
        self.calendar = calendar_of(source)
        self.n = n
        self.parameters = {"n": n}

    def resolve(self, history: History) -> Sequence[Artifact]:
        found = self.explain(history)
        self.refuse(history, found)
        return [s.chosen for s in found if s.chosen is not None]

    def refuse(self, history: History, found: Sequence[WindowSpan]) -> None:  # noqa: ARG002  as RollingWindow
        """Refuses to read nothing.

        Raises:
            WindowIncomplete: no span is there.
        """
        if not found:
            raise WindowIncomplete(f"{self.name} found no span of {self.source!r}; run its pipeline first.")

    def explain(self, history: History, at: int | None = None) -> tuple[WindowSpan, ...]:
        """The spans it reads, oldest first, with what each replaces; `at` has them end there."""
        below = None if at is None else at + 1
        found = list(itertools.islice(history.spans(below=below), self.n))
        return tuple(explained(history, self.calendar, span) for span in reversed(found))


def explained(history: History, calendar: Calendar, span: int) -> WindowSpan:
    """What was published for one span: the newest version, and what it supersedes."""
    editions = sorted(history.of_span(span), key=version_key)
    chosen = editions.pop() if editions else None
    return WindowSpan(span=span, label=calendar.label(span), chosen=chosen, superseded=tuple(editions))


def calendar_of(source: Channel) -> Calendar:
    """How the spans of a channel are shown: as its producer says, or as numbers."""
    calendar = getattr(source.producer, "calendar", Calendar.NUMBER)
    assert isinstance(calendar, Calendar)
    return calendar


def written(calendar: Calendar, span: int | None) -> int | str | None:
    """A span as its author would write it: a date, or a number where spans are numbers."""
    return span if span is None or calendar is Calendar.NUMBER else calendar.label(span)


def _span(calendar: Calendar, given: int | str | None) -> int | None:
    return calendar.parse(given) if isinstance(given, str) else given


def _refuse_below(node: str, name: str, value: int, least: int) -> None:
    if value < least:
        raise ParameterError(f"{node}.{name} is {value}; it is {least} or more.")
