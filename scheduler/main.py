"""The entry of the command `spanwise`: what surrounds every command, and what an error looks like."""

from __future__ import annotations

import io
import os
import sys
import traceback
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Runs a command line and returns its exit code; see `spanwise.scheduler.cli.EXIT_CODES`.

    Without arguments it is the program itself, which ends here: to take the interpreter down, with all the libraries
    that were loaded, would cost a short command a tenth of its time. What has to be closed is closed by then.
    """
    if arguments is not None:
        return _answer(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a letter is no reason to fail
    code = _answer(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)


def _answer(arguments: list[str]) -> int:
    debug = "--debug" in _before_dashes(arguments)
    try:
        from spanwise.scheduler.cli import app

        app([a for a in arguments if a != "--debug"] if debug else arguments, prog_name="spanwise")
    except SystemExit as end:
        return _flushed(end.code if isinstance(end.code, int) else 0 if end.code is None else 1)
    except KeyboardInterrupt:
        return _flushed(130)
    except BrokenPipeError:
        return _flushed(1)
    except Exception as error:  # noqa: BLE001  here is where every error ends
        if debug:
            traceback.print_exc()
        return _flushed(_told(error, debug=debug))
    return _flushed(0)


def _told(error: Exception, *, debug: bool) -> int:
    from spanwise.orchestrator.errors import SpanwiseError

    if isinstance(error, SpanwiseError):
        if not debug:
            sys.stderr.write(f"spanwise: {error}\n")
        return error.exit_code
    if isinstance(error, OSError):
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        sys.stderr.write(f"spanwise: {what}\n")
        return 1
    if not debug:
        where = traceback.extract_tb(error.__traceback__)[-1]
        sys.stderr.write(
            f"spanwise: {type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})\n"
            "This is a mistake in spanwise, not in what you typed. Please report it, with what you typed and what the "
            "same command prints with --debug.\n"
        )
    return 1


def _before_dashes(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _flushed(code: int) -> int:
    """The exit code, once what was printed is out. Whoever read it may have gone, which is no error."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"spanwise: what was to be printed could not be: {error.strerror}\n")
            return code or 1
    return code
