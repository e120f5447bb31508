"""The status of a data service as tables: its jobs, its workers, and how long consumers wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spanwise.scheduler.formatting import create_table, format_size, render

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_STARVED: Final = 0.5
"""A consumer that waits for a larger share of its time is red; for more than a fifth of this, yellow."""

Status: TypeAlias = Mapping[str, Any]


def format_status(status: Status, width: int = 100) -> str:
    """The status as text without colours."""
    return render(draw_status(status), width)


def draw_status(status: Status) -> RenderableType:
    """The service, its jobs, its workers, and how many workers it needs."""
    from rich.console import Group
    from rich.text import Text

    workers, jobs = status["workers"], status["jobs"]
    head = f"dispatcher {status['target']}   workers {len(workers)}   datasets {status['datasets']}"
    parts: list[RenderableType] = [Text(head, "bold")]
    parts += [Text(), _draw_jobs(jobs)] if jobs else [Text("no job")]
    if workers:
        parts += [Text(), _draw_workers(workers)]
    hint = suggest_workers(status)
    if hint:
        parts += [Text(), Text(hint, "yellow")]
    return Group(*parts)


def _draw_jobs(jobs: list[Status]) -> Table:
    from rich.text import Text

    counts = ("CONSUMERS", "TASKS", "ELEMENTS", "WAITING")
    table = create_table(("JOB", "MODE", *counts), right=counts)
    for job in jobs:
        table.add_row(
            Text(job["name"] or f"#{job['job']}"),
            Text(job["mode"]),
            str(job["consumers"]),
            f"{job['tasks_finished']}/{job['tasks']}",
            f"{job['rate']:,.0f}/s",
            Text(f"{job['starved']:.0%}", "" if job["finished"] else _starvation_style(job["starved"])),
            style="dim" if job["finished"] else "",
        )
    return table


def _starvation_style(starved: float) -> str:
    return "red" if starved > _STARVED else "yellow" if starved > _STARVED / 5 else "green"


def _draw_workers(workers: list[Status]) -> Table:
    from rich.text import Text

    counts = ("TASKS", "BUSY", "ELEMENTS", "BYTES", "READY")
    table = create_table(("WORKER", *counts), right=counts)
    for worker in workers:
        table.add_row(
            Text(worker["address"]),
            str(worker["tasks"]),
            f"{worker['busy']:.0%}",
            f"{worker['given_per_s']:,.0f}/s",
            f"{format_size(worker['bytes_per_s'])}/s",
            format_size(worker["buffered_bytes"]),
        )
    return table


def suggest_workers(status: Status) -> str:
    """What would let consumers wait less, or workers be idle less; empty where nothing would."""
    present, wanted = len(status["workers"]), status["wanted"]
    running = [job for job in status["jobs"] if not job["finished"]]
    if not running:
        return ""
    if wanted > present:
        return f"Consumers wait and workers are busy: run {wanted} workers instead of {present}."
    if wanted < present:
        return f"Workers are mostly idle: {wanted} of {present} are enough."
    if any(job["starved"] > _STARVED for job in running):
        return "Consumers wait although workers are idle: the sources or the network are the bottleneck."
    return ""


def watch_status(status: Callable[[], Status], every_s: float = 1.0) -> None:
    """Draws the status every second, until Ctrl-C."""
    from rich.live import Live

    with Live(draw_status(status()), auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(draw_status(status()), refresh=True)
