"""Lines of messages over two pipes, for engines that carry streams: a message is a line of text.

Slurm's srun passes on what a job prints when a line is whole, so the bytes of a message alone would wait.
"""

from __future__ import annotations

import base64
import os
import pickle
import select
import threading
from collections import deque
from typing import Any, Final

_READ_BYTES: Final = 1 << 20


def encode(message: object) -> bytes:
    """A message as a line of text, with its end."""
    return base64.b64encode(pickle.dumps(message)) + b"\n"


def decode(line: bytes) -> Any:
    """The message of a line without its end."""
    return pickle.loads(base64.b64decode(line))  # noqa: S301  of the same user, through the engine


class PipedLine:
    """Two pipes as one connection, of one end. One thread receives; any may send."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._in, self._out = incoming, outgoing
        self._begun = b""  #: the line of which the end has not come yet
        self._lines: deque[bytes] = deque()
        self._sending = threading.Lock()
        self._open = True

    def poll(self, timeout_s: float | None) -> bool:
        """Whether a message has come; waits for at most `timeout_s`. Raises EOFError once the other end is closed."""
        if self._lines:
            return True
        while select.select([self._in], [], [], timeout_s)[0]:
            read = os.read(self._in, _READ_BYTES)
            if not read:
                raise EOFError
            *whole, rest = read.split(b"\n")
            if whole:
                self._lines.extend([self._begun + whole[0], *whole[1:]])
                self._begun = rest
                return True
            self._begun += rest
        return False

    def recv(self) -> Any:
        """The next message; waits for it. Raises EOFError once the other end is closed."""
        while not self._lines:
            self.poll(None)
        return decode(self._lines.popleft())

    def send(self, message: object, /) -> None:
        """Sends a message. Raises OSError once the other end, or this one, is closed."""
        left = memoryview(encode(message))
        with self._sending:
            while left:
                if not self._open:
                    raise BrokenPipeError("the line is closed")
                left = left[os.write(self._out, left) :]

    def close(self) -> None:
        """Closes the way out, by which the other end learns of it."""
        with self._sending:
            if self._open:
                self._open = False
                os.close(self._out)

    def close_all(self) -> None:
        self.close()
        os.close(self._in)
