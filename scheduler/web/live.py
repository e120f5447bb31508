"""Live pages: the part of a page that changes is made once for all who have it open, and sent when it differs.

A page is made again every half second at most, and never for more than a twentieth of the time: a page that takes
100 ms to make is made every two seconds. A page that is not whole yet is made again after a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from spanwise.orchestrator.errors import SpanwiseError
from spanwise.scheduler.web.routes import find_route, make_page
from spanwise.scheduler.web.site import Ask, WebSite

log = logging.getLogger("spanwise.web")

LEAST_S = 0.5
"""How often a page is made again at most."""

SHARE = 0.05
"""Of the time in which pages are made, for each page."""

MOST_STREAMS = 200
STREAM_S = 3600.0
"""How long a stream lasts; the browser then opens another."""

_BEAT_S = 15.0  # a comment is sent this often, so that a connection that is gone is noticed


@dataclass
class _Topic:
    """One page that is open, with all who read it."""

    page: str
    text: str = ""  #: as it was last sent
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    version: int = 0
    readers: int = 0
    task: asyncio.Task[None] | None = None


class LiveHub:
    """Follows the pages that are open."""

    def __init__(self, site: WebSite) -> None:
        self._site = site
        self._topics: dict[str, _Topic] = {}
        self._streams = 0
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether no more streams are opened."""
        return self._streams >= MOST_STREAMS

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        for topic in self._topics.values():
            if topic.task is not None:
                topic.task.cancel()

    async def follow(self, page: str) -> AsyncIterator[str]:
        """The events of one reader: the part that changes, each time that it has."""
        if find_route(urlsplit(page).path) is None:
            yield "event: over\ndata: \n\n"
            return
        topic = self._topics.setdefault(page, _Topic(page))
        topic.readers += 1
        self._streams += 1
        until = time.monotonic() + STREAM_S
        try:
            if topic.task is None:
                topic.task = asyncio.create_task(self._watch(topic))
            seen = 0
            yield ": hello\n\n"
            while time.monotonic() < until and not self._closed:
                if topic.version == seen:
                    async with topic.changed:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(topic.changed.wait(), _BEAT_S)
                if topic.version == seen:
                    yield ": beat\n\n"
                    continue
                seen = topic.version
                yield f"event: fragment\nid: {seen}\ndata: {json.dumps(topic.text)}\n\n"
        finally:
            topic.readers -= 1
            self._streams -= 1
            if not topic.readers:
                self._topics.pop(page, None)
                if topic.task is not None:
                    topic.task.cancel()

    async def _watch(self, topic: _Topic) -> None:
        digest = b""
        while True:
            began = time.monotonic()
            text, whole = await asyncio.to_thread(self._render, topic.page)
            took = time.monotonic() - began
            if text is not None and (now := hashlib.sha256(text.encode()).digest()) != digest:
                digest, topic.text = now, text
                topic.version += 1
                async with topic.changed:
                    topic.changed.notify_all()
            await asyncio.sleep(max(LEAST_S, took / SHARE - took) if whole else 2 * LEAST_S)

    def _render(self, page: str) -> tuple[str | None, bool]:
        """The part of a page that changes, None where it cannot be made now; and whether it is whole."""
        parts = urlsplit(page)
        found = find_route(parts.path)
        if found is None:
            return None, True
        route, places = found
        try:
            shown = make_page(self._site, route, Ask(places, dict(parse_qsl(parts.query))))
            return self._site.renderer.render_live(shown), shown.whole
        except SpanwiseError as error:
            log.warning("live-page-failed", extra={"page": page, "reason": str(error)})
            return None, True
        except Exception:
            log.exception("live-page-failed", extra={"page": page})
            return None, True
