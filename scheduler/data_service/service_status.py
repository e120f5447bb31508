"""How a data service is shown: its workers, who reads which job, and how much of their time consumers wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_HUNGRY: Final = 0.5
"""Who waits for more of its time than this is shown in red; for more than a tenth of it, in yellow."""

_STEP: Final = 1024
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")

Status: TypeAlias = Mapping[str, Any]


def table(status: Status, width: int = 100) -> str:
    """All of it as text without colours."""
    from rich.console import Console

    console = Console(width=width, no_color=True, highlight=False, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(drawn(status))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def drawn(status: Status) -> RenderableType:
    """A line about the service, its jobs, its workers, and how many workers would be right."""
    from rich.console import Group
    from rich.text import Text

    workers, jobs = status["workers"], status["jobs"]
    head = f"dispatcher {status['target']}   workers {len(workers)}   datasets {status['datasets']}"
    parts: list[RenderableType] = [Text(head, "bold")]
    parts += [Text(), _of_jobs(jobs)] if jobs else [Text("no job")]
    if workers:
        parts += [Text(), _of_workers(workers)]
    hint = _hint(status)
    if hint:
        parts += [Text(), Text(hint, "yellow")]
    return Group(*parts)


def _of_jobs(jobs: list[Status]) -> Table:
    from rich.text import Text

    found = _columns(["JOB", "MODE"], ["CONSUMERS", "TASKS", "ELEMENTS", "WAITING"])
    for job in jobs:
        style = "dim" if job["finished"] else ""
        found.add_row(
            Text(job["name"] or f"#{job['job']}"),
            Text(job["mode"]),
            str(job["consumers"]),
            f"{job['tasks_finished']}/{job['tasks']}",
            f"{job['rate']:,.0f}/s",
            Text(f"{job['starved']:.0%}", "" if job["finished"] else _hunger(job["starved"])),
            style=style,
        )
    return found


def _hunger(starved: float) -> str:
    return "red" if starved > _HUNGRY else "yellow" if starved > _HUNGRY / 5 else "green"


def _of_workers(workers: list[Status]) -> Table:
    from rich.text import Text

    found = _columns(["WORKER"], ["TASKS", "BUSY", "ELEMENTS", "BYTES", "READY"])
    for worker in workers:
        found.add_row(
            Text(worker["address"]),
            str(worker["tasks"]),
            f"{worker['busy']:.0%}",
            f"{worker['given_per_s']:,.0f}/s",
            f"{size(worker['bytes_per_s'])}/s",
            size(worker["buffered_bytes"]),
        )
    return found


def _columns(left: Sequence[str], right: Sequence[str]) -> Table:
    from rich.table import Table

    found = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for name in left:
        found.add_column(name, no_wrap=True, overflow="ellipsis", min_width=len(name), max_width=32)
    for name in right:
        found.add_column(name, no_wrap=True, justify="right", min_width=len(name))
    return found


def size(size_bytes: float) -> str:
    """A number of bytes for people."""
    for unit in _UNITS:
        if size_bytes < _STEP or unit == _UNITS[-1]:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= _STEP
    raise AssertionError("the last unit takes the rest")


def _hint(status: Status) -> str:
    there, wanted = len(status["workers"]), status["wanted"]
    going = [job for job in status["jobs"] if not job["finished"]]
    if not going:
        return ""
    if wanted > there:
        return f"Consumers wait, and workers are busy: {wanted} workers would be right, {there} are there."
    if wanted < there:
        return f"Workers are idle for much of their time: {wanted} of {there} would do."
    if any(job["starved"] > _HUNGRY for job in going):
        return "Consumers wait though workers have time: the sources or the network are the slow part."
    return ""


def watch(status: Callable[[], Status], every_s: float = 1.0) -> None:
    """Shows it anew each second, until Ctrl-C."""
    from rich.live import Live

    with Live(drawn(status()), auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(drawn(status()), refresh=True)
