"""What became of ticks is told alike by the commands, the client, the page, the API and the ledger."""

import json
import os
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from spanwise.orchestrator import Run, State
from spanwise.scheduler.ledger.missed import list_missed
from spanwise.scheduler.ledger.pauses import pause_schedule
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import claim_tick
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.span_rule import days_before
from spanwise.scheduler.schedule.ticks import ticks
from spanwise.scheduler.schedule.timetable import Timetable
from tests.scheduler.web.test_pages import text_of

HISTORIES = int(os.environ.get("SPANWISE_TEST_HISTORIES", "4"))  # the full form: 200

DAY = timedelta(days=1)


def live(dice: random.Random, store, key: str, now: datetime, outcomes: Sequence[TickOutcome]) -> None:
    """Some days of a schedule: its ticks end in every way, or nobody takes the last of them."""
    pipeline, _, part = key.partition(":")
    table = Timetable(key, cron=f"0 {dice.randrange(24)} * * *", span=days_before(1), division=HALVES if part else ())
    since = now - dice.randint(2, 6) * DAY
    put_schedule(store, ScheduleRecord(timetable=table, since=since, source=f"{pipeline}.py", calendar="day"))
    come = list(ticks(table, since, now))
    for tick in come[: len(come) - dice.choice([0, 0, 1, 2])]:
        outcome = dice.choice(outcomes)
        run = None
        if outcome in (TickOutcome.RAN, TickOutcome.FAILED, TickOutcome.KILLED):
            state = State.COMPLETE if outcome is TickOutcome.RAN else State.FAILED
            run = store.begin_run(Run(pipeline=pipeline, state=state, calendar="day", started=tick.at)).number
        end = TickEnd(outcome=outcome, why="" if outcome is TickOutcome.RAN else f"why <{tick.name}>", run=run)
        claim_tick(store, key, tick, holder=1, now=tick.at, end=end)


def test_every_place_tells_what_became_of_ticks_alike(past, site, page, spanwise):
    """Which are missed, and what is wrong: of whole pipelines, parts, paused ones, and some that never began a run."""
    dice, now = random.Random(HISTORIES), datetime.now(UTC)
    keys = []
    for number in range(HISTORIES):
        name = f"p{number}"
        keys += (mine := [f"{name}:ingest", f"{name}:train"] if number % 3 == 2 else [name])
        for key in mine:
            live(dice, past.store, key, now, list(TickOutcome) if number else [TickOutcome.MISSED])
        if number % 4 == 3:
            pause_schedule(past.store, name, who="ann@host", why="new disks", now=now)

    missed = {key: [(r.tick.name, r.end.outcome.value) for r in list_missed(past.store, key)] for key in keys}
    listed = json.loads(spanwise("schedule", "missed", "--json")[1])
    checked = {each["pipeline"]: each["problems"] for each in json.loads(spanwise("schedule", "check", "--json")[1])}
    known = {each["pipeline"]: each for each in json.loads(spanwise("schedule", "status", "--json")[1])["schedules"]}
    client = {status.schedule.key: status for status in site.client.schedules()}
    overview = {each["pipeline"]: each for each in page("/api/pipelines").json()}
    home = page("/")

    assert sum(map(len, missed.values())) > HISTORIES
    assert any(checked.values())
    for key in keys:
        about, name = key, key.partition(":")[0]
        document = page(f"/api/pipelines/{name}/schedule").json()
        shown = page(f"/p/{name}/schedule")
        rows = re.findall(r'id="missed-([^"]+)"', shown.text)
        assert [(e["tick"], e["outcome"]) for e in listed if e["pipeline"] == key] == missed[key], about
        assert [(e["tick"], e["outcome"]) for e in document["missed"] if e["pipeline"] == key] == missed[key], about
        assert client[key].missed == known[key]["missed"] == len(missed[key]), about
        assert sum(tick in rows for tick, _ in missed[key]) == len(missed[key]), about
        assert f"{len(missed[key])} missed" in text_of(shown) or not missed[key], about
        (again,) = [each for each in document["schedules"] if each["pipeline"] == key]
        assert again["problems"] == checked[key] == known[key]["problems"], about
        urgent = f'<tr id="row-{name}" class="urgent">' in home.text
        mine = [k for k in keys if k.partition(":")[0] == name]
        if any(checked[k] for k in mine):
            assert urgent, (about, overview[name])
        elif overview[name]["health"] == "on time":
            assert not urgent
            assert not any(missed[k] for k in mine), about


def test_a_pipeline_is_as_healthy_for_programs_as_on_the_overview(past, page):
    """The API looked at ten runs, so that it overlooked a failure that the page showed."""
    for nodes, state in [(("Trainer",), State.FAILED), *[(("ExampleGen",), State.COMPLETE)] * 12]:
        past.store.update_run(replace(past.begin(nodes=nodes), state=state))

    assert page("/api/pipelines").json()[0]["health"] == "failing"
    assert '<tr id="row-flights" class="urgent">' in page("/").text


def test_commands_the_api_and_the_client_say_the_same_of_runs_and_artifacts(past, site, page, spanwise):
    """A backfill, a correction, a run that died, and what each command prints of them with `--json`."""
    days = []
    for number in range(3):
        past.begin(15_710 + number)
        days.append(past.ingest(15_710 + number))
        past.count(days[-1])
        model = past.train(list(days))
        past.evaluate(model, days)
        past.push(model, 100 + number)
    past.begin(15_711)
    past.ingest(15_711, version=2)
    past.store.begin_run(Run(pipeline="flights", calendar="day", started=datetime.now(UTC)))
    assert spanwise("unbless", model.name, "--because", "too slow")[0] == 0

    def printed(*words):
        return json.loads(spanwise(*words, "--json")[1])

    last = printed("runs", "flights")
    assert last[0]["error"]
    assert page("/api/pipelines/flights/runs").json() == last
    assert page("/api/pipelines").json()[0]["latest"] == last[0]
    for number in (2, 3, 5):
        shown = printed("show", f"flights/{number}")
        assert page(f"/api/runs/flights/{number}").json() == shown
        assert json.loads(json.dumps(site.client.run_record(f"flights/{number}").document())) == shown
    differences = printed("diff", "flights/2", "flights/3")
    assert differences["differences"]
    assert page("/api/runs/flights/3/diff").json() == differences
    assert page("/api/runs/flights/3/why/Trainer").json() == printed("why", "flights/3", "Trainer")
    assert page("/api/pipelines/flights/tainted/2013-01-06").json() == printed(
        "tainted", "flights", "--span", "2013-01-06"
    )
    for direction, name in (("up", model.name), ("down", days[0].name)):
        lineage = printed("lineage", name, f"--{direction}", "--depth", "3")
        artifact = site.client.artifact(name).artifact
        assert lineage["verdicts"] or direction == "down"
        assert page(f"/api/artifacts/{artifact.id}/lineage?direction={direction}").json() == lineage
