"""One run, what differs from another, why a node was executed, and the log of a node."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from spanwise.orchestrator.errors import NotRecorded
from spanwise.orchestrator.run import format_source
from spanwise.scheduler.formatting import strip_control
from spanwise.scheduler.inspect.why import explain, format_explanation
from spanwise.scheduler.web.pages import Page
from spanwise.scheduler.web.queries.runs import read_run
from spanwise.scheduler.web.site import Ask, WebSite

LOG_BYTES = 64 * 1024
"""How much of the end of a log a page shows; the rest is downloaded."""

_SEARCHED_BYTES = 64 * 1024 * 1024  # of the end of a log
_MOST_HITS = 500


def _number(ask: Ask) -> int:
    text = ask.path["number"]
    if not text.isdecimal() or len(text) > 9:  # noqa: PLR2004
        raise NotRecorded(f"{text!r} is not the number of a run. See:  spanwise runs {ask.path['pipeline']}")
    return int(text)


def show_run(site: WebSite, ask: Ask) -> Page:
    """One run, live while it runs."""
    view = read_run(site, ask.path["pipeline"], _number(ask))
    facts = {"view": view, "run": view.run, "source": format_source(view.run.source) if view.run.source else ""}
    return Page("run.html", f"Run {view.run.name}", facts, view.run.pipeline, "runs")


def show_diff(site: WebSite, ask: Ask) -> Page:
    """What differs from the run before, or from another."""
    pipeline = site.client.pipeline(ask.path["pipeline"])
    run = pipeline.run(_number(ask))
    other = pipeline.run(number) if (number := ask.number("with", run.number - 1)) else None
    found = run.diff(other) if other is not None else []
    return Page(
        "diff.html",
        f"Differences of {run.name}",
        {"run": run.run, "other": other, "found": found},
        run.pipeline,
        "runs",
    )


def show_why(site: WebSite, ask: Ask) -> Page:
    """Why a node was executed or reused."""
    run = site.client.pipeline(ask.path["pipeline"]).run(_number(ask)).run
    found = explain(site.store, run, ask.path["node"])
    facts = {"run": run, "found": found, "text": format_explanation(found)}
    return Page("why.html", f"Why {ask.path['node']} of {run.name}", facts, run.pipeline, "runs")


@dataclass(frozen=True, kw_only=True)
class LogView:
    """The end of a log, or the lines of it in which something was found."""

    text: str
    size_bytes: int
    cut: bool  #: there is more before it
    hits: int | None = None
    gone: bool = False


def show_log(site: WebSite, ask: Ask) -> Page:
    """The log of one attempt at a node, live while it runs."""
    run = site.client.pipeline(ask.path["pipeline"]).run(_number(ask)).run
    node = ask.path["node"]
    found = [e for e in site.store.executions(run) if e.node == node and e.log]
    attempt = ask.number("attempt", found[-1].attempt if found else 1)
    execution = next((e for e in found if e.attempt == attempt), None)
    if execution is None:
        raise NotRecorded(f"{node} of {run.name} has no log; it was not executed. See:  spanwise show {run.name}")
    text = ask.query.get("q", "")[:200]
    facts = {
        "run": run,
        "node": node,
        "attempt": attempt,
        "attempts": [e.attempt for e in found],
        "log": read_log(Path(execution.log), text),
        "q": text,
        "execution": execution,
    }
    return Page("log.html", f"Log of {node} in {run.name}", facts, run.pipeline, "runs")


def read_log(file: Path, text: str = "") -> LogView:
    """The last lines of a log; with `text`, the last lines that hold it. Reads a bounded part of a file of any size."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            start = max(0, size - (_SEARCHED_BYTES if text else LOG_BYTES))
            opened.seek(start)
            if not text:
                body = opened.read(LOG_BYTES).decode("utf-8", "replace")
                lines = body.split("\n")[1:] if start else body.split("\n")
                return LogView(text=strip_control("\n".join(lines)), size_bytes=size, cut=start > 0)
            wanted = text.encode().lower()
            hits = [line for line in opened if wanted in line.lower()]
            shown = b"".join(line[:2000] for line in hits[-_MOST_HITS:]).decode("utf-8", "replace")
            return LogView(text=strip_control(shown), size_bytes=size, cut=start > 0, hits=len(hits))
    except OSError:
        return LogView(text="", size_bytes=0, cut=False, gone=True)
