"""Memory watches: how much memory the processes of a job use together, and whether the system ran out of it.

Pages that processes share count in parts (the kernel's `Pss`), so that what a node inherits from its warm server is
hardly its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.05
"""How often a job with a limit is looked at. What it allocates in between is not noticed before."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")  # 64 KiB on some ARM machines
_PSS = re.compile(r"^Pss: +([0-9]+) kB", re.MULTILINE)
_OOM_KILLS = re.compile(r"^oom_kill ([0-9]+)", re.MULTILINE)


@dataclass(frozen=True)
class MemoryEnd:
    """That a job ended for want of memory."""

    used_bytes: int = 0  #: what it used when it exceeded its limit; 0 when the system ran out of memory


def exceeds(limit_bytes: int, pids: Iterable[int]) -> int:
    """What these processes use together if it is more than the limit, else 0."""
    alive = list(pids)
    if sum(map(_resident, alive)) <= limit_bytes:  # cheap, and never too low
        return 0
    used = sum(map(_proportional, alive))
    return used if used > limit_bytes else 0


def count_oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it booted; 0 where it does not say."""
    try:
        found = _OOM_KILLS.search(Path("/proc/vmstat").read_text(encoding="ascii"))
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):  # it has ended
        return 0


def _proportional(pid: int) -> int:
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii"))
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0
