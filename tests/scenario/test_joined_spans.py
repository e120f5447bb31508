"""Spans of several nodes that ingest are joined by a component: what is run again is joined as it was before."""

import json
import re
import shlex
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator import Calendar
from spanwise.orchestrator.record import from_plain, to_plain
from spanwise.scheduler.daemon.arrival import ArrivalQueue, ReadyData, find_ready
from spanwise.scheduler.inspect.artifact_check import Checked, check_artifacts
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import claim_tick
from spanwise.scheduler.project.load import load
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.schedule import Schedule, timetables_of
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.ticks import ticks
from tests.scenario.command_line import CommandLine

FLOW = '''
from pathlib import Path
from typing import ClassVar

from spanwise import Calendar, Component, Examples, Gate, Input, Model, Output, Pipeline, RollingWindow


class Ingest(Component):
    """Publishes the file of its span, which holds its version."""

    prepared: ClassVar = ("span", "version")
    takes_span = True

    @property
    def calendar(self):
        return Calendar(self.parameters["counts"])

    def available(self, spans=None):
        files = Path("lake", self.parameters["of"]).iterdir()
        found = {self.calendar.parse(file.name): int(file.read_text()) for file in files}
        return {span: version for span, version in found.items() if spans is None or span in spans}

    def prepare(self, run, history):
        span = run.span_for(self.name, self.calendar, takes_span=True)
        return {"span": span, "version": self.available([span])[span]}

    def run(self, examples: Output[Examples], of: str, counts: str, span: int, version: int) -> None:
        examples.span, examples.version, examples.split_names, examples.calendar = span, version, ["train"], counts
        (examples.path / "text").write_text(f"{Calendar(counts).label(span)[5:]}v{version}")


class Check(Gate):
    def run(self, examples: Input[Examples]) -> None:
        pass


class Join(Component):
    def run(self, clicks: Input[Examples], prices: Input[Examples], features: Output[Examples]) -> None:
        text = "+".join((each.path / "text").read_text() for each in (clicks, prices))
        if Path("broken").exists() and Path("broken").read_text() in text:
            raise RuntimeError("broken")
        (features.path / "text").write_text(text)
        features.span, features.version, features.split_names = clicks.span, clicks.version, ["train"]
        features.calendar = clicks.calendar


class Learn(Component):
    def run(self, examples: Input[list[Examples]], model: Output[Model]) -> None:
        (model.path / "text").write_text(" ".join((each.path / "text").read_text() for each in examples))
        model.spans = [each.span for each in examples]


def flow() -> Pipeline:
    clicks = Ingest(of="clicks", counts="day", name="clicks")
    prices = Ingest(of="prices", counts="day", name="prices")
    join = Join(clicks=clicks["examples"], prices=prices["examples"])
    window = RollingWindow(join["features"], size=3, since="2026-11-20", name="Window")
    return Pipeline("flow", [clicks, prices, join, window, Learn(examples=window["features"])])
'''
MONTHLY = FLOW.replace('of="prices", counts="day"', 'of="prices", counts="month"')
DAYS = ("11-20", "11-21", "11-22")


class Joined(CommandLine):
    """A folder in which clicks and prices arrive, and what the last model has learned."""

    def __init__(self, folder, monkeypatch, text=FLOW):
        super().__init__(folder, monkeypatch, text)
        for name in ("clicks", "prices"):
            (folder / "lake" / name).mkdir()

    def give(self, **versions):
        """A file of a span, as `clicks="11-21"`, or of a later version of it, `clicks="11-21v2"`."""
        for name, text in versions.items():
            label, _, version = text.partition("v")
            (self.folder / "lake" / name / f"2026-{label}").write_text(version or "1")

    def join(self, clicks, prices):
        """Runs both for the first time."""
        self.give(clicks=clicks, prices=prices)
        assert self("run", "flow.py", "--span", f"clicks=2026-{clicks}", "--span", f"prices=2026-{prices}") == 0

    @property
    def learned(self):
        models = (self.folder / ".spanwise/flow/Learn/model").glob("*/text")
        return max(models, key=lambda path: int(path.parent.name)).read_text().split()


