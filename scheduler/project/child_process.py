"""Child processes: modules of ours as processes of their own, each given a document on stdin."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import IO


def start(
    module: str, document: Mapping[str, object], *, stdout: IO[bytes], stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Starts a module with a document to work on, in a session of its own.

    Raises:
        OSError: the system starts no more processes.
    """
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
    )
    assert child.stdin is not None
    with child.stdin as line:
        line.write(json.dumps(document).encode())
    return child


def given() -> dict[str, object]:
    """In a child: its document."""
    document: dict[str, object] = json.load(sys.stdin)
    return document
