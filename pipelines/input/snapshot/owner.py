"""Writers: which process writes a snapshot, told so that others of the same machine can say whether it has died."""

from __future__ import annotations

import os
from pathlib import Path


def this_writer() -> str:
    """This process, among all of this boot of this machine; empty where the system does not tell."""
    here, start = place(), _start(os.getpid())
    return "" if not here or start is None else f"{here}/{os.getpid()}/{start}"


def is_dead(writer: str) -> bool:
    """Whether that process has ended for sure. One of another machine may live, and so may one that nobody knows."""
    there, _, process = writer.rpartition("/")[0].rpartition("/")
    if not there or there != place():
        return False
    return _start(int(process)) != writer.rpartition("/")[2]


def place() -> str:
    """Where process ids mean what they mean here: the kernel's boot, and the namespace of a container.

    Empty where the system does not tell.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _start(process: int) -> str | None:
    """When a process was started, since ids are used again; None if it is not there, or is dead and not yet buried."""
    try:
        words = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "XZ" else words[19]
