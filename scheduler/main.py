"""The entry point of the command `spanwise`: runs a command and prints its error."""

from __future__ import annotations

import gc
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Runs a command line and returns its exit code; see `spanwise.scheduler.cli.EXIT_CODES`.

    Without arguments it is the program itself, which exits here: shutting the interpreter down with all loaded
    libraries would cost a short command a tenth of its time. Everything that has to be closed is closed by then.
    """
    if arguments is not None:
        return _run(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to fail
    code = _run(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)


def _run(arguments: list[str]) -> int:
    debug, as_json = (option in _before_dashes(arguments) for option in ("--debug", "--json"))
    try:
        find_command = _import_commands()
        typed = [a for a in arguments if a != "--debug"] if debug else arguments
        code = find_command(typed)(
            typed, prog_name="spanwise", standalone_mode=not as_json
        )  # otherwise it prints its errors as text
        return _flush(code if isinstance(code, int) else 0)
    except SystemExit as end:
        return _flush(end.code if isinstance(end.code, int) else 0 if end.code is None else 1)
    except KeyboardInterrupt:
        return _flush(130)
    except BrokenPipeError:
        return _flush(1)
    except Exception as error:  # noqa: BLE001  every error ends here
        if debug:
            traceback.print_exc()
        if isinstance(error.__cause__, KeyboardInterrupt):
            return _flush(130)
        message, code = _describe(error)
        message = _add_locations(message, _before_dashes(arguments))
        if as_json:
            document = {"error": message, "kind": type(error).__name__, "exit_code": code}
            sys.stderr.write(json.dumps(document) + "\n")
        elif not debug or isinstance(error, OSError):
            sys.stderr.write(f"spanwise: {_escape(message)}\n")
        return _flush(code)


def _import_commands() -> Callable[[Sequence[str]], Callable[..., object]]:
    """Imports the commands without garbage collections, which would find nothing in what is being imported."""
    there = "spanwise.scheduler.cli" in sys.modules
    gc.disable()
    try:
        from spanwise.scheduler.cli import find_command
    finally:
        if not there:
            gc.freeze()  # nor do later ones walk it, while a command imports what it needs
        gc.enable()
    return find_command


def _describe(error: Exception) -> tuple[str, int]:
    """The message of an error, and the exit code."""
    from spanwise.orchestrator.errors import SpanwiseError

    if isinstance(error, SpanwiseError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        return (f"{error.filename}: {error.strerror}" if error.filename else str(error)), 1
    if hasattr(error, "format_message"):  # a mistake in the command line
        return str(error.format_message()), int(getattr(error, "exit_code", 2))
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})\n"
        "This is a bug in spanwise. Please report it with the command and its output with --debug."
    ), 1


def _add_locations(message: str, arguments: list[str]) -> str:
    """The message with --root and --config, as they were typed, after each command that it says to type."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=False)
    typed = [text.partition("=")[::2] if "=" in text else (text, value) for text, value in pairs]
    found = [text for name, value in typed if name in ("--root", "--config") for text in (name, value)]
    if not found:
        return message
    from spanwise.scheduler.formatting import add_options

    return add_options(message, found)


def _escape(text: str) -> str:
    """The message with the control characters of names in it escaped; its lines and tabs stay."""
    from spanwise.orchestrator.logs import escape_control

    return "\n".join("\t".join(map(escape_control, line.split("\t"))) for line in text.split("\n"))


def _before_dashes(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _flush(code: int) -> int:
    """Flushes the output and returns the exit code. A reader that is gone is no error."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python reports an error at exit
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"spanwise: could not write the output: {error.strerror}\n")
            return code or 1
    return code
