"""The commands of schedules, on a real database; ticks and runs are recorded by the test or by a real one-shot."""

import json
import re
import shlex
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spanwise.orchestrator import Run, State
from spanwise.orchestrator.calendar import Calendar
from spanwise.orchestrator.mlmd import open_store
from spanwise.scheduler.daemon import loop as scheduling
from spanwise.scheduler.daemon.due_tick import end_missed
from spanwise.scheduler.ledger import schedule_status
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.pauses import newest_pause, pause_schedule
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule, retire_schedule
from spanwise.scheduler.ledger.ticks import claim_ended_ticks, claim_tick
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.due import find_due
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.span_rule import days_before, months_before
from spanwise.scheduler.schedule.ticks import ticks
from spanwise.scheduler.schedule.timetable import Timetable
from tests.scheduler.conftest import start, start_warm

FILE = """
from flow import flow
from spanwise.scheduler import Schedule, days_before

often = Schedule(flow, cron="* * * * *", span=days_before(1))
"""
HOURLY = Timetable("flow", cron="0 * * * *", span=days_before(1), freshness=timedelta(days=1))


@pytest.fixture
def file(project):
    (project / "often.py").write_text(FILE)
    return "often.py"


@pytest.fixture
def store(project):
    opened = (
        open_store(str(project / ".spanwise" / "metadata.db"), root=project / ".spanwise")
        if (project / ".spanwise").mkdir() is None
        else None
    )
    yield opened
    opened.close()


def scheduled_since(store, hours):
    """An hourly schedule that counts since so many hours ago, and the ticks that came."""
    now = datetime.now(UTC)
    since = now - timedelta(hours=hours)
    known = ScheduleRecord(timetable=HOURLY, since=since, source=f"{Path.cwd()}/flow.py:flow",
        calendar="day",
    )  # fmt: skip
    put_schedule(store, known)
    return list(ticks(HOURLY, since, now))


def taken(store, tick, end=None):
    return claim_tick(store, "flow", tick, holder=1, now=tick.at, end=end)


def test_a_one_shot_runs_what_is_due(file, shell):
    """And says what became of it; the second has nothing to do."""
    code, out, err = shell("schedule", "tick", file, "--json")
    assert code == 0, err
    (ended,) = json.loads(out)
    again = shell("schedule", "tick", file)

    assert (ended["outcome"], ended["run"]) == ("ran", "flow/1")
    assert again[0] == 0
    assert again[1] in ("Nothing is due.\n", again[1] if "flow/2" in again[1] else "")


def test_a_one_shot_whose_run_fails_ends_with_1(file, project, shell):
    """So that cron sends its mail, and the alert is in the outbox."""
    (project / "spanwise.toml").write_text("[params.flow]\nfail = true\n")

    code, out, err = shell("schedule", "tick", file)

    assert code == 1
    assert re.search(r"WARNING alert-raised kind=failure pipeline=flow subject=", err)
    assert re.search(r"flow \S+, span \S+: failed, flow/1: Second failed", out)


@pytest.mark.parametrize("words", [("schedule", "tick"), ("watch", "--once")])
def test_a_one_shot_says_what_became_of_a_tick_whose_schedule_is_over(store, spanwise, monkeypatch, words):
    """One that a dead scheduler had left open: it ran, and its schedule is in the file no longer."""
    tick = scheduled_since(store, 2)[0]
    ended = taken(store, tick, TickEnd(outcome=TickOutcome.RAN, run=1))
    retire_schedule(store, "flow")

    class Ended:
        def __init__(self, *_args, on_ended, **_options):
            self.run = lambda: on_ended(ended)

    monkeypatch.setattr(scheduling, "SchedulerLoop", Ended)
    code, out, err = spanwise(*words, "flow.py")

    assert (code, err) == (0, "")
    assert out.startswith(f"flow {tick.name}, span ")
    assert ": ran" in out


def test_a_file_without_schedule_is_refused(project, shell):
    """The message shows how one is written."""
    code, _, err = shell("schedule", "start", "flow.py")

    assert code == 2
    assert "defines no schedule" in err
    assert "Schedule(cron=" in err


