"""Commands in processes of their own: what a client starts that imports users' code and works for long.

A run forks its nodes, which a process that has used Polars or gRPC, as a notebook's kernel has, could not do. So it is
started as the command line starts it, with the same arguments, and reports by the same documents.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spanwise.orchestrator import errors
from spanwise.orchestrator.errors import RunError, SpanwiseError
from spanwise.scheduler.client.session import Session


def run_command(
    session: Session,
    command: str,
    arguments: Sequence[str],
    *,
    folder: Path | None = None,
    show: Callable[[str], None] | None = None,
) -> Any:
    """Runs a command with `--json` in a process of its own, and returns its document.

    `folder` is where; None: here. `show` gets each line of its progress. An interrupt is passed on, and waits for the
    command to end.

    Raises:
        SpanwiseError: the error of the command, of the same class.
    """
    config = [] if session.config is None else ["--config", str(session.config)]
    line = [sys.executable, "-m", "spanwise", *command.split(), "--json", *config, *arguments]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as output,  # a pipe would fill up while its progress is read
        subprocess.Popen(
            line,
            cwd=folder,
            env=session.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        printed: list[str] = []
        try:
            _follow(process, printed, show)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            _follow(process, printed, show)
        process.wait()
        output.seek(0)
        document = output.read()
    if document.strip():
        return json.loads(document)
    raise _error(printed, process.returncode)


def run_text(session: Session, words: Sequence[str], *, folder: Path | None, limit_s: float) -> str:
    """Runs a command that is over soon in a process of its own, and returns what it prints for people.

    `folder` is where; None: here.

    Raises:
        RunError: it failed, or took too long; the message is what it printed.
    """
    config = [] if session.config is None else ["--config", str(session.config)]
    line = [sys.executable, "-m", "spanwise", words[0], *config, *words[1:]]
    try:
        done = subprocess.run(
            line,
            cwd=folder,
            env=session.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"It took longer than {limit_s:g} s. Type it:  {shlex.join(['spanwise', *words])}") from error
    if done.returncode and not done.stdout.strip():
        raise RunError(done.stderr.strip().removeprefix("spanwise: "))
    return done.stdout


def _follow(process: subprocess.Popen[str], printed: list[str], show: Callable[[str], None] | None) -> None:
    """Reads the progress of a command until it ends."""
    assert process.stderr is not None
    for line in process.stderr:
        printed.append(line.rstrip("\n"))
        if show is not None and not line.startswith('{"error"'):
            show(printed[-1])


def _error(printed: Sequence[str], code: int) -> SpanwiseError:
    """The error that a command printed, of its class."""
    try:
        document = json.loads(printed[-1])
        message, kind = str(document["error"]), getattr(errors, str(document["kind"]), RunError)
    except (IndexError, ValueError, KeyError, TypeError):
        return RunError("\n".join(printed) or f"The command ended with exit code {code} and printed nothing.")
    return kind(message) if isinstance(kind, type) and issubclass(kind, SpanwiseError) else RunError(message)
