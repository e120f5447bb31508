"""Log lines: how an event and its facts (the fields of `extra=`) are written, for schedulers and nodes alike."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping

_STANDARD_FIELDS = frozenset([*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"])
"""The fields of every log record; all others are facts."""


def log_to_stderr() -> None:
    """Sends all that this process logs to stderr: for the processes of nodes, whose stderr is the node's log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EventFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(force=True, level=logging.INFO, handlers=[handler])


def show_facts(name: str) -> None:
    """Lets the warnings of a logger come with their facts where nobody has set up logging: Python shows only events."""
    logger = logging.getLogger(name)
    if not any(isinstance(handler, _LastResort) for handler in logger.handlers):
        logger.addHandler(_LastResort())


class _LastResort(logging.Handler):
    """Writes to stderr what no other handler gets."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(EventFormatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(not isinstance(handler, _LastResort | logging.NullHandler) for handler in logger.handlers):
                return
            logger = logger.parent if logger.propagate else None
        sys.stderr.write(f"{self.format(record)}\n")


class EventFormatter(logging.Formatter):
    """`2026-03-01T03:00:00Z INFO tick-taken pipeline=flights tick=2026-03-01T03:00`."""

    converter = time.gmtime  # type: ignore[assignment]  # mypy binds it as a method
    default_time_format = "%Y-%m-%dT%H:%M:%SZ"
    default_msec_format = None

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name of the standard library
        """The line of the format, and the facts behind it."""
        facts = (f"{name}={_quote(_format_value(value))}" for name, value in facts_of(record).items())
        return " ".join([super().formatMessage(record), *facts])


def facts_of(record: logging.LogRecord) -> dict[str, object]:
    """The facts of a record; without those that are None or empty text."""
    facts = {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
    return {name: value for name, value in facts.items() if value is not None and str(value)}


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_format_value(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_format_value, value))
    return str(value)


def escape_control(text: str) -> str:
    """The text with its control and other unprintable characters as escapes, so that no terminal obeys them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _quote(text: str) -> str:
    if text and text.isprintable() and not any(c in ' "=' for c in text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escape_control(quoted)}"'
