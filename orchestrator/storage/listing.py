"""Listings: the objects whose URLs match a pattern with `*`, `**`, `?` and `[...]`, as `glob` finds files."""

from __future__ import annotations

import re
from dataclasses import replace

from spanwise.orchestrator.span_pattern import SpanPattern
from spanwise.orchestrator.storage.bucket import open_bucket
from spanwise.orchestrator.storage.url import ObjectInfo, parse_url


def list_objects(pattern: str) -> dict[str, ObjectInfo]:
    """The objects that match, by URL.

    One listing of the folder before the first wildcard. As with `glob`, names that begin with a dot match only
    patterns that say so; what consoles create to show empty folders is left out.

    Raises:
        StorageError: the storage cannot be reached or refuses.
    """
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    url = parse_url(pattern)
    if fixed == pattern:
        found = open_bucket(url.home).head(url.key)
        return {} if found is None else {str(url): found}
    folder = replace(url, key=fixed.removeprefix(f"{url.home}/").rpartition("/")[0])
    matches = SpanPattern.parse(pattern)
    depth = len(folder.key) + 1 if folder.key else 0
    return {
        str(place): info
        for info in open_bucket(url.home).list(folder.key)
        if matches.match(str(place := replace(folder, key=info.key)))
        and (info.size_bytes or not info.key.endswith("/"))
        and not _is_hidden(info.key[depth:], pattern)
    }


def _is_hidden(rest: str, pattern: str) -> bool:
    return "/." not in pattern and any(part.startswith(".") for part in rest.split("/"))
