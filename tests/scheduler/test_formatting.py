import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from spanwise.orchestrator import State
from spanwise.scheduler import formatting
from tests.scheduler.records import NOON

EST = timezone(timedelta(hours=-5), "EST")


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    """What is in a row stays in its column; no line ends in blanks."""
    assert formatting.format_table(("A", "LONG"), [("xyz", ""), ("x", "y")]) == "A    LONG\nxyz\nx    y"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("a\x00b\x7f", "ab"),
        ("\x1b]0;title\x07x", "x"),
        ("a\x85\x9bb", "ab"),
        ("1%\r50%\r100%\r\nnext", "100%\nnext"),
        ("tab\tstays", "tab\tstays"),
    ],
)
def test_what_a_program_printed_for_a_terminal_is_made_text(text: str, shown: str) -> None:
    """Colours and control characters go; of a line that was drawn over, the last drawing stays."""
    assert formatting.strip_control(text) == shown


def test_a_moment_is_shown_with_its_zone() -> None:
    """People get their own zone, programs UTC."""
    assert formatting.format_time(NOON, EST) == "2013-01-08 07:00:00 EST"
    assert formatting.iso_time(NOON.astimezone(EST)) == "2013-01-08T12:00:00+00:00"
    assert formatting.format_time(None) == "-"


@pytest.mark.parametrize(
    ("length_s", "shown"), [(None, "-"), (0.04, "0.0 s"), (59.94, "59.9 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_a_length_of_time_has_two_units_at_most(length_s: float | None, shown: str) -> None:
    """Seconds with a tenth, then minutes, then hours."""
    assert formatting.format_duration(length_s) == shown


@pytest.mark.parametrize(
    ("size_bytes", "shown"), [(0, "0 B"), (999, "999 B"), (3400, "3.4 kB"), (1_250_000_000, "1.2 GB")]
)
def test_a_size_has_a_unit(size_bytes: int, shown: str) -> None:
    """In thousands, as disks are sold."""
    assert formatting.format_size(size_bytes) == shown


def test_a_number_that_json_cannot_say_is_null() -> None:
    """A metric may be NaN; a document with it can still be read by every program."""
    document = {"metrics": {"auc": float("nan"), "mae": 1.5}, "list": [float("inf"), "ü"]}

    assert json.loads(formatting.format_json(document)) == {"metrics": {"auc": None, "mae": 1.5}, "list": [None, "ü"]}


@dataclass(frozen=True)
class Visit:
    at: datetime
    state: State
    path: Path
    guests: tuple[str, ...] = ()
    after: "Visit | None" = None


def test_a_record_is_a_document_of_its_fields() -> None:
    """Times are UTC, enumerations their values, paths text, and records within it documents."""
    first = Visit(at=NOON.astimezone(EST), state=State.COMPLETE, path=Path("/a"))
    second = Visit(at=NOON, state=State.FAILED, path=Path("/b"), guests=("x",), after=first)

    document = formatting.as_document(second)

    assert json.loads(json.dumps(document)) == document
    assert (document["at"], document["state"], document["guests"]) == ("2013-01-08T12:00:00+00:00", "failed", ["x"])
    assert document["after"] == formatting.as_document(first)
    assert formatting.as_document(second, "path") == {"path": "/b"}


def test_a_table_shows_text_as_it_is() -> None:
    """Brackets are no markup, and a wide letter takes two columns."""
    assert formatting.format_table(("A", "B"), [("[red]x[/red]", ":smile:"), ("日本", "y")]).splitlines() == [
        "A             B",
        "[red]x[/red]  :smile:",
        "日本          y",
    ]


@pytest.mark.parametrize(
    ("line", "there"),
    [
        ("spanwise gc", "spanwise gc --root 'my root'"),
        ("Do it:  spanwise show p/1", "Do it:  spanwise show p/1 --root 'my root'"),
        ("spanwise gc --root x", "spanwise gc --root x"),
        ("spanwise run -- -p.py", "spanwise run --root 'my root' -- -p.py"),
        ("spanwise pin x --because 'no -- yes'", "spanwise pin x --because 'no -- yes' --root 'my root'"),
        ("spanwise says -- it's so", "spanwise says -- it's so --root 'my root'"),
        ("To unpin it: spanwise unpin x", "To unpin it: spanwise unpin x --root 'my root'"),
        ("5: failed  (spanwise show p/1)", "5: failed  (spanwise show p/1 --root 'my root')"),
        ("the spanwise command", "the spanwise command"),
    ],
)
def test_options_are_added_where_a_command_takes_them(line: str, there: str) -> None:
    """Before the words after `--`, which are no options; a command that has them keeps its own."""
    assert formatting.add_options(line, ["--root", "my root"]) == there
