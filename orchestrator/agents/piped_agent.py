"""Agents whose line is the standard streams: how an engine runs one that passes streams on.

`python -m spanwise.orchestrator.agents.piped_agent` first sends the number of its job and the name of its machine.
With `attached`, nobody hears it from its start: it waits for a message before it says anything.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from spanwise.orchestrator.agents import agent
from spanwise.orchestrator.agents.piped_line import PipedLine

_GREETING_S = 60.0
"""An agent that nobody greets for so long has no controller any more."""


def main() -> None:
    """Ends without a word when its engine asks it to: the controller asks the engine why."""
    line = PipedLine(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)  # what is printed here must not come between the messages
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    machine = os.environ.get("SLURMD_NODENAME", os.uname().nodename)
    if sys.argv[1:] == ["attached"] and not _is_greeted(line):
        return
    line.send((os.environ.get("SLURM_JOB_ID", ""), machine))
    agent.main(line, machine, os.getppid())


def _is_greeted(line: PipedLine) -> bool:
    with contextlib.suppress(EOFError):
        if line.poll(_GREETING_S):
            line.recv()
            return True
    return False


if __name__ == "__main__":
    main()
