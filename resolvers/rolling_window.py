"""Rolling windows: which spans a run trains on (law 5).

`RollingWindow` counts span numbers, so a gap shows. `LatestSpans` counts existing spans, whatever the gaps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

from spanwise.orchestrator import (
    Artifact,
    Calendar,
    Channel,
    History,
    Node,
    ParameterError,
    Resolver,
    UsageError,
    WindowIncomplete,
    Withheld,
)
from spanwise.orchestrator.gate import calendar_of, describe_accept, describe_taken_calendar
from spanwise.orchestrator.run import quote_pipeline
from spanwise.resolvers import spans
from spanwise.resolvers.exclusion import Exclusion

_MOST_LABELS = 5  # in a message


@dataclass(frozen=True, kw_only=True)
class WindowSpan:
    """One span that a window wants, and what was published for it."""

    span: int
    label: str
    chosen: Artifact | None  #: the newest version; None when there is none, or when it does not count
    withheld: Withheld | None = None  #: why the newest version does not count
    superseded: tuple[Artifact, ...] = ()  #: earlier versions, oldest first


class RollingWindow(Resolver):
    """The newest version of each of the `size` spans that end at the newest span.

    Spans that a gate refused, or has not judged, are missing. A backfill of an old span does not move the window (RFC,
    Version Handling): it ends at the highest span, or at the span `at`. It never reaches back before `since`, so the
    first days of a pipeline have shorter windows. Spans advance by `step`; up to `missing` of them may be absent and
    are then left out. With `skip`, the window ends that many spans before the newest, for data that is still settling.
    Those in `exclude` are left out by name: they are not gaps, and no older ones take their places.
    """

    def __init__(
        self,
        source: Channel,
        *,
        size: int,
        since: int | str | None = None,
        step: int = 1,
        missing: int = 0,
        skip: int = 0,
        at: int | str | None = None,
        exclude: Sequence[int | str] | None = None,
        name: str | None = None,
        after: Sequence[Node] = (),
    ) -> None:
        super().__init__(source, name=name, after=after, many=True)
        _refuse_below(self.name, "size", size, 1)
        _refuse_below(self.name, "step", step, 1)
        _refuse_below(self.name, "missing", missing, 0)
        _refuse_below(self.name, "skip", skip, 0)
        if skip and at is not None:
            raise ParameterError(f"{self.name} takes either at= or skip=; both say where the window ends.")
        self.calendar = calendar_of(source)
        self.size, self.step, self.missing, self.skip = size, step, missing, skip
        self.since = parse_parameter(source, since)
        self.at = parse_parameter(source, at)
        self.exclude = Exclusion.parse(self.calendar, exclude or (), self.name)
        self.parameters = {
            "size": size,
            "since": format_parameter(self.calendar, self.since),
            "step": step,
            "missing": missing,
            "skip": skip or None,
            "at": format_parameter(self.calendar, self.at),
            "exclude": self.exclude.labels() or None,
        }

    def resolve(self, history: History) -> Sequence[Artifact]:
        found = self.explain(history)
        self.refuse(history, found)
        return [s.chosen for s in found if s.chosen is not None]

    def refuse(self, history: History, found: Sequence[WindowSpan]) -> None:
        """Refuses a window with more gaps than `missing`.

        Raises:
            WindowIncomplete: the message names the gaps and the command that fills them.
        """
        absent = [s for s in found if s.chosen is None]
        if len(absent) > self.missing or len(absent) == len(found):
            raise WindowIncomplete(self._incomplete(history, found, absent))

    def explain(self, history: History, at: int | None = None) -> tuple[WindowSpan, ...]:
        """Every span that the window wants, oldest first, with what it reads and what that supersedes.

        `at` overrides where the window ends.

        Raises:
            WindowIncomplete: no span has been published.
        """
        end = self._end(history, at)
        if end is None:
            raise WindowIncomplete(
                f"{self.name} has nothing to choose from: no span of {self.source!r} was published"
                + (
                    f" by {history.as_of.astimezone():%Y-%m-%d %H:%M %Z}."
                    if history.as_of
                    else " yet; run its pipeline first."
                )
                + describe_calendar(history, self.source, self.calendar)
            )
        wanted = self._wanted(end)
        if not wanted:
            raise WindowIncomplete(self._before_history(end))
        exclusion = self.exclude.of_run(self.name, history.run.exclude)
        found = describe_spans(history, self.calendar, [span for span in wanted if span not in exclusion])
        if not found:
            raise WindowIncomplete(
                f"{self.name} has nothing to choose from: all spans from {self.calendar.label(wanted[0])} to "
                f"{self.calendar.label(end)} are excluded ({', '.join(exclusion.labels())})."
            )
        return found

    def explain_excluded(self, history: History, at: int | None = None) -> tuple[WindowSpan, ...]:
        """The spans that it would want, oldest first, if they were not left out by name."""
        end = self._end(history, at)
        exclusion = self.exclude.of_run(self.name, history.run.exclude)
        left_out = [] if end is None else [span for span in self._wanted(end) if span in exclusion]
        return describe_spans(history, self.calendar, left_out)

    def explain_awaited(self, history: History) -> tuple[WindowSpan, ...]:
        """The spans after its first one that a later window may read: newer than its end, or between its steps."""
        end = self._end(history, None)
        if end is None or self.at is not None or (self.skip == 0 and self.step == 1):
            return ()
        wanted = self._wanted(end)
        first = wanted[0] if wanted else self.since
        assert first is not None, "without since, it wants something"
        exclusion = self.exclude.of_run(self.name, history.run.exclude)
        there = list(itertools.takewhile(lambda span: span >= first, history.published_spans()))
        awaited = [span for span in reversed(there) if span not in wanted and span not in exclusion]
        return describe_spans(history, self.calendar, awaited)

    def _end(self, history: History, at: int | None) -> int | None:
        if at is not None or self.at is not None:
            return at if at is not None else self.at
        newest = history.newest_span()
        return None if newest is None else newest - self.skip * self.step

    def _wanted(self, end: int) -> Sequence[int]:
        """The spans up to its end; none where history begins after that."""
        if self.since is not None and end < self.since:
            return ()
        return spans.window((end,), self.size, end=end, since=self.since, step=self.step).wanted

    def _before_history(self, end: int) -> str:
        since = self.parameters["since"]
        why = f" because of skip={self.skip}" if self.skip else ""
        return (
            f"{self.name} has nothing to choose from: it ends at {self.calendar.label(end)}{why}, and history begins "
            f"at {since} (since={since!r})."
        )

    def _incomplete(self, history: History, found: Sequence[WindowSpan], absent: Sequence[WindowSpan]) -> str:
        source = quote_pipeline(history.run)
        after = next((s.label for s in found if s.span > absent[-1].span), None)
        only_first = absent[-1].span == found[len(absent) - 1].span  # none but the first ones are missing
        begins = f"If history begins at {after}, pass since={after!r}; if" if after and only_first else "If"
        first, last = found[0].label, found[-1].label
        which = f"the span {last}" if len(found) == 1 else f"the {len(found)} spans {first} to {last}"
        allowed = f" ({self.missing} may be)" if self.missing and len(absent) < len(found) else ""
        gaps = [_describe_gap(gap, source, history) for gap in absent[:_MOST_LABELS]]
        names = ", ".join(s.label for s in absent[:_MOST_LABELS])
        more = f" and {len(absent) - _MOST_LABELS} more" if len(absent) > _MOST_LABELS else ""
        ways = (
            f"\n{begins} gaps are expected, pass missing={len(absent)}."
            f"\nTo leave out a span by name, pass exclude=, or for one run:  --exclude {absent[0].label}"
        )
        return (
            f"{self.name} wants {which} of {self.source!r}, but {len(absent)} "
            f"{'is' if len(absent) == 1 else 'are'} missing{allowed}: {names}{more}.\n"
            + "\n".join(gaps)
            + ("" if len(absent) == len(found) else ways)  # no window is empty
            + describe_calendar(history, self.source, self.calendar)
        )


def describe_calendar(history: History, source: Channel, calendar: Calendar) -> str:
    """That spans were published by another calendar, which no window reads, or do not say by which; or else empty."""
    newest = next(history.published_spans(), None)
    unsaid = newest is not None and history.published(newest)[-1].properties.get("calendar") is None
    taken = describe_taken_calendar(source)
    other = history.other_calendar()
    lines = []
    if other is not None:
        now, then = (f"by the {c.value}" if c is not Calendar.NUMBER else "as numbers" for c in (calendar, other))
        when = "" if taken else " before"
        lines.append(
            f"Other spans of {source!r} were published {then}{when}, and are counted {now} here; a window never mixes "
            "calendars."
        )
    if taken and (other is not None or unsaid):
        lines.append(taken)
    return "".join(f"\n{line}" for line in lines)


def _describe_gap(gap: WindowSpan, source: str, history: History) -> str:
    """Why a span is missing, and what to type."""
    spans = history.name_spans(gap.span, gap.label)
    run = " ".join(["spanwise run", source, spans, *(f"--to {node}" for node in history.last_nodes)])
    if gap.withheld is None:
        verb = "Ingest and judge it" if history.gated else "Ingest it"
        return f"  {gap.label}: never ingested. {verb}:  {run}"
    named, joined = gap.withheld.named, gap.withheld.joined
    what = f"{gap.label} (of {named} {joined})" if joined else gap.label
    if gap.withheld.barren_run is not None:
        return f"  {what}: {gap.withheld}."
    if gap.withheld.unread_by:
        return f"  {what}: {gap.withheld}. Make it from that:  {run}"
    if gap.withheld.verdict is None:
        return f"  {what}: {gap.withheld}. Judge it:  {run}"
    if gap.withheld.through:
        return (
            f"  {what}: {gap.withheld}\n"
            f"    Make it again, without that:  {run}\n"
            f"    or accept {gap.withheld.through} as it is:  "
            f"{describe_accept(source, gap.withheld.through, node=named)}"
        )
    return (
        f"  {what}: {gap.withheld}\n"
        f"    Ingest a new version:  {run}\n"
        f"    or accept it as it is:  {describe_accept(source, joined or gap.label, node=named)}"
    )


class LatestSpans(Resolver):
    """The newest version of each of the `n` highest existing spans that count, whatever the gaps between them.

    With n=None it reads all of them; `skip` leaves out that many of the highest, `since` all before a span. Those in
    `exclude` are left out of these by name; no others take their places.
    """

    def __init__(
        self,
        source: Channel,
        *,
        n: int | None,
        skip: int = 0,
        since: int | str | None = None,
        exclude: Sequence[int | str] | None = None,
        name: str | None = None,
        after: Sequence[Node] = (),
    ) -> None:
        super().__init__(source, name=name, after=after, many=True)
        _refuse_below(self.name, "n", 1 if n is None else n, 1)
        _refuse_below(self.name, "skip", skip, 0)
        self.calendar = calendar_of(source)
        self.n, self.skip = n, skip
        self.since = parse_parameter(source, since)
        self.exclude = Exclusion.parse(self.calendar, exclude or (), self.name)
        self.parameters = {
            "n": n,
            "skip": skip or None,
            "since": format_parameter(self.calendar, self.since),
            "exclude": self.exclude.labels() or None,
        }

    def resolve(self, history: History) -> Sequence[Artifact]:
        found = self.explain(history)
        self.refuse(history, found)
        return [s.chosen for s in found if s.chosen is not None]

    def refuse(self, history: History, found: Sequence[WindowSpan]) -> None:
        """Refuses an empty choice.

        Raises:
            WindowIncomplete: no span exists, or none of those that do counts.
        """
        if found:
            return
        newest = next(history.published_spans(), None)
        if newest is None or not history.gated:
            raise WindowIncomplete(
                f"{self.name} found no span of {self.source!r}; run its pipeline first."
                + describe_calendar(history, self.source, self.calendar)
            )
        source = quote_pipeline(history.run)
        gap = describe_span(history, self.calendar, newest)
        raise WindowIncomplete(
            f"{self.name} found no accepted span of {self.source!r}. The newest that was published:\n"
            + _describe_gap(gap, source, history)
        )

    def explain(self, history: History, at: int | None = None) -> tuple[WindowSpan, ...]:
        """The spans that it reads, oldest first, with what each supersedes; `at` is the last one considered."""
        exclusion = self.exclude.of_run(self.name, history.run.exclude)
        there = self._highest(history, at)
        found = [span for span in there if span not in exclusion]
        if there and not found:
            raise WindowIncomplete(
                f"{self.name} has nothing to choose from: the latest {len(there)} spans are excluded "
                f"({', '.join(exclusion.labels())})."
            )
        return describe_spans(history, self.calendar, found[::-1])

    def explain_excluded(self, history: History, at: int | None = None) -> tuple[WindowSpan, ...]:
        """The spans that it would read, oldest first, if they were not left out by name."""
        exclusion = self.exclude.of_run(self.name, history.run.exclude)
        left_out = [span for span in reversed(self._highest(history, at)) if span in exclusion]
        return describe_spans(history, self.calendar, left_out)

    def explain_awaited(self, history: History) -> tuple[WindowSpan, ...]:
        """The highest spans, which it skips until newer ones have come."""
        exclusion = self.exclude.of_run(self.name, history.run.exclude)
        skipped = list(itertools.islice(self._since(history, None), self.skip))
        awaited = [span for span in reversed(skipped) if span not in exclusion]
        return describe_spans(history, self.calendar, awaited)

    def _highest(self, history: History, at: int | None) -> list[int]:
        first = self.skip if at is None else 0
        return list(itertools.islice(self._since(history, at), first, None if self.n is None else first + self.n))

    def _since(self, history: History, at: int | None) -> Iterator[int]:
        there = history.spans(below=None if at is None else at + 1)
        return itertools.takewhile(lambda span: self.since is None or span >= self.since, there)


def describe_spans(history: History, calendar: Calendar, spans: Sequence[int]) -> tuple[WindowSpan, ...]:
    """What was published for each of these spans, as `describe_span` says it."""
    history.read_ahead(spans)
    return tuple(describe_span(history, calendar, span) for span in spans)


def describe_span(history: History, calendar: Calendar, span: int) -> WindowSpan:
    """What was published for one span: the newest version, if gates accept it, and what it supersedes."""
    versions = history.published(span)
    newest = versions[-1] if versions else None
    withheld = history.withheld(span)
    return WindowSpan(
        span=span,
        label=calendar.label(span),
        chosen=newest if withheld is None else None,
        withheld=withheld,
        superseded=tuple(versions[:-1]),
    )


def format_parameter(calendar: Calendar, span: int | None) -> int | str | None:
    """A span as a pipeline's author writes it: its label, or a number where spans are numbers."""
    return span if span is None or calendar is Calendar.NUMBER else calendar.label(span)


def parse_parameter(source: Channel, value: int | str | None) -> int | None:
    """The span of a channel that a pipeline's author wrote as a number or as a label.

    Raises:
        UsageError: it is not a span as those of the channel are counted.
    """
    try:
        return calendar_of(source).parse(value) if isinstance(value, str) else value
    except UsageError as error:
        taken = describe_taken_calendar(source)
        raise UsageError(f"{error}\n{taken}" if taken else str(error)) from error


def _refuse_below(node: str, name: str, value: object, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ParameterError(f"{node}.{name} takes int, not {type(value).__name__} {value!r}.")
    if value < least:
        raise ParameterError(f"{node}.{name} is {value}; it must be at least {least}.")
