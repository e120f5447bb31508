"""Children: modules of ours as processes of their own, each given a document on stdin. They are found as we were found.

What is on Python's path by chance, such as a user's own `scheduler/`, must not take the place of ours in them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO

from scheduler.load import OURS

_PATH = "PYTHONPATH"


def start(
    module: str, document: Mapping[str, object], *, stdout: IO[bytes], stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Starts a module with a document to work on, in a session of its own.

    Raises:
        OSError: the system starts no more processes.
    """
    path = os.pathsep.join([str(OURS), *filter(None, [os.environ.get(_PATH)])])
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env={**os.environ, _PATH: path},
        start_new_session=True,
    )
    assert child.stdin is not None
    with child.stdin as line:
        line.write(json.dumps(document).encode())
    return child


def given() -> dict[str, object]:
    """In a child: its document. What a node starts later gets the path that the user has set, without ours."""
    rest = os.environ.pop(_PATH, "").partition(os.pathsep)[2]
    if rest:
        os.environ[_PATH] = rest
    document: dict[str, object] = json.load(sys.stdin)
    return document