def test_the_loop_says_what_it_decides(file, project):
    """As JSON, one object a line, until it is stopped."""
    (project / "often.py").write_text(FILE.replace("* * * * *", "* * * * * *"))
    loop = start("schedule", "start", "often.py", "--json", cwd=project)
    try:
        events = []
        while "tick-ended" not in [event["event"] for event in events]:
            events.append(json.loads(loop.stderr.readline()))
        loop.terminate()
        _, rest = loop.communicate(timeout=300)
    finally:
        loop.kill()

    assert loop.returncode == 0, rest
    assert [e["event"] for e in events][:3] == ["schedule-loaded", "tick-taken", "run-launched"]
    assert events[-1]["outcome"] == "ran"


def test_a_channel_that_cannot_be_used_is_found_at_the_start(file, project, shell):
    """By its setting, without its URL; not at the first failure, when nobody looks."""
    (project / "spanwise.toml").write_text('[alerts]\nurls = ["slak://secret/"]\n')

    code, _, err = shell("schedule", "start", file)

    assert code == 2
    assert "alerts.urls[0] (slak): Apprise supports no such service" in err
    assert "secret" not in err


@pytest.mark.slow
def test_a_reload_keeps_the_channels_there_were_when_the_new_ones_cannot_be_used(file, project):
    """And takes new ones once they can be."""
    (project / "often.py").write_text(FILE.replace("* * * * *", "@yearly"))
    loop = start_warm("schedule", "start", file, "--json", cwd=project)

    def until(event):
        while (found := json.loads(loop.stderr.readline()))["event"] != event:
            pass
        return found

    try:
        until("schedule-loaded")
        (project / "spanwise.toml").write_text('[alerts]\nurls = ["slak://secret/"]\n')
        loop.send_signal(signal.SIGHUP)
        refused = until("alert-settings-rejected")
        told = until("alert-raised")
        (project / "spanwise.toml").write_text('[alerts]\nurls = ["json://127.0.0.1:9/"]\n')
        loop.send_signal(signal.SIGHUP)
        taken = until("alert-settings-loaded")
        loop.terminate()
        loop.communicate(timeout=300)
    finally:
        loop.kill()

    assert refused["reason"].startswith("alerts.urls[0] (slak): Apprise supports no such service")
    assert told["subject"] == "scheduler: invalid alert settings"
    assert taken["channels"] == 1


def test_next_shows_what_comes(file, spanwise):
    """As many as asked for."""
    code, out, _ = spanwise("schedule", "next", file, "3")
    assert code == 0
    assert len(out.splitlines()) == 4

    (one,) = json.loads(spanwise("schedule", "next", file, "--json")[1])
    assert len(one["ticks"]) == 5


def test_ticks_explains_the_past(store, spanwise):
    """Each tick, whoever took it or did not."""
    ticks = scheduled_since(store, 5)
    taken(store, ticks[0], TickEnd(outcome=TickOutcome.SKIPPED, why="flow/1 had not ended"))
    taken(store, ticks[1])
    pause_schedule(store, "flow", who="ann", why="new disks", now=ticks[2].at)

    code, out, _ = spanwise("schedule", "ticks", "flow", "--since", (ticks[0].at - timedelta(hours=2)).isoformat())
    (document,) = json.loads(spanwise("schedule", "ticks", "flow", "--since", ticks[0].at.isoformat(), "--json")[1])

    assert code == 0
    assert "not taken  the schedule counts from " in out
    assert [t["outcome"] for t in document["ticks"]] == ["skipped", "open", *["waiting"] * (len(ticks) - 2)]
    assert document["ticks"][2]["why"] == "the schedule was paused by ann: new disks"


def test_ticks_says_when_earlier_ones_are_left_out(store, spanwise, monkeypatch):
    """And where to look for them."""
    monkeypatch.setattr(schedule_status, "_MOST", 3)
    ticks = scheduled_since(store, 5)
    words = ("schedule", "ticks", "flow", "--since")

    cut, (document,) = spanwise(*words, ticks[0].at.isoformat())[1], _json(spanwise, *words, ticks[0].at.isoformat())
    whole, (other,) = spanwise(*words, ticks[-2].at.isoformat())[1], _json(spanwise, *words, ticks[-2].at.isoformat())

    assert f"These are the newest 3 ticks, from {ticks[-3].at:%Y-%m-%d %H:%M}" in cut
    assert "  spanwise runs flow --limit N\n" in cut
    assert document["cut"]
    assert len(document["ticks"]) == 3
    assert "left out" not in whole
    assert not other["cut"]


