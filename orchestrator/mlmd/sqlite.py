"""A session of SQLite that only reads, in a process of its own. It knows no tables.

Python's `sqlite3` must not open a file in a process that has it open through ml-metadata: each has its own SQLite, and
POSIX drops all of a process's locks on a file when it closes any descriptor of it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from spanwise.orchestrator.mlmd.sql_session import NotReadable, QueryRefused

_PROGRAM = Path(__file__).with_name("sqlite_process.py")


class FileSession:
    """One process that reads a file. It ends with the process that opened it, to which it belongs.

    Raises:
        NotReadable: there is no interpreter to start.
        QueryRefused: no process can be started.
    """

    def __init__(self, file: Path) -> None:
        if not sys.executable:
            raise NotReadable("The interpreter is not known.")
        name = str(file).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        command = [sys.executable, "-I", "-S", str(_PROGRAM), name]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/"
            )
        except OSError as error:
            raise QueryRefused(f"No process can be started: {error.strerror}") from error

    def rows(self, statement: str, parameter: object) -> list[Any]:
        """The rows of a statement whose columns are JSON arrays, and whose only parameter, `?1`, is JSON.

        Raises:
            QueryRefused: SQLite has answered with an error; the next statement may do better.
            OSError: the process has ended.
        """
        try:
            found = json.loads(self._ask(json.dumps([statement, json.dumps(parameter)])))
        except ValueError as error:  # texts that are not UTF-8
            raise QueryRefused(f"The answer cannot be decoded: {error}") from error
        if isinstance(found, str):
            raise QueryRefused(found)
        rows: list[Any] = found
        return rows

    def close(self) -> None:
        """Kills it: it only reads, and may be busy with a question that nobody waits for any more."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # the rest of a question
                pipe.close()

    def _ask(self, question: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        if stdin.closed:
            raise ConnectionResetError("It was closed.")
        try:
            stdin.write(question.encode() + b"\n")
            stdin.flush()
            answer = stdout.readline()
        except BaseException:  # also an interrupted question, whose answer would be taken for that of the next
            self.close()
            raise
        if not answer.endswith(b"\n"):
            self.close()
            raise ConnectionResetError("The process that reads it has ended.")
        return answer.decode()
