"""Writers: which process writes a snapshot, named so that others on the same machine can tell whether it has died."""

from __future__ import annotations

from spanwise.orchestrator import process


def this_writer() -> str:
    """The name of this process, unique for this boot of the machine; empty where the system has none."""
    me = process.identity()
    return f"{me.machine}/{me.pid}/{me.started}" if me.started else ""


def is_dead(writer: str) -> bool:
    """Whether that process has certainly ended. A process of another machine or an unknown one may be alive."""
    machine, *numbers = writer.rsplit("/", 2)
    if not numbers or machine != process.machine():
        return False
    pid, started = map(int, numbers)
    return process.is_alive(process.Identity(machine, pid, started)) is False
