import json
import logging
import sys

from spanwise.scheduler.daemon.decision_log import JsonFormatter


def record(**facts: object) -> logging.LogRecord:
    made = logging.getLogger("spanwise.scheduler").makeRecord(
        "spanwise.scheduler", logging.INFO, "cron.py", 1, "tick-missed", (), None, extra=facts
    )
    made.created = 1772334000.0
    return made


def test_programs_read_an_object() -> None:
    """Facts keep their types, and a traceback is one of them."""
    broken = record(span=20512)
    try:
        int("no number")
    except ValueError:
        broken.exc_info = sys.exc_info()

    line = json.loads(JsonFormatter().format(broken))

    assert line["traceback"].endswith("ValueError: invalid literal for int() with base 10: 'no number'")
    assert {name: line[name] for name in ("time", "level", "event", "span")} == {
        "time": "2026-03-01T03:00:00+00:00",
        "level": "info",
        "event": "tick-missed",
        "span": 20512,
    }
