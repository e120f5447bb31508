import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator.run import Execution, Run, State
from spanwise.scheduler.alerts import alert
from spanwise.scheduler.alerts.alert import Alert, Site
from spanwise.scheduler.cli import app

NIGHT = datetime(2026, 3, 1, 3, 20, tzinfo=UTC)
SITE = Site(host="train-1", folder=Path("/srv/my rides"), options=("--root", "/srv/spanwise"))
RUN = Run(
    pipeline="flights",
    number=42,
    span=15_710,
    calendar="day",
    host="train-1",
    pid=4711,
    started=datetime(2026, 3, 1, 3, 0, tzinfo=UTC),
)


def failure(**facts: object) -> Alert:
    known: dict[str, object] = {
        "error": "Trainer failed: ValueError: labels hold NaN",
        "tick": "2026-03-01T03:00",
        "span": "2013-01-05",
        "run": RUN,
        "log": Path("/srv/log"),
        "resume": "spanwise run flights.py --from Trainer --base-run 42",
    }
    return alert.failure_alert("flights", at=NIGHT, site=SITE, **{**known, **facts})  # type: ignore[arg-type]


ALL = [
    failure(),
    failure(run=None, log=None, resume=""),
    alert.overrun_alert("flights", at=NIGHT, site=SITE, tick="T", span="2013-01-06", running=RUN, killed_for="the tick T", lost="2013-01-05"),
    alert.overrun_alert("flights", at=NIGHT, site=SITE, tick="T", span="2013-01-06", running=RUN),
    alert.missed_alert("flights", at=NIGHT, site=SITE, ticks=["T"], why="nothing ran"),
    alert.missed_alert("flights", at=NIGHT, site=SITE, ticks=["T"], why="nobody has recorded it", overdue=True),
    alert.stall_alert(RUN, at=NIGHT, site=SITE, quiet=timedelta(hours=2), log=Path("/srv/log")),
    alert.freshness_alert("flights", at=NIGHT, site=SITE, pushed=NIGHT - timedelta(days=3), allowed=timedelta(days=1)),
    alert.forecast_alert("flights", at=NIGHT, site=SITE, forecast="in about 3 weeks", facts={"median": "21 h 00 min"}),
    alert.trouble_alert("flights.py does not import", at=NIGHT, site=SITE, error="SyntaxError", pipeline="flights"),
    alert.recovery_alert("flights", at=NIGHT, site=SITE, cause="failure flights", summary="run 43 succeeded"),
]  # fmt: skip


def test_a_failure_is_told_from_the_top() -> None:
    """What and whom first, then what went wrong, the facts, and what to type, in the folder where it works."""
    assert alert.format_title(failure()) == "flights failed on span 2013-01-05"
    assert alert.format_body(failure()) == (
        "Trainer failed: ValueError: labels hold NaN\n"
        "\n"
        "tick: 2026-03-01T03:00\n"
        "span: 2013-01-05\n"
        "run: flights/42\n"
        "started: 2026-03-01 03:00:00 UTC\n"
        "took: 20 min 00 s\n"
        "log: /srv/log\n"
        "host: train-1, pid 4711\n"
        "at: 2026-03-01 03:20:00 UTC\n"
        "\n"
        "On train-1:\n"
        "  cd '/srv/my rides'\n"
        "See what happened:\n"
        "  spanwise show flights/42 --root /srv/spanwise\n"
        "Resume it:\n"
        "  spanwise run flights.py --from Trainer --base-run 42\n"
        "Missed ticks:\n"
        "  spanwise schedule missed flights --root /srv/spanwise"
    )


@pytest.mark.parametrize("told", ALL, ids=lambda told: told.cause)
def test_every_alert_names_its_pipeline_in_its_first_line(told: Alert) -> None:
    """The first line is all that a telephone shows; it is one line, and short."""
    assert "flights" in alert.format_title(told)
    assert "\n" not in alert.format_title(told)
    assert len(alert.format_title(told)) < 120


@pytest.mark.parametrize("told", ALL, ids=lambda told: told.cause)
def test_the_whole_of_an_alert_fits_a_pager(told: Alert) -> None:
    """PagerDuty shows 1,024 letters."""
    assert len(alert.format_title(told)) + len(alert.format_body(told)) < 1024


@pytest.mark.parametrize("told", ALL, ids=lambda told: told.cause)
def test_every_command_of_an_alert_exists(told: Alert) -> None:
    """Whoever is woken at night types it and is understood: the command line knows each command and its options."""
    import typer

    program = typer.main.get_command(app)
    for command in told.commands.values():
        words = shlex.split(command)
        if words[0] != "spanwise":
            continue
        node, rest = program, words[1:]
        while hasattr(node, "commands"):
            node, rest = node.commands[rest[0]], rest[1:]
        node.make_context(words[0], rest)


@pytest.mark.parametrize("width", [10, 5_000])
def test_a_long_error_is_cut(width: int) -> None:
    """After five lines or 450 letters, so that the commands stay within what a pager shows; the log has the rest."""
    told = failure(error="\n".join(f"\x1b[31mline {n} {'x' * width}\x1b[0m" for n in range(100)))

    assert told.text.startswith("line 0 xxx")
    assert told.text.endswith("…")
    assert told.text.count("\n") <= 5
    assert "\x1b" not in told.text
    assert len(alert.format_title(told)) + len(alert.format_body(told)) < 1024


def test_a_failure_says_why_its_nodes_failed() -> None:
    """In their own words, not only which they were."""
    node = Execution(
        pipeline="flights", run=42, node="Trainer", state=State.FAILED, error="labels hold NaN\n  at train.py"
    )

    assert failure(error="Trainer failed", failed=[node]).text == "Trainer failed: labels hold NaN\n  at train.py"


def test_repeats_are_counted() -> None:
    """In the first line, and since when."""
    text = alert.format_body(failure(), count=3, since=NIGHT - timedelta(hours=1))

    assert alert.format_title(failure(), 3) == "flights failed on span 2013-01-05 (3 times)"
    assert "times, this is the latest: 3 since 2026-03-01 02:20:00 UTC" in text


def test_a_recovery_says_what_was_wrong() -> None:
    """With the first line of the alert that it ends, and how many there were."""
    told = alert.recovery_alert("flights", at=NIGHT, site=SITE, cause="failure flights", summary="run 43 succeeded")

    assert alert.format_title(told, 5) == "flights recovered: run 43 succeeded"
    assert alert.format_body(told, count=5, since=NIGHT, complaint="flights failed").startswith(
        "what was wrong: flights failed\nhost: train-1\nalerts: 5 since 2026-03-01 03:20:00 UTC\n"
    )


def test_many_missed_ticks_are_named_in_part() -> None:
    """Years of minutes do not make a long message."""
    told = alert.missed_alert("flights", at=NIGHT, site=SITE, ticks=[f"T{n}" for n in range(100)], why="", more=5_000)

    assert told.subject == "flights: 5100 ticks missed"
    assert told.facts["ticks"].endswith("T9 and 5090 more")


def test_times_are_those_of_the_moment_given() -> None:
    """In the zone of the schedule, when that is what the caller passes."""
    from zoneinfo import ZoneInfo

    there = NIGHT.astimezone(ZoneInfo("America/New_York"))

    told = alert.failure_alert("flights", at=there, site=SITE, error="", run=RUN)

    assert told.facts["started"] == "2026-02-28 22:00:00 EST"
    assert alert.format_body(told).split("\n\n")[0].endswith("at: 2026-02-28 22:20:00 EST")
