"""The journal: what a scheduler does and why, a line for each decision, on stderr; text for people or JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_ALWAYS = frozenset([*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"])
"""What every log record has; all else of it are facts."""


def configure(*, as_json: bool = False, level: int = logging.INFO) -> None:
    """Has what our modules log go to stderr, from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    ours = logging.getLogger("spanwise")
    ours.handlers[:] = [handler]
    ours.setLevel(level)
    ours.propagate = False


class TextFormatter(logging.Formatter):
    """`2026-03-01T03:00:00Z INFO tick-taken pipeline=flights tick=2026-03-01T03:00`."""

    def format(self, record: logging.LogRecord) -> str:
        facts = (f"{name}={_word(value)}" for name, value in _facts(record).items())
        line = " ".join([f"{_stamp(record):%Y-%m-%dT%H:%M:%SZ}", record.levelname, record.getMessage(), *facts])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _stamp(record).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _facts(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _ALWAYS and value not in (None, "")}


def _stamp(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _word(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(c.isspace() or c in '"=' for c in text) else text