def printed(text):
    """The commands in a message, ready to be typed."""
    return [shlex.split(found) for found in re.findall(r"spanwise ((?:backfill|run|accept) .*)", text)]


@pytest.fixture
def same(tmp_path, monkeypatch):
    """Clicks and prices of a day are joined; three days are there."""
    joined = Joined(tmp_path, monkeypatch)
    for day in DAYS:
        joined.join(day, day)
    return joined


@pytest.fixture
def lagging(tmp_path, monkeypatch):
    """Clicks of a day are joined with the prices of the day before."""
    joined = Joined(tmp_path, monkeypatch)
    for day, before in zip(DAYS, ("11-19", *DAYS), strict=False):
        joined.join(day, before)
    return joined


@pytest.fixture
def monthly(tmp_path, monkeypatch):
    """Clicks of a day are joined with the prices of its month."""
    joined = Joined(tmp_path, monkeypatch, MONTHLY)
    for day in DAYS:
        joined.join(day, "11")
    return joined


@pytest.mark.parametrize("source", ["clicks", "prices"])
def test_a_corrected_span_is_joined_with_what_it_was_joined_with(same, source):
    """Whichever of the two was corrected; it was joined with the newest span of the other."""
    same.give(**{source: "11-21v2"})

    assert same("backfill", "flow.py", "--span", f"{source}=2026-11-21") == 0

    corrected = "11-21v2+11-21v1" if source == "clicks" else "11-21v1+11-21v2"
    assert same.learned == ["11-20v1+11-20v1", corrected, "11-22v1+11-22v1"]


@pytest.mark.parametrize(
    ("corrected", "features"),
    [
        ({"clicks": "11-21v2"}, ["11-20v1+11-19v1", "11-21v2+11-20v1", "11-22v1+11-21v1"]),
        ({"prices": "11-21v2"}, ["11-20v1+11-19v1", "11-21v1+11-20v1", "11-22v1+11-21v2"]),
    ],
)
def test_a_corrected_span_is_joined_with_that_of_another_day_as_before(lagging, corrected, features):
    """Clicks with the prices of the day before: also where the window reads the features under the other's span."""
    lagging.give(**corrected)
    ((source, text),) = corrected.items()

    assert lagging("backfill", "flow.py", "--span", f"{source}=2026-{text[:5]}") == 0

    assert lagging.learned == features


def test_both_were_corrected(same):
    """The other one is read at its newest version too, not as it was when they were joined."""
    same.give(clicks="11-21v2", prices="11-21v2")

    assert same("backfill", "flow.py", "--span", "prices=2026-11-21") == 0

    assert same.learned[1] == "11-21v2+11-21v2"


def test_what_tainted_prints_joins_as_before(lagging, capsys):
    """The command that trains without a wrong span of one node works when pasted."""
    lagging.give(prices="11-20v2")
    lagging("tainted", "flow", "--span", "prices=2026-11-20")

    (command,) = printed(capsys.readouterr().out)
    assert lagging(*command) == 0

    assert lagging.learned == ["11-20v1+11-19v1", "11-21v1+11-20v2", "11-22v1+11-21v1"]


def test_a_corrected_month_is_joined_with_each_of_its_days(monthly, capsys):
    """The plan has the days, since what was made of the month is counted by them."""
    monthly.give(prices="11v2")

    assert monthly("backfill", "flow.py", "--span", "prices=2026-11", "--train-once") == 0

    assert monthly.learned == [f"{day}v1+11v2" for day in DAYS]
    out = capsys.readouterr().out
    assert re.search(r"clicks=2026-11-20 +prices=2026-11 +v1, v2 +v1", out)
    assert "Run flow/4 of span clicks=2026-11-20, prices=2026-11: complete" in out


def test_days_that_no_window_reads_are_not_run_again_for_a_month(monthly):
    """Of a corrected month, only those days run that a window reads."""
    monthly.join("11-23", "11")
    monthly.give(prices="11v2")

    plan = monthly.ask("backfill", "flow.py", "--span", "prices=2026-11", "--dry-run")

    assert [(t["span_label"], t["joined"]) for t in plan["targets"]] == [
        (f"2026-11-{day}", {"prices": "2026-11"}) for day in (21, 22, 23)
    ]
    assert [each["span_label"] for each in plan["outside"]] == ["2026-11-20"]