def _json(spanwise, *words):
    return json.loads(spanwise(*words, "--json")[1])


def test_missed_lists_what_to_make_good_and_how(store, spanwise):
    """With the command to type; the exit code says whether there is anything."""
    ticks = scheduled_since(store, 3)
    taken(store, ticks[0], TickEnd(outcome=TickOutcome.RAN, run=1))
    assert spanwise("schedule", "missed") == (0, "No ticks need backfilling.\n", "")
    taken(store, ticks[1], TickEnd(outcome=TickOutcome.MISSED, why="no scheduler ran"))

    code, out, _ = spanwise("schedule", "missed", "flow")

    label = (ticks[1].at - timedelta(days=1)).date()
    assert code == 1
    assert f"spanwise backfill flow.py:flow --span {label}" in out
    (entry,) = json.loads(spanwise("schedule", "missed", "--json")[1])
    assert entry["recover"] == f"spanwise backfill flow.py:flow --span {label}"


def fail_ticks(store, key, span=HOURLY.span, days=3, *, source="both.py", calendar="day"):
    """A schedule of which each tick of the last days has failed."""
    now = datetime.now(UTC)
    table = Timetable(key, cron="0 4 * * *", span=span, division=HALVES if ":" in key else ())
    since = now - timedelta(days=days)
    put_schedule(store, ScheduleRecord(timetable=table, since=since, source=source, calendar=calendar))
    come = list(ticks(table, since, now))
    for tick in come:
        claim_tick(store, key, tick, holder=1, now=tick.at, end=TickEnd(outcome=TickOutcome.FAILED, why="it broke"))
    return come


def give_up_commands(spanwise, *keys):
    """What `schedule missed` prints below its last line about giving up, as it is typed."""
    printed = spanwise("schedule", "missed", *keys)[1].splitlines()
    return [shlex.split(line.replace("# …", "#"), comments=True)[1:] for line in printed if "acknowledge" in line]


@pytest.mark.parametrize("span", [days_before(1), None])
def test_what_gives_up_the_ticks_of_a_whole_pipeline_gives_up_none_of_its_parts(store, spanwise, span):
    """Parts took the place of a cron: the name of the pipeline alone stands for all of them."""
    fail_ticks(store, "flow", span)
    for half in HALVES:
        fail_ticks(store, f"flow:{half.name}", span)
    whole = [words for words in give_up_commands(spanwise) if words[2] == "flow:"]

    assert [spanwise(*words)[0] for words in whole] == [0] * len(whole) != []

    assert {key: len(list_missed(store, key)) for key in ("flow", "flow:ingest", "flow:train")} == {
        "flow": 0, "flow:ingest": 3, "flow:train": 3,
    }  # fmt: skip
    assert len({words[2] for words in give_up_commands(spanwise, "flow")}) == 2
    spanwise("schedule", "acknowledge", "flow", "--span", "2000-01-01..2099-01-01", "--because", "x")
    assert spanwise("schedule", "pause", "flow:", "--because", "x")[0] == 2
    assert spanwise("schedule", "missed", "flow")[0] == (0 if span else 1)


def test_many_ticks_without_a_span_are_given_up_a_few_at_a_time(store, spanwise):
    """Of nine, the commands for five were printed, and nothing said so."""
    fail_ticks(store, "flow", None, days=9)
    assert "  # … and 4 more like these\n" in spanwise("schedule", "missed")[1]
    for left in (4, 0):
        for words in give_up_commands(spanwise):
            assert spanwise(*words)[0] == 0
        assert len(list_missed(store, "flow")) == left


