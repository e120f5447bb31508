"""The site: what the views of a server share: the client, the renderer, who is let in, and answers that are kept."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from spanwise.orchestrator.errors import SpanwiseError, UsageError
from spanwise.orchestrator.store import Store
from spanwise.scheduler.client import Client
from spanwise.scheduler.web.access import AccessPolicy, Visit, WebRole
from spanwise.scheduler.web.pages import Renderer

T = TypeVar("T")

log = logging.getLogger("spanwise.web")

MOST_KEPT = 5000
_LONGEST_NUMBER = 18  # digits


class Memo:
    """Answers that are kept for a while, the ones that were used last; threads may share it."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[float, object]] = OrderedDict()
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Forgets all answers."""
        with self._lock:
            self._kept.clear()

    def last(self, key: Hashable, default: T) -> T:
        """The answer of this key, however old; the default where there was none."""
        with self._lock:
            found = self._kept.get(key)
            return default if found is None else cast("T", found[1])

    def holds(self, key: Hashable) -> bool:
        """Whether there is an answer of this key that has not become old."""
        with self._lock:
            found = self._kept.get(key)
            return found is not None and time.monotonic() < found[0]

    def get(self, key: Hashable, make: Callable[[], T], *, for_s: float = float("inf")) -> T:
        """The answer of this key, made again when it is older."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None and time.monotonic() < found[0]:
                self._kept.move_to_end(key)
                return cast("T", found[1])
        made = make()
        with self._lock:
            self._kept[key] = (time.monotonic() + for_s, made)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made


@dataclass(frozen=True)
class WebSite:
    """One server."""

    client: Client
    policy: AccessPolicy
    renderer: Renderer = field(default_factory=Renderer)
    memo: Memo = field(default_factory=Memo)
    dispatcher: str = ""  #: the address of a data service; empty when none was given
    working: set[Hashable] = field(default_factory=set)  #: what is being done in the background

    def __post_init__(self) -> None:
        self.client.session.when_replaced.append(self.memo.clear)

    @property
    def store(self) -> Store:
        return self.client.session.store

    def begin_work(self, key: Hashable, work: Callable[[], None]) -> None:
        """Does something in the background, unless it is being done."""
        if key in self.working:
            return
        self.working.add(key)
        threading.Thread(target=self._work, args=(key, work), name=f"work {key}", daemon=True).start()

    def _work(self, key: Hashable, work: Callable[[], None]) -> None:
        try:
            work()
        except SpanwiseError as error:
            log.warning("background-work-failed", extra={"work": str(key), "reason": str(error)})
        finally:
            self.working.discard(key)

    @property
    def root(self) -> Path:
        return self.client.settings.root


@dataclass(frozen=True)
class Ask:
    """One request, as views see it."""

    path: Mapping[str, str] = field(default_factory=dict)  #: what the places of the route hold
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)  #: of a POST
    visit: Visit | None = None

    def number(self, name: str, default: int, *, least: int = 0, most: int = 10**18) -> int:
        """A whole number of the query, between two bounds; the default where there is none.

        Raises:
            UsageError: it is no number.
        """
        text = self.query.get(name, "").strip()
        if not text:
            return default
        if not text.removeprefix("-").isdecimal() or len(text) > _LONGEST_NUMBER:
            raise UsageError(f"{name}={text[:_LONGEST_NUMBER]} is not a whole number.")
        return min(max(int(text), least), most)

    @property
    def may_act(self) -> bool:
        return self.visit is not None and self.visit.role is WebRole.OPERATOR
