"""What tests of servers need, whichever servers: free ports, a wait for what comes in its own time, an end."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def eventually(
    condition: Callable[[], object],
    within_s: float = 300.0,
    every_s: float = 0.01,
    otherwise: str = "it did not happen in time",
) -> None:
    """Waits until it holds."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(every_s)


def end_process(process: subprocess.Popen[bytes], grace_s: float = 20.0) -> None:
    """Asks a process to end, and kills it if it does not within the grace."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
