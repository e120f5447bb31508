"""How the jobs of a data service are shown: who reads them, and how much of their time consumers wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

_HUNGRY: Final = 0.5
"""A consumer that waits for more of its time than this would go faster with more workers."""


def table(status: Mapping[str, Any]) -> str:
    """Jobs, and a hint where more workers would help."""
    workers, jobs = status["workers"], status["jobs"]
    lines = [f"dispatcher {status['target']}   workers {len(workers)}   datasets {status['datasets']}"]
    if not jobs:
        return "\n".join([*lines, "no job"])
    lines.append(f"{'JOB':<20} {'MODE':<14} {'CONSUMERS':>9} {'TASKS':>7} {'RATE/S':>9} {'WAITING':>8}")
    for job in jobs:
        name = job["name"] or f"#{job['job']}"
        tasks = f"{job['tasks_finished']}/{job['tasks']}"
        lines.append(
            f"{name:<20.20} {job['mode']:<14} {job['consumers']:>9} {tasks:>7} {job['rate']:>9.0f} "
            f"{job['starved']:>8.0%}"
        )
    if any(job["starved"] > _HUNGRY and not job["finished"] for job in jobs):
        lines.append(f"Consumers wait for more than {_HUNGRY:.0%} of their time: more workers would help.")
    return "\n".join(lines)


def watch(status: Callable[[], Mapping[str, Any]], every_s: float = 1.0) -> None:
    """Shows the table anew each second, until Ctrl-C."""
    from rich.live import Live
    from rich.text import Text

    with Live(Text(table(status())), auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(Text(table(status())), refresh=True)