def test_a_day_is_joined_with_its_month_after_another_month_has_come(monthly):
    """The newest month is another one by now."""
    monthly.give(prices="12")
    assert monthly("run", "flow.py", "--only", "prices", "--span", "prices=2026-12") == 0
    monthly.give(clicks="11-21v2")

    assert monthly("backfill", "flow.py", "--span", "clicks=2026-11-21") == 0

    assert monthly.learned == ["11-20v1+11v1", "11-21v2+11v1", "11-22v1+11v1"]


def test_a_range_of_one_node_is_joined_as_before_and_one_model_is_trained(lagging):
    """With `--train-once`: each span with its own."""
    lagging.give(clicks="11-20v2")
    lagging.give(clicks="11-21v2")

    assert lagging("backfill", "flow.py", "--span", "clicks=2026-11-20..2026-11-21", "--train-once") == 0

    assert lagging.learned == ["11-20v2+11-19v1", "11-21v2+11-20v1", "11-22v1+11-21v1"]


def test_a_span_that_was_never_joined_is_refused_with_the_run_that_joins_it(same, capsys):
    """Nothing says with which span of the other node; nothing is started."""
    same.give(clicks="11-23", prices="11-23")

    assert same("backfill", "flow.py", "--span", "clicks=2026-11-23") == 2

    (command,) = printed(capsys.readouterr().err)
    assert command == ["run", "flow.py", "--span", "clicks=2026-11-23", "--span", "prices=SPAN"]
    assert len([*same.store.runs("flow")]) == 3


def test_a_span_whose_join_failed_is_joined_with_that_of_its_run(same):
    """Both were ingested by one run; what joins them failed."""
    (same.folder / "broken").write_text("11-23")
    same.give(clicks="11-23", prices="11-23")
    assert same("run", "flow.py", "--span", "2026-11-23") == 1
    (same.folder / "broken").unlink()
    same.give(prices="11-24")
    same("run", "flow.py", "--only", "prices", "--span", "prices=2026-11-24")

    assert same("backfill", "flow.py", "--span", "clicks=2026-11-23") == 0

    assert same.learned[-1] == "11-23v1+11-23v1"


def test_a_span_whose_partner_has_no_input_any_more_is_refused(lagging, capsys):
    """It would fail half way; nothing is started."""
    lagging.give(clicks="11-21v2")
    (lagging.folder / "lake/prices/2026-11-20").unlink()

    assert lagging("backfill", "flow.py", "--span", "clicks=2026-11-21") == 2

    assert "no input any more, or not in every split: prices 2026-11-20." in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--stale"], ["--span", "2026-11-21"]])
def test_one_span_of_all_nodes_is_refused_where_it_was_joined_with_another(lagging, capsys, words):
    """The commands that are printed run what was corrected as it was joined."""
    lagging.give(clicks="11-21v2", prices="11-21v2")

    assert lagging("backfill", "flow.py", *words) == 2

    commands = printed(capsys.readouterr().err)
    assert [lagging(*command) for command in commands] == [0, 0]
    assert lagging.learned == ["11-20v1+11-19v1", "11-21v2+11-20v1", "11-22v1+11-21v2"]


def test_one_span_of_all_nodes_is_run_where_it_was_joined_so(same):
    """As one without a node always was."""
    same.give(clicks="11-21v2")

    assert same("backfill", "flow.py", "--stale") == 0

    assert same.learned[1] == "11-21v2+11-21v1"


def test_a_backfill_of_one_node_is_resumed_with_what_its_spans_were_joined_with(lagging):
    """What was done is not done again, and the rest is joined as planned."""
    lagging.give(clicks="11-21v2")
    lagging.give(clicks="11-22v2")
    (lagging.folder / "broken").write_text("11-22")
    assert lagging("backfill", "flow.py", "--span", "clicks=2026-11-21..2026-11-22", "--train-once") == 1
    (lagging.folder / "broken").unlink()

    assert lagging("backfill", "--resume", "flow") == 0

    assert lagging.learned == ["11-20v1+11-19v1", "11-21v2+11-20v1", "11-22v2+11-21v1"]
    assert [run.spans["clicks"][5:] for run in lagging.store.runs("flow") if run.cause and run.spans] == [
        "11-22", "11-22", "11-21",
    ]  # fmt: skip


