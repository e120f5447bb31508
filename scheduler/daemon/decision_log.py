"""The decision log: what a scheduler does and why, a line for each decision, on stderr; text for people or JSON."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from spanwise.orchestrator.logs import EventFormatter, facts_of


def configure(*, as_json: bool = False, level: int = logging.INFO) -> None:
    """Sends what our modules log to stderr, from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else EventFormatter("%(asctime)s %(levelname)s %(message)s"))
    ours = logging.getLogger("spanwise")
    ours.handlers[:] = [handler]
    ours.setLevel(level)
    ours.propagate = False


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **facts_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
