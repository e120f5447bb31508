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
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._asked: tuple[str, object] | None = None  # whose answer was not read yet

    def rows(self, statement: str, parameter: object, ahead: object = None) -> list[Any]:
        """The rows of a statement whose columns are JSON arrays, and whose only parameter, `?1`, is JSON.

        With `ahead`, the process works on that parameter while the rows of this one are decoded.

        Raises:
            QueryRefused: SQLite has answered with an error; the next statement may do better.
            OSError: the process has ended.
        """
        try:
            found = json.loads(self._ask(statement, parameter, ahead))
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
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):  # the rest of a question
                pipe.close()

    def _ask(self, statement: str, parameter: object, ahead: object) -> str:
        if self._stdin.closed:
            raise ConnectionResetError("It was closed.")
        try:
            if self._asked != (statement, parameter):
                if self._asked is not None:
                    self._stdout.readline()  # somebody else asks between: this answer is wanted no more
                self._send(statement, parameter)
            answer = self._stdout.readline()
            self._asked = None
            if ahead is not None:
                self._send(statement, ahead)
        except BaseException:  # also an interrupted question, whose answer would be taken for that of the next
            self.close()
            raise
        if not answer.endswith(b"\n"):
            self.close()
            raise ConnectionResetError("The process that reads it has ended.")
        return answer.decode()

    def _send(self, statement: str, parameter: object) -> None:
        # It reads nothing while it writes an answer, so no question is sent before the last answer is here.
        self._stdin.write(f"{json.dumps(statement)}\n{json.dumps(parameter)}\n".encode())
        self._stdin.flush()
        self._asked = (statement, parameter)