def test_spans_of_a_file_are_given_up_in_the_calendar_of_each_pipeline(store, spanwise):
    """The number of a month was taken for that of a block, and its tick given up too."""
    count = months_before(1)
    block, month = (fail_ticks(store, key, count, 1, calendar=key)[-1] for key in ("number", "month"))
    give_up = ("schedule", "acknowledge", "both.py", "--because", "x", "--span")
    assert block.span == month.span

    assert spanwise(*give_up, Calendar.MONTH.label(month.span))[0] == 0

    assert (len(list_missed(store, "number")), list_missed(store, "month")) == (1, [])
    code, _, error = spanwise(*give_up, "last week")
    assert (code, "'last week'" in error) == (2, True)


def test_a_name_in_a_file_gives_up_the_ticks_of_that_schedule_alone(store, spanwise):
    """The name was not looked at, so those of the others of the file were given up too."""
    fail_ticks(store, "clicks", source="both.py:hourly")
    fail_ticks(store, "prices", source="both.py:daily")
    for name, left in [("hourly", (0, 3)), ("prices", (0, 0))]:
        every = "2000-01-01..2099-01-01"
        assert spanwise("schedule", "acknowledge", f"both.py:{name}", "--span", every, "--because", "x")[0] == 0
        assert (len(list_missed(store, "clicks")), len(list_missed(store, "prices"))) == left


def test_a_tick_that_stands_for_several_does_not_count_as_one(store, spanwise):
    """Of 30 days without a scheduler, 719 ticks were missed, and 100 were said to need backfilling."""
    known, now = scheduled_since(store, 720), datetime.now(UTC)
    ends = end_missed(find_due(HOURLY, known[0].at - timedelta(hours=1), now), HOURLY)
    claim_ended_ticks(store, "flow", ends, holder=1, now=now)
    count = f"more than {len(ends)} missed ticks need backfilling"

    assert len(ends) < len(known)
    assert f"flow: {count}\n" in spanwise("schedule", "missed")[1]
    assert f"{count}: spanwise schedule missed flow\n" in spanwise("schedule", "status")[1]


def test_what_recovers_a_missed_tick_goes_to_the_folder_of_the_schedule(file, project, shell, tmp_path_factory):
    """Pasted elsewhere, it would read the files and the settings of that folder; the root is the one that was asked."""
    (project / "spanwise.toml").write_text("[params.flow]\nfail = true\n")
    shell("schedule", "tick", file)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    root = project / ".spanwise"
    (missed,) = json.loads(shell("schedule", "missed", "--json", "--root", str(root), cwd=elsewhere)[1])

    assert missed["recover"].startswith(f"cd {project} && spanwise run often.py:")
    assert missed["recover"].endswith(f" --root {root}")


def test_a_run_by_hand_makes_good_what_was_missed(file, project, shell):
    """A complete run of that span, however it was started."""
    (project / "spanwise.toml").write_text("[params.flow]\nfail = true\n")
    shell("schedule", "tick", file)
    (missed,) = json.loads(shell("schedule", "missed", "--json")[1])
    (project / "spanwise.toml").unlink()

    assert shell("run", "flow.py", "--span", str(missed["span"]), "--root", ".spanwise")[0] == 0

    assert shell("schedule", "missed")[0] == 0


def test_a_pause_is_heeded_until_it_is_resumed(store, spanwise):
    """With who, why and until when."""
    scheduled_since(store, 1)

    code, out, _ = spanwise("schedule", "pause", "flow", "--because", "new disks", "--until", "2999-01-01")
    assert (code, "is paused until 2999-01-01" in out) == (0, True)
    assert "new disks" in spanwise("schedule", "status", "flow")[1]

    assert spanwise("schedule", "resume", "flow")[0] == 0
    assert spanwise("schedule", "resume", "flow")[0] == 1


