import logging
import subprocess
import sys

from spanwise.orchestrator.logs import EventFormatter


def line_of(message: str, *arguments: object, **facts: object) -> str:
    record = logging.getLogger("spanwise.ingest").makeRecord(
        "spanwise.ingest", logging.INFO, "part.py", 1, message, arguments, None, extra=facts
    )
    record.created = 1772334000.0
    return EventFormatter("%(asctime)s %(levelname)s %(message)s").format(record)


def test_people_read_a_line() -> None:
    """The event, then its facts; those with blanks in quotes, those that say nothing left out."""
    line = line_of("tick-missed", pipeline="flights", reason="no scheduler ran", span=None, note="")

    assert line == '2026-03-01T03:00:00Z INFO tick-missed pipeline=flights reason="no scheduler ran"'


def test_facts_of_several_parts_are_listed() -> None:
    """Lists and mappings read as text, and figures are short."""
    line = line_of("model-evaluated", metrics={"auc": 0.123456789, "count": 842}, by=["hour", "day"])

    assert line.endswith('model-evaluated metrics="auc 0.123457, count 842" by="hour, day"')


def test_a_message_of_a_library_is_written_as_it_is() -> None:
    """It has arguments and no facts."""
    assert line_of("took %d s", 3) == "2026-03-01T03:00:00Z INFO took 3 s"


def test_control_characters_of_a_name_are_escaped() -> None:
    """A file called by an escape sequence must not clear the terminal of who reads the log."""
    line = line_of("stray-files-skipped", first='data/\x1b[2J"x\\y\n\udcff')

    assert line.endswith('first="data/\\x1b[2J\\"x\\\\y\\n\\udcff"')
    assert line.isprintable()


def test_text_of_any_language_stays_as_it_is() -> None:
    """Only what does not print is escaped."""
    assert line_of("span-ingested", node="Zürich").endswith("node=Zürich")


def test_a_warning_says_what_happened_where_nobody_has_set_up_logging():
    """Python's own last resort shows the event alone; where there is a handler, that one shows it."""
    program = """
import logging
from spanwise.orchestrator import logs
logs.show_facts("spanwise.service")
log = logging.getLogger("spanwise.service.worker")
log.warning("worker-lost", extra={"worker": "here:1"})
log.info("worker-seen", extra={"worker": "here:1"})
logging.basicConfig(format="mine %(message)s")
log.warning("worker-lost", extra={"worker": "here:2"})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = done.stderr.splitlines()

    assert first.endswith(" WARNING worker-lost worker=here:1")
    assert second == "mine worker-lost"
