"""Child processes: modules that run in a process of their own, with a JSON document on stdin."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import IO


def command(module: str) -> list[str]:
    """The words that run a module in a process of its own."""
    return [sys.executable, "-P", "-m", module]


def start(
    module: str, document: Mapping[str, object], *, stdout: IO[bytes], stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Starts a module with a document, in a session of its own.

    Raises:
        OSError: the system cannot start more processes.
    """
    child = subprocess.Popen(
        command(module),
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    assert child.stdin is not None
    with child.stdin as stdin:
        stdin.write(json.dumps(document).encode())
    return child


def read_document() -> dict[str, object]:
    """The document of this child process."""
    document: dict[str, object] = json.load(sys.stdin)
    return document
