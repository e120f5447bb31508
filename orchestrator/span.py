"""Spans of input data: which ones a listing of files contains, and which one a run ingests. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from spanwise.orchestrator.calendar import Calendar, Version, format_labels
from spanwise.orchestrator.errors import AmbiguousSpan, PatternError, SpanNotFound
from spanwise.orchestrator.span_pattern import EXAMPLE_PATTERN, SpanPattern

Listing: TypeAlias = Callable[[str], Iterable[str]]
"""Returns the paths of the files, not folders, that a glob finds, spelled the way the glob spells them."""


@dataclass(frozen=True, kw_only=True)
class SpanFiles:
    """The files of one version of one span."""

    span: int
    version: Version  #: None when the pattern has none
    files: Mapping[str, tuple[str, ...]]  #: paths by split, sorted
    calendar: Calendar
    strays: tuple[str, ...]  #: listed paths that belong to no span: reported, not ingested


@dataclass(frozen=True, kw_only=True)
class SpanInventory:
    """Everything that a listing contains."""

    spans: Mapping[int, Mapping[Version, Mapping[str, tuple[str, ...]]]]  #: paths by span, version and split; ascending
    calendar: Calendar
    strays: tuple[str, ...]  #: listed paths that belong to no span, sorted


def list_spans(patterns: Mapping[str, SpanPattern], listing: Listing, span: int | None = None) -> SpanInventory:
    """The files of every span, or of the named one. `patterns` are by split.

    Raises:
        PatternError: the patterns of the splits have different kinds of placeholders.
    """
    calendar = _agreed_calendar(patterns)
    found = _inventory(patterns, calendar, {name: listing(pattern.glob(span)) for name, pattern in patterns.items()})
    if span is None:
        return found
    return replace(found, spans={s: versions for s, versions in found.spans.items() if s == span})


def choose(patterns: Mapping[str, SpanPattern], listing: Listing, span: int | None = None) -> SpanFiles:
    """The newest version of the named span, or of the newest span; newest is the highest number.

    An incomplete newest span is an error, never a reason to choose an older one: that would silently train on old data.
    A named span is listed by a narrow glob; the rest is listed only for the message that it is missing.

    Raises:
        PatternError: the splits have different placeholders, or a span is named and the pattern has none.
        SpanNotFound: there are no files, or not in every split.
        AmbiguousSpan: the splits differ in the newest span or version, or have a file in common, or one span has two
            spellings (`7`, `07`).
    """
    calendar = _agreed_calendar(patterns)
    if span is None:
        found = list_spans(patterns, listing)
        span = _newest_span(patterns, found)
    else:
        paths = {name: listing(pattern.glob(span)) for name, pattern in patterns.items()}
        found = _inventory(patterns, calendar, paths)
        _check_complete(patterns, found, span, lambda: list_spans(patterns, listing))
    version = _newest_version(found, span, lambda: list_spans(patterns, listing))
    files = found.spans[span][version]
    for name, pattern in patterns.items():
        _check_one_spelling(name, pattern, files[name], calendar.label(span))
    _check_apart(files)
    return SpanFiles(span=span, version=version, files=files, calendar=calendar, strays=found.strays)


def _agreed_calendar(patterns: Mapping[str, SpanPattern]) -> Calendar:
    if not patterns:
        raise PatternError(f"no input: name a pattern for at least one split, for example {EXAMPLE_PATTERN!r}")
    kinds = {(p.has_span, p.calendar, p.has_version) for p in patterns.values()}
    if len(kinds) > 1:
        shown = ", ".join(f"{name} {pattern.text!r}" for name, pattern in patterns.items())
        raise PatternError(
            f"the patterns of the splits must have the same kinds of placeholders; these differ: {shown}; "
            "for example train 'train/{SPAN}/*' with eval 'eval/{SPAN}/*'"
        )
    return next(iter(patterns.values())).calendar


def _inventory(
    patterns: Mapping[str, SpanPattern], calendar: Calendar, paths: Mapping[str, Iterable[str]]
) -> SpanInventory:
    spans: dict[int, dict[Version, dict[str, list[str]]]] = {}
    strays: set[str] = set()
    for name, pattern in patterns.items():
        for path in sorted(set(paths[name])):
            if (found := pattern.match(path)) is None:
                strays.add(path)
                continue
            span, version = found
            spans.setdefault(span, {}).setdefault(version, {}).setdefault(name, []).append(path)
    sorted_spans = {
        span: {
            version: {name: tuple(splits[name]) for name in patterns if name in splits}
            for version, splits in sorted(versions.items(), key=lambda item: (item[0] is not None, item[0]))
        }
        for span, versions in sorted(spans.items())
    }
    return SpanInventory(spans=sorted_spans, calendar=calendar, strays=tuple(sorted(strays)))


def _newest_span(patterns: Mapping[str, SpanPattern], found: SpanInventory) -> int:
    by_split = {
        name: [span for span, versions in found.spans.items() if any(name in splits for splits in versions.values())]
        for name in patterns
    }
    for name, spans in by_split.items():
        if not spans:
            raise _not_found(name, patterns[name], None, found)
    newest = {name: max(spans) for name, spans in by_split.items()}
    if len(set(newest.values())) > 1:
        raise _ambiguous("span", {name: found.calendar.label(span) for name, span in newest.items()}, found, patterns)
    return next(iter(newest.values()))


def _check_complete(
    patterns: Mapping[str, SpanPattern], found: SpanInventory, span: int, everything: Callable[[], SpanInventory]
) -> None:
    present = {name for splits in found.spans.get(span, {}).values() for name in splits}
    for name, pattern in patterns.items():
        if name not in present:
            raise _not_found(name, pattern, span, everything())


def _newest_version(found: SpanInventory, span: int, everything: Callable[[], SpanInventory]) -> Version:
    newest = _newest_versions(found.spans[span])
    if len(set(newest.values())) > 1:
        answers = {name: str(version) for name, version in newest.items()}
        raise _ambiguous(f"version of span {found.calendar.label(span)}", answers, everything(), newest)
    return next(iter(newest.values()))


def _newest_versions(versions: Mapping[Version, Mapping[str, object]]) -> dict[str, Version]:
    """The newest version by split; versions ascend, so the last one wins."""
    return {name: version for version, splits in versions.items() for name in splits}


def _check_one_spelling(name: str, pattern: SpanPattern, paths: Sequence[str], label: str) -> None:
    spellings = sorted({pattern.fill(path) for path in paths})
    if len(spellings) > 1:
        raise AmbiguousSpan(
            f"split {name!r}: the same version of span {label} is in several places: "
            f"{', '.join(map(repr, spellings))}; reading all could read the same rows twice. Move all but one away."
        )


def _check_apart(files: Mapping[str, Sequence[str]]) -> None:
    split_of: dict[str, str] = {}
    for name, paths in files.items():
        for path in paths:
            if (other := split_of.setdefault(path, name)) != name:
                raise AmbiguousSpan(
                    f"{path!r} matches the patterns of {other!r} and of {name!r}, so its rows would be in both splits, "
                    "and a model would be judged by what it has learned. Write patterns that have no file in common."
                )


def _ambiguous(what: str, answers: Mapping[str, str], found: SpanInventory, splits: Collection[str]) -> AmbiguousSpan:
    complete = [
        span
        for span, versions in found.spans.items()
        if len(newest := _newest_versions(versions)) == len(splits) and len(set(newest.values())) == 1
    ]
    shown = ", ".join(f"{name} has {answer}" for name, answer in answers.items())
    return AmbiguousSpan(
        f"the splits disagree on the newest {what}: {shown}. "
        + (
            f"Complete in all splits: {format_labels(complete, found.calendar)}. "
            f"Add the missing files, or name a complete span: --span {found.calendar.label(complete[-1])}"
            if complete
            else "No span is complete in all splits. Add the missing files."
        )
    )


def _not_found(name: str, pattern: SpanPattern, span: int | None, found: SpanInventory) -> SpanNotFound:
    calendar = found.calendar
    there = [s for s, versions in found.spans.items() if any(name in splits for splits in versions.values())]
    wanted = "no file" if span is None else f"no file of span {calendar.label(span)}"
    parts = [f"split {name!r}: {wanted} matches {pattern.text!r} (searched {pattern.glob(span)!r})."]
    if found.strays:
        count = len(found.strays)
        parts.append(
            f"{count} {'path was' if count == 1 else 'paths were'} ignored because no span can be read from it, "
            f"for example {found.strays[0]!r}."
        )
    if not there:
        parts.append("There are no spans at all; check the path, or wait until the data arrives.")
    else:
        parts.append(f"Available spans: {format_labels(there, calendar)}.")
        if span is not None:
            near = [calendar.label(s) for s in _nearest(there, span)]
            parts.append(f"Nearest: {', '.join(near)}. Wait for the data, or name an available one: --span {near[0]}")
    return SpanNotFound(" ".join(parts))


def _nearest(spans: Sequence[int], wanted: int) -> list[int]:
    before = max((span for span in spans if span < wanted), default=None)
    after = min((span for span in spans if span > wanted), default=None)
    return sorted(span for span in (before, after) if span is not None)