def miss_two_days(joined, before):
    """The schedule joins clicks of a day with prices so many days before; one missed tick stands for two."""
    first, last = (datetime(2026, 11, day, 3, tzinfo=UTC) for day in (24, 25))
    schedule = Schedule(cron="0 3 * * *", span={"clicks": days_before(1), "prices": days_before(before)})
    (table,) = timetables_of(schedule, "flow")
    days = dict.fromkeys(("clicks", "prices"), "day")
    since = first - timedelta(days=1)
    known = ScheduleRecord(timetable=table, since=since, source="flow.py", calendar="day", calendars=days)
    put_schedule(joined.store, known)
    came = [*ticks(table, since, last)]
    end = TickEnd(outcome=TickOutcome.MISSED, first_at=first, first_span=came[0].span)
    claim_tick(joined.store, "flow", came[-1], holder=1, now=last, end=end)
    for day in ("11-22", "11-23", "11-24"):
        joined.give(clicks=day, prices=day)


def test_a_missed_tick_that_stands_for_several_is_joined_as_its_schedule_joins(lagging, capsys):
    """`--missed` leaves it to the printed runs, a run for each tick; once all have run, none is missed."""
    miss_two_days(lagging, 2)
    before = lagging.learned
    assert lagging("backfill", "flow.py", "--missed") == 1
    left_out = capsys.readouterr().out
    assert "1 missed tick gives each node a span of its own. Run these:" in left_out
    assert lagging.learned == before

    assert lagging("schedule", "missed") == 1
    commands = printed(capsys.readouterr().out)
    assert commands == printed(left_out)
    assert [lagging(*command) for command in commands] == [0, 0]

    assert lagging.learned == ["11-22v1+11-21v1", "11-23v1+11-22v1", "11-24v1+11-23v1"]
    assert lagging("schedule", "missed") == 0


@pytest.mark.parametrize("words", [(), ("--missed",)], ids=["printed", "missed"])
def test_a_missed_tick_that_stands_for_several_of_one_span_for_all_nodes_is_backfilled(same, capsys, words):
    """The rules of all nodes are alike: by the range that is printed, or with the others."""
    miss_two_days(same, 1)
    same("schedule", "missed")
    (command,) = printed(capsys.readouterr().out)

    assert same(*(command if not words else ("backfill", "flow.py", *words))) == 0

    assert same.learned == [f"{day}v1+{day}v1" for day in ("11-22", "11-23", "11-24")]
    assert same("schedule", "missed") == 0


@pytest.fixture
def watched(caplog):
    """What `watch` would run, and the warnings that it logs."""

    def look(joined):
        loaded = load("flow.py")
        ready = find_ready(loaded.pipeline, loaded.calendar, joined.store, loaded.quoted)
        assert from_plain(ReadyData, json.loads(json.dumps(to_plain(ready)))) == ready
        with caplog.at_level("INFO", "spanwise.scheduler"):
            run = ArrivalQueue(ready).decide(joined.store, "flow:data", "day", 0.0, 0.0)
        return run, caplog.records

    return look


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({"clicks": "11-21v2"}, "backfill flow.py --span clicks=2026-11-21"),
        ({"prices": "11-22"}, "run flow.py --span clicks=SPAN --span prices=2026-11-22"),
        ({"clicks": "11-23", "prices": "11-23"}, "run flow.py --span clicks=2026-11-23 --span prices=SPAN"),
    ],
    ids=["corrected", "partner of another day", "new day"],
)
def test_a_watcher_leaves_what_is_joined_with_another_span_to_people(lagging, watched, given, command):
    """Clicks are joined with the prices of the day before; it says so, and how to run them."""
    (lagging.folder / "lake/prices/2026-11-19").unlink()
    lagging.give(**given)

    run, said = watched(lagging)

    assert run is None
    ignored, awaited = said
    assert (ignored.message, awaited.message) == ("spans-ignored", "run-awaits")
    assert "were joined with each other" in ignored.reason
    assert f"spanwise {command}" in ignored.reason
    assert awaited.reason.endswith("must be run by hand, joined as before")