def test_a_pause_ends_at_the_time_of_its_schedule(store, spanwise):
    """In whichever zone it is typed: a page shows the times of a schedule in the zone of that."""
    zoned = replace(HOURLY, zone="America/New_York")
    put_schedule(store, ScheduleRecord(timetable=zoned, since=datetime.now(UTC), source="flow.py", calendar="day"))

    code, out, _ = spanwise("schedule", "pause", "flow", "--because", "x", "--until", "2999-01-01T06:00")

    assert (code, newest_pause(store, "flow").until) == (0, datetime(2999, 1, 1, 11, tzinfo=UTC))
    assert "is paused until 2999-01-01 06:00:00 EST" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("pause", "flow", "--because", "x", "--until", "2001-01-01"), "is in the past"),
        (("pause", "taxi", "--because", "x"), "'taxi' was never scheduled here. Scheduled are: flow."),
        (("status", "taxi"), "'taxi' was never scheduled here."),
        (("simulate", "flow.py", "--from", "2026-03-01", "--to", "2026-03-02"), "Give the duration of runs"),
    ],
)
def test_what_makes_no_sense_is_refused(store, spanwise, words, says):
    """With what to type instead."""
    scheduled_since(store, 1)

    code, _, err = spanwise("schedule", *words)

    assert code == 2
    assert says in err


def test_check_tells_when_no_scheduler_is_at_work(store, spanwise):
    """From the metadata alone; a pause is no fault."""
    scheduled_since(store, 3)

    code, out, _ = spanwise("schedule", "check")
    assert code == 1
    assert "is overdue, so no scheduler runs" in out

    spanwise("schedule", "pause", "flow", "--because", "new disks")
    assert spanwise("schedule", "check", "flow") == (0, "flow: healthy\n", "")


def test_check_tells_when_no_model_was_pushed(store, spanwise):
    """For longer than the schedule allows."""
    for tick in scheduled_since(store, 30):
        taken(store, tick, TickEnd(outcome=TickOutcome.RAN, run=1))

    code, out, _ = spanwise("schedule", "check", "--json")

    assert code == 1
    (problem,) = json.loads(out)[0]["problems"]
    assert problem == "no model was ever pushed; 24 h 00 min are allowed"


def test_status_says_how_schedules_stand(store, spanwise):
    """For people and for programs."""
    ticks = scheduled_since(store, 2)
    taken(store, ticks[0], TickEnd(outcome=TickOutcome.MISSED, why="no scheduler ran"))

    code, out, _ = spanwise("schedule", "status")
    document = json.loads(spanwise("schedule", "status", "flow", "--json")[1])

    assert code == 0
    assert "missed:  1 missed tick needs backfilling: spanwise schedule missed flow" in re.sub(
        r"(missed:) +", r"\1  ", out
    )
    assert "No scheduler is running." in out
    assert document["schedules"][0]["last"]["outcome"] == "missed"
    assert document["schedules"][0]["forecast"]["run"] is None
    assert document["schedulers"] == []


def test_status_says_how_long_runs_take(store, project, spanwise):
    """Against the time between two ticks; the settings say from when on that is too much."""
    scheduled_since(store, 1)
    for hour in range(10):
        began = datetime.now(UTC) - timedelta(hours=hour)
        run = store.begin_run(Run(pipeline="flow", started=began))
        store.update_run(replace(run, state=State.COMPLETE, ended=began + timedelta(minutes=30)))

    _, out, _ = spanwise("schedule", "status", "flow")
    (project / "spanwise.toml").write_text("[alerts]\nforecast_load = 0.4\n")
    (one,) = json.loads(spanwise("schedule", "status", "--root", ".spanwise", "--json")[1])["schedules"]

    assert re.search(r"a run takes: +30 min 00 s \(95 %: 30 min 00 s\); based on 10 runs\n", out)
    assert re.search(r"of the interval: +50% of 1 h 00 min\n", out)
    assert one["forecast"]["load"] == pytest.approx(0.5)
    assert one["forecast"]["alarm"] == "a run takes up to 30 min 00 s of the 1 h 00 min between two ticks"


def test_where_nothing_was_scheduled_nothing_is_wrong(project, spanwise):
    """Looking makes no database."""
    for command in ("status", "missed", "check"):
        assert spanwise("schedule", command)[0] == 0
    assert not (project / ".spanwise" / "metadata.db").exists()


def test_simulate_plays_the_schedule(file, spanwise):
    """Through the code that decides."""
    words = ("schedule", "simulate", file, "--from", "2026-03-01T00:00", "--to", "2026-03-01T00:10")

    code, out, _ = spanwise(*words, "--duration", "90s")
    assert code == 0
    assert "the run of 2026-03-01T00:00Z had not ended" in out

    assert spanwise(*words, "--duration-from-history")[0] == 2  # there is none
