"""Listings: the objects whose URLs match a pattern with `*`, `**`, `?` and `[...]`, as `glob` finds files."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.errors import PatternError, StorageError
from spanwise.orchestrator.span_pattern import Placeholder, SpanPattern, Wildcard
from spanwise.orchestrator.storage.bucket import StorageBucket, open_bucket
from spanwise.orchestrator.storage.side_by_side import call_side_by_side
from spanwise.orchestrator.storage.url import WEB, ObjectInfo, parse_url


def list_objects(pattern: str) -> dict[str, ObjectInfo]:
    """The objects that match, by URL.

    One listing of the folder before the first wildcard. As with `glob`, names that begin with a dot match only
    patterns that begin with one; what consoles create to show empty folders is left out. A pattern without wildcards
    is the URL that is given back, however it is written.

    Raises:
        StorageError: the storage cannot be reached or refuses.
    """
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    url = parse_url(pattern)
    if fixed == pattern:
        found = open_bucket(url.home).head(url.key)
        return {} if found is None else {pattern: found}
    if url.scheme in WEB:
        raise StorageError(
            f"{pattern}: a web server's files cannot be listed. Name them without wildcards; of a pattern with spans, "
            f"name a span whose files are there: --span"
        )
    folder = replace(url, key=fixed.removeprefix(f"{url.home}/").rpartition("/")[0])
    depth = len(folder.key) + 1 if folder.key else 0
    wanted = pattern.removeprefix(f"{folder}/").split("/")
    bucket = open_bucket(url.home)
    matching = [info for info in bucket.list(folder.key) if _matches(info.key[depth:].split("/"), wanted)]
    return {str(replace(folder, key=info.key)): info for info in leave_out_markers(bucket, matching)}


def leave_out_markers(bucket: StorageBucket, found: Sequence[ObjectInfo]) -> Sequence[ObjectInfo]:
    """All but the empty objects that consoles create to show folders.

    Their keys end with a slash, which the library does not show: there is nothing at the key without it.
    """
    if all(info.size_bytes for info in found):
        return found
    folders = {parent for info in found for parent in map(str, PurePosixPath(info.key).parents)}
    empty = [info.key for info in found if not info.size_bytes and info.key not in folders]
    there = call_side_by_side(bucket.head, empty)
    real = {key for key, head in zip(empty, there, strict=True) if head is not None}
    return [info for info in found if info.size_bytes or info.key in real]


def find_newest_span(
    pattern: SpanPattern, listing: Callable[[str], Iterable[str]] = list_objects, most_empty: int = 20
) -> int | None:
    """The highest span that has objects, by the names of the folders of spans, without listing what is in all of them.

    One request for a thousand folders, and `listing` of the highest; where the names sort as the spans do, only the
    highest names are parsed, which takes longer than the requests.

    None where that is unknown: spans are not the names of folders of one folder, or only few of the highest have
    been looked into, and none has any.
    """
    segments = pattern.text.split("/")
    dynamic = next((n for n, text in enumerate(segments) if re.search(r"[*?\[{]", text)), len(segments))
    if dynamic >= len(segments) - 1:  # the files themselves carry the span
        return None
    try:
        names = SpanPattern.parse(segments[dynamic])
    except PatternError:
        return None
    if not names.has_span or names.calendar is not pattern.calendar:
        return None
    url = parse_url("/".join(segments[:dynamic]))
    for span in itertools.islice(_highest(names, open_bucket(url.home).list_folder(url.key)[0]), most_empty):
        here = (pattern.match(place) for place in listing(pattern.glob(span)))
        if any(each is not None and each[0] == span for each in here):
            return span
    return None


def _highest(names: SpanPattern, folders: Iterable[str]) -> Iterator[int]:
    """The spans in the names of folders, highest first."""
    if not _sorts_as_spans(names):
        spans = {found[0] for name in folders if (found := names.match(name)) is not None}
        yield from sorted(spans, reverse=True)
        return
    below: list[int] = []
    for name in sorted(folders, reverse=True):
        found = names.match(name)
        if found is None:
            continue
        if found[0] < 0:
            below.append(found[0])  # their signs turn the order of their digits around
        else:
            yield found[0]
    yield from sorted(below, reverse=True)


def _sorts_as_spans(names: SpanPattern) -> bool:
    """Whether texts of the pattern sort as their spans: numbers of one width, the most significant first."""
    holes = [part for part in names.parts if isinstance(part, Placeholder)]
    if any(isinstance(part, Wildcard) for part in names.parts):
        return False
    if names.calendar is Calendar.NUMBER:
        return len(holes) == 1 and holes[0].width is not None
    return tuple(part.name for part in holes) == tuple(names.calendar.date_parts)


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether each name matches its pattern; one with a dot in front only a pattern that has one too."""
    if not names or not patterns:
        return not names and all(pattern == "**" for pattern in patterns)
    if patterns[0] == "**":
        return _matches(names, patterns[1:]) or (not names[0].startswith(".") and _matches(names[1:], patterns))
    allowed = patterns[0].startswith(".") or not names[0].startswith(".")
    return allowed and fnmatch.fnmatchcase(names[0], patterns[0]) and _matches(names[1:], patterns[1:])