@pytest.mark.parametrize("given", [{"clicks": "11-21v2"}, {"clicks": "11-23", "prices": "11-23"}], ids=["old", "new"])
def test_a_watcher_runs_one_span_of_all_nodes_where_they_were_joined_so(same, watched, given):
    """A corrected day of one node, and a new day of all."""
    same.give(**given)

    run, _ = watched(same)

    assert run is not None
    assert run.name.startswith(f"2026-{given['clicks'][:5]}")


GATED = (
    'check = Check(examples=prices["examples"])\n    join = Join(clicks=clicks["examples"], prices=check["examples"])'
)
JOINS = 'join = Join(clicks=clicks["examples"], prices=prices["examples"])'


def gated(text):
    return text.replace(JOINS, GATED).replace("prices, join,", "prices, check, join,")


@pytest.mark.parametrize(("text", "prices"), [(FLOW, ("11-19", *DAYS)), (MONTHLY, ("11",) * 3)], ids=["day", "month"])
def test_a_gate_on_what_is_joined_at_another_span_judges_what_was_read(tmp_path, monkeypatch, text, prices):
    """Clicks of a day with prices of the day before, or of the month: what the gate has accepted counts."""
    joined = Joined(tmp_path, monkeypatch, gated(text))

    for day, other in zip(DAYS, prices, strict=False):
        joined.join(day, other)

    assert joined.learned == [f"{day}v1+{other}v1" for day, other in zip(DAYS, prices, strict=False)]


@pytest.mark.parametrize(("text", "prices"), [(FLOW, ("11-19", *DAYS)), (MONTHLY, ("11",) * 3)], ids=["day", "month"])
def test_what_was_joined_with_a_refused_span_is_a_gap_until_that_is_accepted(
    tmp_path, monkeypatch, capsys, text, prices
):
    """The message names the refused span, and the commands in it work when pasted."""
    joined = Joined(tmp_path, monkeypatch, gated(text))
    for day, other in zip(DAYS, prices, strict=False):
        joined.join(day, other)
    assert joined("refuse", "flow.py", "--span", f"prices=2026-{prices[1]}", "--because", "wrong") == 0
    capsys.readouterr()

    assert joined("run", "flow.py", "--from", "Window", "--no-cache") != 0

    message = capsys.readouterr().out
    assert f"2026-11-21 (of prices 2026-{prices[1]}): refused" in message
    commands = printed(message[message.index("2026-11-21 (of") :])
    again = ["run", "flow.py", "--span", "clicks=2026-11-21", "--span", f"prices=2026-{prices[1]}"]
    assert commands[0] == [*again, "--to", "Check", "--to", "Join"]
    assert commands[1][:4] == ["accept", "flow.py", "--span", f"prices=2026-{prices[1]}"]
    assert joined(*commands[1]) == 0
    assert joined("run", "flow.py", "--from", "Window", "--no-cache") == 0


def test_a_gap_names_the_spans_of_every_node_that_is_joined(lagging, capsys):
    """One that was never joined has no span of the other node yet, which is left to be filled in."""
    lagging.give(clicks="11-24", prices="11-23")

    assert lagging("run", "flow.py", "--span", "clicks=2026-11-24", "--span", "prices=2026-11-23") == 1

    message = capsys.readouterr().out
    assert (
        "2026-11-23: never ingested. Ingest it:  spanwise run flow.py --span clicks=2026-11-23 --span prices=SPAN "
        "--to Join" in message
    )


def test_a_correction_that_was_not_joined_yet_prints_the_run_that_joins_it(lagging, capsys):
    """With the span that the old version was joined with; what is printed works when pasted."""
    lagging.give(clicks="11-21v2")
    assert lagging("run", "flow.py", "--only", "clicks", "--span", "clicks=2026-11-21") == 0
    capsys.readouterr()
    assert lagging("run", "flow.py", "--from", "Window", "--base-run", "3") != 0

    (command,) = printed(next(line for line in capsys.readouterr().out.splitlines() if "Make it from that" in line))
    assert lagging(*command) == 0
    assert lagging("run", "flow.py", "--from", "Window") == 0

    assert lagging.learned == ["11-20v1+11-19v1", "11-21v2+11-20v1", "11-22v1+11-21v1"]


