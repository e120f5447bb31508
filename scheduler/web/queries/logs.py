"""Logs of nodes: their ends, and the lines that hold a text, in bounded parts of files of any size."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.run import Execution
from spanwise.scheduler.formatting import strip_control
from spanwise.scheduler.web.queries.runs import number_of_run
from spanwise.scheduler.web.site import Ask, WebSite

LOG_BYTES = 64 * 1024
"""How much of the end of a log a page shows; the rest is downloaded."""

_SEARCHED_BYTES = 64 * 1024 * 1024  # of the end of a log
_MOST_HITS = 500
_LONGEST_LINE = 2000


@dataclass(frozen=True, kw_only=True)
class LogView:
    """The end of a log, or the lines of it in which something was found."""

    text: str
    size_bytes: int
    cut: bool  #: there is more before it
    hits: int | None = None
    gone: bool = False


def list_attempts(site: WebSite, ask: Ask) -> list[Execution]:
    """The attempts at a node that have a log."""
    run = site.client.pipeline(ask.path["pipeline"]).run(number_of_run(ask.path["number"], ask.path["pipeline"])).run
    return [e for e in site.store.executions(run) if e.node == ask.path["node"] and e.log]


def find_log(site: WebSite, ask: Ask) -> tuple[Execution, LogView]:
    """The log of the attempt that is asked for, by default of the last.

    Raises:
        NotRecorded: there is no such run, or the node was not executed.
    """
    found = list_attempts(site, ask)
    attempt = ask.number("attempt", found[-1].attempt if found else 1)
    execution = next((e for e in found if e.attempt == attempt), None)
    if execution is None:
        name = f"{ask.path['pipeline']}/{ask.path['number']}"
        raise NotRecorded(f"{ask.path['node']} of {name} has no log; it was not executed. See:  spanwise show {name}")
    return execution, read_log(open_log(site, execution.log), ask.query.get("q", "")[:200])


def open_log(site: WebSite, file: str) -> BinaryIO | None:
    """A log on this machine, or from object storage where the root is there; None when it is gone."""
    try:
        return Path(file).open("rb")
    except OSError:
        archive = site.store.archive
    return None if archive is None else archive.open_log(file)


def read_log(opened: BinaryIO | None, text: str = "") -> LogView:
    """The last lines of a log; with `text`, the last lines that hold it. Reads a bounded part of a file of any size."""
    if opened is None:
        return LogView(text="", size_bytes=0, cut=False, gone=True)
    with opened:
        size = opened.seek(0, os.SEEK_END)
        start = max(0, size - (_SEARCHED_BYTES if text else LOG_BYTES))
        opened.seek(start)
        if not text:
            body = opened.read(LOG_BYTES).decode("utf-8", "replace")
            lines = body.split("\n")[1:] if start else body.split("\n")
            return LogView(text=strip_control("\n".join(lines)), size_bytes=size, cut=start > 0)
        wanted = text.encode().lower()
        hits = [line for line in opened if wanted in line.lower()]
        shown = b"".join(line[:_LONGEST_LINE] for line in hits[-_MOST_HITS:]).decode("utf-8", "replace")
        return LogView(text=strip_control(shown), size_bytes=size, cut=start > 0, hits=len(hits))
