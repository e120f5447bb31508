"""Writers: which process writes a snapshot, named so that others on the same machine can tell whether it has died."""

from __future__ import annotations

import os
from pathlib import Path


def this_writer() -> str:
    """The name of this process, unique for this boot of the machine; empty where the system has none."""
    here, start = pid_namespace(), _start(os.getpid())
    return "" if not here or start is None else f"{here}/{os.getpid()}/{start}"


def is_dead(writer: str) -> bool:
    """Whether that process has certainly ended. A process of another machine or an unknown one may be alive."""
    there, _, process = writer.rpartition("/")[0].rpartition("/")
    if not there or there != pid_namespace():
        return False
    return _start(int(process)) != writer.rpartition("/")[2]


def pid_namespace() -> str:
    """Within which process ids are unique: the kernel's boot and the container's namespace; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _start(process: int) -> str | None:
    """When a process was started, since ids are reused; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "XZ" else fields[19]
