"""Span operations: choose among published artifacts by span, version and time. Pure; a resolver combines a few of them.

    recent = latest_spans(published, 7, skip=1)
    wanted = at_least(exclude_spans(recent, holidays), 5)

The rules are those of TFX's resolver operations unless a docstring says otherwise. Results ascend by span, then
version, creation time and id. Empty input gives empty output; only `at_least`, `enough`, `sequential_windows` and
`window` raise ResolutionError, where TFX silently skips the rest of the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias, TypeVar

from spanwise.orchestrator.errors import ParameterError, ResolutionError


class HasCreationTime(Protocol):
    """Anything with a time of publication."""

    @property
    def id(self) -> int: ...
    @property
    def created(self) -> datetime | None: ...


class HasVersion(HasCreationTime, Protocol):
    """Anything with versions."""

    @property
    def version(self) -> int | None: ...


class HasSpan(HasVersion, Protocol):
    """Anything that belongs to one span: examples, their statistics, their transformed form."""

    @property
    def span(self) -> int: ...


D = TypeVar("D", bound=HasCreationTime)
V = TypeVar("V", bound=HasVersion)
S = TypeVar("S", bound=HasSpan)
T = TypeVar("T")

Order: TypeAlias = Callable[[S], tuple[float, ...]]
"""Orders the versions of a span: the greater tuple is newer."""


def by_version(artifact: HasVersion) -> tuple[float, ...]:
    """The higher version is newer; of equal versions the later published, then the higher id. No version is lowest."""
    known = artifact.version is not None
    return (known, artifact.version if artifact.version is not None else 0, *by_creation(artifact))


def by_creation(artifact: HasCreationTime) -> tuple[float, ...]:
    """The later published is newer; of equal times the higher id. No time is earliest."""
    created = artifact.created
    return (created is not None, created.timestamp() if created is not None else 0.0, artifact.id)


def all_spans(artifacts: Iterable[S], *, all_versions: bool = False, order: Order[S] = by_version) -> tuple[S, ...]:
    """The newest version of each span, or all versions of all of them (TFX: AllSpans)."""
    if not all_versions:
        return newest_per_span(artifacts, order=order)
    return tuple(sorted(artifacts, key=lambda artifact: (artifact.span, order(artifact))))


def newest_per_span(artifacts: Iterable[S], *, order: Order[S] = by_version) -> tuple[S, ...]:
    """The newest version of each span, so that no row is read twice."""
    ascending = sorted(artifacts, key=lambda artifact: (artifact.span, order(artifact)))
    return tuple({artifact.span: artifact for artifact in ascending}.values())


def latest_spans(
    artifacts: Iterable[S],
    n: int | None = 1,
    *,
    skip: int = 0,
    since: int | None = None,
    all_versions: bool = False,
    order: Order[S] = by_version,
) -> tuple[S, ...]:
    """The `n` highest spans that exist, whatever the gaps between them (TFX: LatestSpan).

    Args:
        artifacts: what was published.
        n: how many spans; None is all of them.
        skip: how many of the highest existing spans to leave out, for data that is still settling.
        since: ignore spans before this one.
        all_versions: keep every version of a span, not only the newest.
        order: which version of a span is the newest.
    """
    _not_negative("skip", skip)
    if n is not None:
        _positive("n", n)
    artifacts = [artifact for artifact in artifacts if since is None or artifact.span >= since]
    spans = sorted({artifact.span for artifact in artifacts})
    spans = spans[: len(spans) - skip] if skip < len(spans) else []
    wanted = set(spans if n is None else spans[-n:])
    return all_spans((a for a in artifacts if a.span in wanted), all_versions=all_versions, order=order)


def static_span_range(
    artifacts: Iterable[S], start: int | None = None, end: int | None = None, *, all_versions: bool = False
) -> tuple[S, ...]:
    """The spans from `start` to `end`, both included; None leaves that end open (TFX: StaticSpanRange).

    Of two artifacts with the same span and version the newer is kept, as everywhere here; TFX keeps the older.
    """
    inside = (
        artifact
        for artifact in artifacts
        if (start is None or artifact.span >= start) and (end is None or artifact.span <= end)
    )
    return all_spans(inside, all_versions=all_versions)


def consecutive_spans(
    artifacts: Iterable[S],
    first: int | None = None,
    *,
    skip: int = 0,
    exclude: Collection[int] = (),
    all_versions: bool = False,
) -> tuple[S, ...]:
    """The spans from `first` (by default the lowest) up to the first gap (TFX: ConsecutiveSpans).

    An excluded span at the start moves the start up; a later one ends the sequence like a gap.
    `skip` counts numbers, not existing spans: nothing above the highest span minus `skip` is chosen.
    """
    _not_negative("skip", skip)
    artifacts = list(artifacts)
    there = {artifact.span for artifact in artifacts}
    if not there:
        return ()
    start = min(there) if first is None else first
    excluded = set(exclude)
    while start in excluded:
        start += 1
    usable = there - excluded
    end = start
    while end in usable and end <= max(there) - skip:
        end += 1
    return all_spans((a for a in artifacts if start <= a.span < end), all_versions=all_versions)


def exclude_spans(artifacts: Iterable[S], spans: Collection[int]) -> tuple[S, ...]:
    """All but those spans, in their given order (TFX: ExcludeSpans)."""
    excluded = set(spans)
    return tuple(artifact for artifact in artifacts if artifact.span not in excluded)


def at_least(artifacts: Sequence[S], n: int) -> Sequence[S]:
    """The same artifacts, if they have at least `n` different spans (TFX: SkipIfLessThanNSpans).

    Raises:
        ResolutionError: they have fewer; the message names them.
    """
    spans = sorted({artifact.span for artifact in artifacts})
    if len(spans) < n:
        there = ", ".join(map(str, spans)) or "none"
        raise ResolutionError(f"{n} spans are needed, but {len(spans)} exist: {there}.")
    return artifacts


def enough(found: Sequence[T], n: int = 1) -> Sequence[T]:
    """The same items, if there are at least `n` (TFX: SkipIfEmpty, min_count).

    Raises:
        ResolutionError: there are fewer.
    """
    if len(found) < n:
        raise ResolutionError(f"{n} are needed, but {len(found)} exist.")
    return found


def latest_version(artifacts: Iterable[V], n: int = 1) -> tuple[V, ...]:
    """The `n` newest by span and version (TFX: LatestVersion); by version alone for kinds without spans.

    Two of one span may be among them; `latest_spans` returns one of each.
    """
    _positive("n", n)
    artifacts = list(artifacts)
    spans = {artifact.id: getattr(artifact, "span", None) for artifact in artifacts}
    if None in spans.values():
        return tuple(sorted(artifacts, key=by_version)[-n:])
    return tuple(sorted(artifacts, key=lambda artifact: (spans[artifact.id], by_version(artifact)))[-n:])


def latest_created(artifacts: Iterable[D], n: int = 1) -> tuple[D, ...]:
    """The `n` that were published last, ascending (TFX: LatestCreateTime)."""
    _positive("n", n)
    return tuple(sorted(artifacts, key=by_creation)[-n:])


def sliding_windows(found: Sequence[T], size: int = 1, *, stride: int = 1) -> tuple[tuple[T, ...], ...]:
    """Every full window of `size` neighbours, each `stride` after the one before (TFX: SlidingWindow).

    A tail that does not fill a window is left out.
    """
    _positive("size", size)
    _positive("stride", stride)
    return tuple(tuple(found[at : at + size]) for at in range(0, len(found) - size + 1, stride))


def sequential_windows(
    artifacts: Iterable[S],
    size: int,
    first: int | None = None,
    *,
    stride: int = 1,
    skip: int = 0,
    exclude: Collection[int] = (),
) -> tuple[tuple[S, ...], ...]:
    """Every full window of `size` consecutive spans, from `first` up to the first gap (TFX: sequential_rolling_range).

    Raises:
        ResolutionError: no window is full yet.
    """
    windows = sliding_windows(consecutive_spans(artifacts, first, skip=skip, exclude=exclude), size, stride=stride)
    if not windows:
        raise ResolutionError(f"no window of {size} consecutive spans is full yet.")
    return windows


def paired_spans(
    channels: Mapping[str, Iterable[S]], *, match_version: bool = True, all_versions: bool = False
) -> tuple[dict[str, S], ...]:
    """One artifact of each channel for every span that all channels have (TFX: PairedSpans).

    The newest version of a span in each channel must be equal: a channel that is ahead has no partner until the others
    follow. `all_versions` pairs older versions too; `match_version=False` pairs by span alone. A single channel has no
    pairs.
    """
    if all_versions and not match_version:
        raise ParameterError(
            "all_versions=True needs match_version=True: several versions of a span cannot be paired by span alone."
        )
    if len(channels) < 2:  # noqa: PLR2004  a pair
        return ()
    sides = {
        key: {(a.span, a.version if match_version else None): a for a in all_spans(found, all_versions=all_versions)}
        for key, found in channels.items()
    }
    first, *others = sides.values()
    return tuple({key: side[at] for key, side in sides.items()} for at in first if all(at in other for other in others))


def unnest(channels: Mapping[str, Sequence[T]], key: str) -> tuple[dict[str, tuple[T, ...]], ...]:
    """One set of inputs for each artifact of `key`, the other channels repeated (TFX: Unnest)."""
    if key not in channels:
        raise ParameterError(f"there is no channel {key!r}; known ones: {', '.join(channels) or 'none'}.")
    rest = {name: tuple(found) for name, found in channels.items()}
    return tuple({**rest, key: (artifact,)} for artifact in channels[key])


@dataclass(frozen=True)
class SpanWindow:
    """The spans that a rolling window wants, and which of them exist."""

    wanted: tuple[int, ...]  #: ascending
    present: tuple[int, ...]
    missing: tuple[int, ...]


def window(
    available: Iterable[int], size: int, *, end: int | None = None, since: int | None = None, step: int = 1
) -> SpanWindow:
    """The `size` spans that end at the newest one, or at `end`; each is `step` after the one before.

    This is the only definition of the rolling window. It counts numbers, so that a gap shows as missing instead of
    being filled by an older span. Spans before `since` are not wanted.

    Raises:
        ResolutionError: no span exists and no `end` is given, or `since` is after the end.
    """
    _positive("size", size)
    _positive("step", step)
    there = set(available)
    if end is None:
        if not there:
            raise ResolutionError("no span has been published yet, so there is no newest span for a window to end at.")
        end = max(there)
    first = end - (size - 1) * step
    if since is not None and first < since:
        first += -(-(since - first) // step) * step
    if first > end:
        raise ResolutionError(f"a window that ends at span {end} is empty, because history begins at span {since}.")
    wanted = tuple(range(first, end + 1, step))
    return SpanWindow(
        wanted=wanted,
        present=tuple(span for span in wanted if span in there),
        missing=tuple(span for span in wanted if span not in there),
    )


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ParameterError(f"{name} is {value}; it must be at least 1.")


def _not_negative(name: str, value: int) -> None:
    if value < 0:
        raise ParameterError(f"{name} is {value}; it must be at least 0.")