def break_files(joined, how, name):
    """Removes the files of an artifact, or changes them without changing their size."""
    file = joined.store.artifact(name).path / "text"
    if how == "removed":
        shutil.rmtree(file.parent)
    else:
        file.chmod(0o644)
        file.write_text(file.read_text().replace("v", "w"))


def check(joined):
    """The commands for broken files, as `spanwise doctor --deep` prints them."""
    found = check_artifacts(joined.store, "flow", Checked(), deep=True)
    return [report.command.removeprefix("spanwise ").split() for report in found]


@pytest.mark.parametrize("how", ["removed", "changed"])
@pytest.mark.parametrize("which", ["lagging", "monthly", "same"])
def test_what_is_printed_for_broken_files_of_joined_spans_joins_them_as_before(request, capsys, which, how):
    """Where a node would read them, and by `spanwise doctor`: the commands name the spans of all nodes."""
    joined = request.getfixturevalue(which)
    before = joined.learned
    break_files(joined, how, f"flow/Join/features/{Calendar.DAY.parse('2026-11-21')}/1")

    (found,) = check(joined)
    capsys.readouterr()
    assert joined("run", "flow.py", "--from", "Window", "--no-cache") != 0
    command = printed(capsys.readouterr().out)[0]

    other = {"lagging": "prices=2026-11-20", "monthly": "prices=2026-11"}.get(which)
    spans = ["--span", "clicks=2026-11-21", "--span", other] if other else ["--span", "2026-11-21"]
    assert found == ["run", "flow.py", *spans, "--to", "Join", "--no-cache"]
    assert [word for word in command if word != "--no-cache"] == ["run", "flow.py", *spans, "--to", "Join"]
    assert joined(*command) == 0
    assert joined("run", "flow.py", "--from", "Window", "--no-cache") == 0
    assert joined.learned == before


def test_what_is_printed_for_removed_files_of_one_node_ingests_its_span(monthly):
    """Prices are counted by the month, and clicks by the day; the prices alone are ingested again."""
    month = Calendar.MONTH.parse("2026-11")
    break_files(monthly, "removed", f"flow/prices/examples/{month}/1")

    (command,) = check(monthly)

    assert monthly(*command) == 0
    made = monthly.store.artifact(f"flow/prices/examples/{month}/2")
    assert (made.path / "text").read_text() == "11v1"


PRICES_FIRST = MONTHLY.replace(
    "clicks: Input[Examples], prices: Input[Examples],", "prices: Input[Examples], clicks: Input[Examples],"
)
WHOSE = (
    "Join joins prices['examples'] by the month and clicks['examples'] by the day, and its own spans are taken to be "
    "counted as the first. If they are not, say so in the class of Join:  calendar = Calendar.DAY"
)
SAID = "class Join(Component):\n    calendar = Calendar.DAY\n"


@pytest.mark.parametrize("copied", [True, False], ids=["copied", "unsaid"])
def test_a_window_says_by_which_calendar_it_counts_what_joins_several(tmp_path, monkeypatch, capsys, copied):
    """Whether what is joined says its own or not; the component says it, and the order of its inputs is free."""
    text = PRICES_FIRST.replace('since="2026-11-20", ', "")
    text = text if copied else text.replace("        features.calendar = clicks.calendar\n", "")
    joined = Joined(tmp_path, monkeypatch, text)
    joined.give(clicks="11-20", prices="11")
    assert joined("run", "flow.py", "--span", "clicks=2026-11-20", "--span", "prices=2026-11") == 1

    message = capsys.readouterr().out
    assert WHOSE in message
    assert ("were published by the day, and are counted by the month here" in message) is copied

    joined.file.write_text(PRICES_FIRST.replace("class Join(Component):\n", SAID))
    joined.join("11-20", "11")
    assert joined.learned == ["11-20v1+11v1"]


def test_a_span_in_a_pipeline_file_is_refused_with_the_calendar_that_was_taken(tmp_path, monkeypatch, capsys):
    """`since` is a day, and the months of the first input are counted."""
    joined = Joined(tmp_path, monkeypatch, PRICES_FIRST)

    assert joined("validate", "flow.py") != 0

    assert WHOSE in capsys.readouterr().err
