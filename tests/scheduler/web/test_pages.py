"""Pages: each shows what the metadata knows, and a useful page for what it does not know."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spanwise.orchestrator import Execution, State, lease
from spanwise.orchestrator.errors import StorageError
from spanwise.orchestrator.placement import Placement, record_placement
from spanwise.orchestrator.run import Trigger
from spanwise.scheduler.client import ArtifactRecord
from spanwise.scheduler.ledger.pauses import pause_schedule
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import claim_ended_ticks, claim_tick
from spanwise.scheduler.schedule.division import HALVES
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.span_rule import SourceRule, days_before, months_before
from spanwise.scheduler.schedule.ticks import Tick, ticks
from spanwise.scheduler.schedule.timetable import Timetable
from spanwise.scheduler.web.actions.jobs import record_request
from spanwise.scheduler.web.pages import Renderer
from spanwise.scheduler.web.queries import schedules
from spanwise.scheduler.web.queries.logs import read_log
from spanwise.scheduler.web.routes import ROUTES
from tests.scheduler.client.conftest import FIRST
from tests.scheduler.client.test_client import a_week
from tests.scheduler.web.conftest import ask

HOSTILE = "<script>alert(1)</script>"


def text_of(response):
    """What a reader sees, tags left out."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", response.text))


def test_a_root_where_nothing_ran_teaches_the_first_command(page):
    """Instead of an empty table."""
    found = page("/")

    assert found.status_code == 200
    assert "Nothing has run in" in text_of(found)
    assert "spanwise run pipeline.py" in text_of(found)


def test_commands_of_a_file_with_a_space_in_its_name_are_quoted(past, page):
    """Pasted, they would name two files."""
    table = Timetable("flights", cron="0 3 * * *", span=days_before(1))
    began = datetime(2013, 1, 3, 3, tzinfo=UTC)
    put_schedule(past.store, ScheduleRecord(timetable=table, since=began, source="/p q/f.py:daily", calendar="day"))
    past.begin(FIRST)
    past.ingest(FIRST)
    past.store.begin_run(replace(past.run, number=0, source="/p q/f.py:flights"))
    past.store.begin_run(replace(past.run, pipeline="other", number=0, source="/p q/o.py:o"))
    places = "/p/other/schedule", "/p/flights/spans/2013-01-09", "/p/flights/schedule"
    never, span, overdue = (unescape(page(place).text) for place in places)

    assert "<code>spanwise schedule start '/p q/o.py'</code>" in never
    assert "<code>spanwise run '/p q/f.py:flights' --span 2013-01-09</code>" in span
    assert "<code>spanwise schedule start '/p q/f.py:daily'</code>" in overdue


def test_commands_name_the_root_that_the_server_was_started_with(past, site):
    """Where somebody pastes them, another root may be found."""
    past.begin(FIRST)
    past.do("Trainer", state=State.FAILED, error="Wait.\nOr run it:  spanwise run flights.py --span 2013-01-01")
    with ask(replace(site, renderer=Renderer(["--root", "/my root"]))) as browser:
        run, why = (unescape(browser.get(f"/runs/flights/1{each}").text) for each in ("", "/why/Trainer"))
        form = unescape(browser.get("/do/run?file=its+mine.py&span=2013-01-01").text)

    assert "spanwise run flights.py --span 2013-01-01 --root '/my root'" in run
    assert "<code>spanwise why flights/1 Trainer --root '/my root'</code>" in why
    assert "<code>spanwise run --span=2013-01-01 --root '/my root' -- 'its mine.py'</code>" in form


def test_the_overview_puts_first_what_needs_a_person(past, page):
    """With the command that repairs it; what serves has its window and its metric."""
    a_week(past)
    past.store.begin_run(replace(past.run, pipeline="calm", number=0, state=State.COMPLETE))
    found = page("/")

    assert found.text.index('id="row-flights"') < found.text.index('id="row-calm"')
    assert "run 5 was left open by a process that is gone" in text_of(found)
    assert "spanwise stop flights/5" in text_of(found)
    assert "2013-01-02 to 2013-01-03" in text_of(found)
    assert "auc 0.71" in text_of(found)


def test_the_grid_shows_nodes_by_run_and_stays_put_while_new_runs_come(past, page):
    """An older page begins below a run, not after a number of runs; filters keep to their runs."""
    a_week(past)
    older = page("/p/flights/runs?before=3")
    past.begin(FIRST + 9)

    assert page("/p/flights/runs?before=3").text == older.text
    assert 'id="run-3"' not in older.text
    assert 'id="run-2"' in older.text
    failed = page("/p/flights/runs?state=failed")
    assert re.findall(r'id="run-(\d+)"', failed.text) == ["4"]
    assert "no such day" in text_of(failed)
    assert re.findall(r'id="run-(\d+)"', page("/p/flights/runs?text=SUCH+DAY").text) == ["4"]
    assert re.findall(r'id="run-(\d+)"', page("/p/flights/runs?span=2013-01-0&trigger=manual&limit=2").text) == [
        "5",
        "4",
    ]


def test_a_run_shows_its_nodes_what_they_made_and_why(past, page):
    """And what it read leads to the artifact."""
    a_week(past)
    found = page("/runs/flights/3")

    assert [
        name for name in ("ExampleGen", "Trainer", "Evaluator", "Pusher") if f'id="node-{name}"' not in found.text
    ] == []
    assert "auc 0.71" in text_of(found)
    assert "flights/ExampleGen/examples/15707/1" in found.text
    assert "no cached result matched" in text_of(found)
    assert "What differs from run 2" in text_of(found)
    assert page("/runs/flights/3/diff").status_code == page("/runs/flights/3/why/Trainer").status_code == 200


def test_a_node_that_an_engine_executes_links_to_the_page_of_the_engine(past, page):
    """With the machine that did it; the engine is told nothing of where the link stands."""
    a_week(past)
    execution = past.store.executions(past.store.run("flights", 3))[0]
    record_placement(
        past.store, execution, Placement(place="ray:auto: one", page_url="http://cluster:8265/#/actors/a1")
    )

    found = page("/runs/flights/3")

    assert "ray:auto: one" in text_of(found)
    assert '<a href="http://cluster:8265/#/actors/a1" rel="noreferrer">' in found.text


def test_spans_are_drawn_with_their_state_and_listed(past, page):
    """A span of its own page has its versions, its runs and the models that learned from it."""
    a_week(past)
    found = page("/p/flights/spans")
    one = page("/p/flights/spans/2013-01-02")

    assert re.findall(r'class="cell ([\w -]+)" data-span', found.text) == [
        "ingested",
        "ingested window",
        "ingested window",
        "missing",
        "failed",
        "running",
    ]
    assert "2013-01-05: failed" in found.text
    assert "flights/ExampleGen/examples/15707/1" in text_of(one)
    assert "flights/Trainer/model/1" in text_of(one)
    assert text_of(page("/p/flights/spans?first=2013-01-09&last=2013-01-01")).count("is after") == 1


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/p/flihgts/runs", 404, "Did you mean flights?"),
        ("/runs/flights/99", 404, "its runs are 1 to"),
        ("/runs/flights/x", 404, "not the number of a run"),
        (f"/a/{10**20}", 404, f"There is no artifact {10**20}"),
        (f"/a/{'9' * 5000}", 404, "There is no artifact"),
        (f"/download/{10**20}/x", 404, f"There is no artifact {10**20}"),
        (f"/download/{'9' * 5000}/x", 404, "There is no artifact"),
        (f"/runs/flights/{'9' * 5000}/log/Trainer/download", 404, "not the number of a run"),
        ("/runs/flights/3/log/Nobody", 404, "has no log"),
        ("/runs/flights/3/why/Trainr", 404, "Did you mean Trainer?"),
        ("/p/flights/spans?first=yesterday", 400, "is not a span"),
        ("/p/flights/runs?limit=-7", 200, "Runs"),
        ("/p/flights/runs?before=abc", 400, "before=abc is not a whole number."),
        ("/p/flights/tainted?span=2013-01-01&version=v2", 400, "version=v2 is not a whole number."),
        ("/p/flights/runs?before=--7", 400, "before=--7 is not a whole number."),
        ("/p/flights/spans?node=Nobody", 404, "has ingested no spans recently; these have: ExampleGen"),
        ("/p/flights/spans?first=0001-01-01&last=9999-12-31", 200, "Spans 2013-01-01 to 2013-01-06"),
        ("/p/flights/spans?first=2050-01-01&last=9999-12-31", 200, "to 9999-12-31"),
        ("/runs/flights/3/log/Trainer/download?attempt=9", 404, "has no log"),
        ("/jobs/x", 404, "not the number of a job"),
        ("/nowhere", 404, "There is no page"),
        ("/../../etc/passwd", 404, "There is no page"),
    ],
)
def test_what_is_not_there_is_a_page_in_our_words(past, page, path, status, said):
    """Never a stack trace."""
    a_week(past)
    found = page(path)

    assert found.status_code == status
    assert said in text_of(found).replace("&#39;", "'")


def test_names_from_data_are_text_wherever_they_appear(past, page):
    """Errors, causes, nodes and spans are written as they are, never as HTML."""
    run = past.begin(FIRST, cause=HOSTILE)
    past.do(HOSTILE.replace("/", ""), state=State.FAILED, parts={"x": "1"}, parameters={HOSTILE: HOSTILE})
    past.ingest(FIRST)
    past.store.update_run(
        replace(run, state=State.FAILED, error=HOSTILE, nodes=(HOSTILE.replace("/", ""), "ExampleGen"))
    )

    for path in ("/", "/p/flights/runs", "/runs/flights/1", "/p/flights/spans", f"/p/flights/runs?text={HOSTILE}"):
        found = page(path)
        assert found.status_code == 200
        assert "<script>alert" not in found.text
    assert "&lt;script&gt;alert(1)" in page("/runs/flights/1").text


def test_a_log_of_any_size_is_read_by_its_end(tmp_path):
    """Two gigabytes of nothing cost nothing; what is searched is bounded too."""
    file = tmp_path / "log"
    with file.open("wb") as opened:
        opened.truncate(2 << 30)
        opened.seek(0, 2)
        opened.write(b"\nthe last line \x1b[31mred\x1b[0m\n")

    assert read_log(file.open("rb")).text.endswith("the last line red\n")
    assert read_log(file.open("rb")).cut
    assert read_log(file.open("rb"), "LAST").hits == 1
    assert read_log(None).gone


def test_an_artifact_shows_its_rows_files_and_lineage(past, page):
    """A table of five thousand columns shows the first fifty; a page of it is in a frame that has no rights."""
    past.begin(FIRST)
    examples = past.ingest(FIRST)
    folder = examples.path / "Split-train"
    folder.mkdir()
    pq.write_table(pa.table({f"column_{n}": [n] for n in range(5000)}), folder / "a.parquet")
    (examples.path / "report.html").write_text(f"<h1>made by users {HOSTILE}</h1>")
    (examples.path / "notes.txt").write_text(HOSTILE)
    model = past.train([examples])
    found = page(f"/a/{examples.id}")
    frame = re.search(r'<iframe sandbox src="([^"]+)"', found.text)[1]
    inside = page(frame)

    assert "column_49" in text_of(found)
    assert "column_50 " not in text_of(found)
    assert "4,950 more columns" in text_of(found)
    assert f'href="/a/{model.id}"' in found.text
    assert HOSTILE not in found.text
    assert inside.status_code == 200
    assert inside.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert page(frame[:-1] + "x").status_code == 403
    assert page(frame.replace("/file/", "/file/1")).status_code == 403
    assert page(f"/download/{examples.id}/notes.txt").headers["content-disposition"].startswith("attachment")
    for name in ("../../metadata.db", "..%2f..%2fmetadata.db", "/etc/passwd", "Split-train", ""):
        assert page(f"/download/{examples.id}/{name}").status_code == 404
    (examples.path / "secret").symlink_to("/etc/passwd")
    assert page(f"/download/{examples.id}/secret").status_code == 404


def test_an_artifact_is_shown_while_its_storage_is_away(past, page, monkeypatch):
    """What is recorded needs no storage; the page says why it shows no files."""

    def fail(_record):
        raise StorageError("s3://lake/root: the storage could not be reached.")

    past.begin(FIRST)
    examples = past.ingest(FIRST)
    monkeypatch.setattr(ArtifactRecord, "sizes", fail)
    monkeypatch.setattr(ArtifactRecord, "present", property(fail))

    found = page(f"/a/{examples.id}")

    assert found.status_code == 200
    assert page(f"/download/{examples.id}/notes.txt").status_code == 503
    assert "the storage could not be reached" in text_of(found)
    assert examples.name in text_of(found)


def test_times_are_in_the_zone_of_the_schedule(past, page):
    """On every page of the pipeline, also in what comes up to date by itself; in UTC where it was never scheduled."""
    past.begin(FIRST, started=datetime(2026, 3, 9, 2, 30, tzinfo=UTC), ended=datetime(2026, 3, 9, 3, tzinfo=UTC))
    before = text_of(page("/p/flights/runs"))
    table = Timetable("calm", cron="0 3 * * *", zone="America/New_York", span=days_before(1))
    past.store.begin_run(replace(past.run, pipeline="calm", number=0, nodes=("One",)))
    put_schedule(past.store, ScheduleRecord(timetable=table, since=datetime.now(UTC), source="f.py", calendar="day"))

    assert "2026-03-09 02:30:00 UTC" in before
    for path in ("/p/calm/runs", "/runs/calm/1"):
        assert "2026-03-08 22:30:00 EDT" in text_of(page(path))
        assert "Times are in America/New_York." in text_of(page(path))


def test_every_page_has_a_document(past, site, page):
    """Named in its head; what a filter of the page selects, the document selects too."""
    a_week(past)
    number = record_request(site.store, ["gc", "--dry-run"], "ann").number
    past.do("Trainer", state=State.FAILED)
    log = past.folder / "log"
    log.write_text("out of memory\n")
    run = past.store.run("flights", past.run.number)
    (failed,) = (e for e in past.store.executions_of([run]) if e.node == "Trainer")
    past.store.begin(replace(failed, id=0, attempt=2, log=str(log), state=State.RUNNING))
    places = {
        "pipeline": "flights", "span": "2013-01-02", "id": "1", "action": "gc", "number": str(run.number),
        "node": "Trainer",
    }  # fmt: skip
    twins = {}
    for route in ROUTES:
        path = re.sub(r"[(][?]P<(\w+)>[^)]*[)]", lambda place: places[place[1]], route.pattern.pattern)
        path = path.replace(f"/jobs/{run.number}", f"/jobs/{number}")
        found = page(f"{path}?q=light&span=2013-01-02")
        assert found.status_code == 200, path
        twin = re.search(r'type="application/json" href="([^"]+)"', found.text)[1].replace("&amp;", "&")
        twins[path] = page(twin)
        assert twins[path].status_code == 200, twin

    assert [run["number"] for run in twins["/p/flights/runs"].json()] == [2]
    assert twins["/p/flights/tainted"].json()["span_label"] == "2013-01-02"
    assert twins["/search"].json()[0]["name"] == "flights"
    assert twins[f"/jobs/{number}"].json()["command"] == "spanwise gc --dry-run"
    assert len(twins["/p/flights/spans/2013-01-02"].json()["versions"]) == 1


def test_a_missed_tick_is_given_up_by_a_form_that_names_it(past, page):
    """A row by the name of its tick, since others may have its span; all at once by their spans, where there are several."""
    table = Timetable("flights", cron="0 3 * * *", zone="UTC", span=days_before(1))
    past.begin(FIRST)
    began = datetime(2013, 1, 3, 3, tzinfo=UTC)
    put_schedule(past.store, ScheduleRecord(timetable=table, since=began, source="flights.py", calendar="day"))
    missed = TickEnd(outcome=TickOutcome.MISSED, why="no scheduler ran")
    for number in range(2):
        at = began + timedelta(days=number)
        tick = Tick(at=at, name=f"{at:%Y-%m-%dT%H:%M}", wall=at, span=FIRST + 1 + number)
        claim_tick(past.store, "flights", tick, holder=1, now=at, end=missed)
    found = page("/p/flights/schedule")

    assert "2 missed" in text_of(found)
    assert 'href="/do/acknowledge?pipeline=flights&amp;tick=2013-01-03T03%3A00"' in found.text
    assert 'href="/do/acknowledge?pipeline=flights&amp;span=2013-01-02..2013-01-03"' in found.text
    form = page("/do/acknowledge?pipeline=flights&tick=2013-01-03T03:00&because=a+holiday")
    assert "spanwise schedule acknowledge --tick=2013-01-03T03:00 " in form.text


def test_a_pipeline_that_is_scheduled_and_never_began_a_run_is_shown(past, page):
    """Its data has never come, say: the overview has it among those that need a person, and the search finds it."""
    table = Timetable("fresh", cron="0 3 * * *", span=days_before(1))
    began = datetime.now(UTC)
    put_schedule(past.store, ScheduleRecord(timetable=table, since=began, source="fresh.py", calendar="day"))
    assert "on time" in text_of(page("/"))
    tick = next(ticks(table, began - timedelta(days=2)))
    failed = TickEnd(outcome=TickOutcome.FAILED, why="ExampleGen found no span")
    claim_tick(past.store, "fresh", tick, holder=1, now=began, end=failed)

    assert page("/").text.index('href="/p/fresh/schedule"') > 0
    (described,) = page("/api/pipelines").json()
    assert (described["health"], described["why"], described["latest"]) == ("late", "1 missed tick to backfill", None)
    assert "ExampleGen found no span" in text_of(page("/p/fresh/schedule"))
    assert len(page("/api/pipelines/fresh/schedule").json()["missed"]) == 1
    assert 'href="/p/fresh/schedule"' in page("/search?q=fres").text


def test_the_remedy_of_a_missed_tick_is_what_recovers_it(past, page):
    """One of a part that trains on the newest has no span: no backfill does."""
    began = datetime.now(UTC)
    table = Timetable("fresh:train", cron="0 3 * * *", division=HALVES)
    put_schedule(past.store, ScheduleRecord(timetable=table, since=began, source="fresh.py:apart", calendar="day"))
    claim_tick(
        past.store,
        "fresh:train",
        next(ticks(table, began)),
        holder=1,
        now=began,
        end=TickEnd(outcome=TickOutcome.MISSED),
    )

    text = text_of(page("/"))

    assert "spanwise run fresh.py:apart" in text
    assert "backfill" not in text.partition("fresh.py:apart")[0].rpartition("spanwise")[2]
    assert "/do/run?file=fresh.py" in page("/").text


@pytest.mark.parametrize(
    ("last", "options", "form"), [((), "", "&amp;first=Recent"), (("Trainer",), " --to Trainer", None)]
)
def test_the_remedy_of_what_a_part_has_missed_is_a_run_of_this_part(past, page, last, options, form):
    """As a form where that has a field for it, else as a command."""
    began = datetime.now(UTC) - timedelta(days=1)
    table = Timetable("fresh:train", cron="0 3 * * *", division=HALVES)
    missed = TickEnd(outcome=TickOutcome.MISSED)
    known = ScheduleRecord(timetable=table, since=began, source="fresh.py", calendar="day", first=("Recent",))
    put_schedule(past.store, replace(known, last=last))
    claim_tick(past.store, "fresh:train", next(ticks(table, began)), holder=1, now=began, end=missed)

    assert f"spanwise run fresh.py --from Recent{options} Copy" in text_of(page("/"))
    assert ("/do/run?file=fresh.py" in page("/").text) is (form is not None)
    assert f"/do/run?file=fresh.py{form}" in page("/").text or form is None


def test_a_simulation_of_a_part_says_on_the_page_what_it_leaves_out_and_names_the_spans_of_all_nodes(past, page):
    """A part looked as if its ticks never waited for another one; of the lost spans, only the first node had any."""
    months, days = months_before(1), days_before(1)
    sources = (SourceRule("prices", months), SourceRule("clicks", days))
    for key, division, terms in [
        ("apart:ingest", HALVES, {"span": months, "sources": sources}),
        ("whole", (), {"span": days}),
    ]:
        table = Timetable(key, cron="0 3 * * *", division=division, **terms)
        put_schedule(past.store, ScheduleRecord(timetable=table, since=datetime.now(UTC), source="p.py"))
    asked = "schedule?from=2026-03-01&to=2026-03-03&duration=30h"
    part, whole = (text_of(page(f"/p/{name}/{asked}")) for name in ("apart", "whole"))

    assert ["without the runs of the other parts" in text for text in (part, whole)] == [True, False]
    assert "no run for clicks 2026-03-01" in part


def test_a_pause_of_a_part_is_one_of_its_pipeline(past, page):
    """So the page names the pipeline, not the part."""
    began = datetime.now(UTC)
    for part in ("ingest", "train"):
        table = Timetable(f"fresh:{part}", cron="0 3 * * *", division=HALVES)
        put_schedule(past.store, ScheduleRecord(timetable=table, since=began, source="fresh.py:apart"))
    assert 'href="/do/pause?pipeline=fresh"' in page("/p/fresh/schedule").text
    assert "/do/pause?pipeline=fresh:" not in page("/p/fresh/schedule").text.replace("%3A", ":")

    pause_schedule(past.store, "fresh", who="ann", why="disks", now=began)

    assert "spanwise schedule resume fresh " in text_of(page("/")) + " "
    assert 'href="/do/unpause?pipeline=fresh"' in page("/p/fresh/schedule").text


def test_missed_ticks_are_all_counted_and_given_up_with_all_their_spans(past, page, monkeypatch):
    """The newest are listed; one that stands for a long time without a scheduler is given up as a whole."""
    table = Timetable("flights", cron="0 3 * * *", span=days_before(1))
    began = datetime(2013, 1, 3, 3, tzinfo=UTC)
    put_schedule(past.store, ScheduleRecord(timetable=table, since=began, source="flights.py", calendar="day"))
    monkeypatch.setattr(schedules, "_MOST_PAST", 3)
    moments = [began + timedelta(days=number) for number in range(6)]
    come = [Tick(at=at, name=f"{at:%Y-%m-%d}", wall=at, span=FIRST + 40 + n) for n, at in enumerate(moments)]
    missed = TickEnd(outcome=TickOutcome.MISSED, why="no scheduler ran")
    claim_tick(past.store, "flights", come[0], holder=1, now=began, end=replace(missed, first_span=FIRST))
    first = page("/p/flights/schedule")
    claim_ended_ticks(past.store, "flights", [(tick, missed) for tick in come[1:]], holder=1, now=began)
    found = page("/p/flights/schedule")

    assert "2013-01-01..2013-02-10" in text_of(first)
    assert 'href="/do/acknowledge?pipeline=flights&amp;tick=2013-01-03"' in first.text
    assert "6 missed, the newest 3" in text_of(found)
    assert 'href="/do/acknowledge?pipeline=flights&amp;span=2013-01-01..2013-02-15"' in found.text


def test_a_run_overruns_when_it_takes_longer_than_runs_of_the_same_nodes(past, page):
    """Each run of the part that trains was said to overrun, since runs that ingest take seconds."""
    now = datetime.now(UTC)
    held = lease.acquire(past.store, "flights", "a run")
    lengths = [(("ExampleGen",), 10)] * 9 + [(("Trainer",), 1200)] * 3
    for nodes, length_s in lengths:
        past.begin(nodes=nodes, started=now - timedelta(hours=9), ended=now - timedelta(hours=9, seconds=-length_s))

    def say(nodes):
        run = past.begin(nodes=nodes, started=now - timedelta(minutes=9), token=held.token)
        past.store.update_run(replace(run, state=State.RUNNING))
        return page("/api/pipelines").json()[0]["health"]

    assert [say(("Trainer",)), say(("ExampleGen",)), say(("Trainer", "Pusher"))] == [
        "running",
        "overrunning",
        "running",
    ]
    held.release()


@pytest.mark.parametrize("paused", [True, False])
def test_the_problems_of_all_parts_are_seen_on_the_overview(past, page, paused):
    """It ended at the first part: the stale model of the next was hidden by a pause, or by a missed tick of the first."""
    now = datetime.now(UTC)
    for half, fresh in zip(HALVES, (None, timedelta(days=1)), strict=True):
        key = f"flights:{half.name}"
        table = Timetable(
            key, cron=f"0 3 1 {(now.month + 5) % 12 + 1} *", span=days_before(1), division=HALVES, freshness=fresh
        )
        put_schedule(past.store, ScheduleRecord(timetable=table, since=now - timedelta(days=9), source="flights.py"))
    if paused:
        pause_schedule(past.store, "flights", who="ann@host", why="new disks", now=now)
    failed = TickEnd(outcome=TickOutcome.FAILED, why="it broke")
    tick = Tick(at=now - timedelta(days=2), name="then", wall=now - timedelta(days=2), span=FIRST)
    claim_tick(past.store, "flights:ingest", tick, holder=1, now=now, end=failed)

    (described,) = page("/api/pipelines").json()

    reason = ["by ann@host, until it is resumed: new disks"] if paused else []
    assert described["why"] == "; ".join([*reason, "no model was ever pushed; 24 h 00 min are allowed"])
    assert described["health"] == ("paused" if paused else "late")
    assert '<tr id="row-flights" class="urgent">' in page("/").text


def test_a_tick_that_nobody_takes_comes_with_the_scheduler_to_start_and_a_button_that_runs_it(past, page):
    """On the overview and on the page of the schedule."""
    past.begin(FIRST, started=datetime.now(UTC), ended=datetime.now(UTC))
    table = Timetable("flights", cron="0 * * * *", zone="UTC", span=days_before(1))
    since = datetime.now(UTC) - timedelta(hours=3)
    put_schedule(past.store, ScheduleRecord(timetable=table, since=since, source="flights.py", calendar="day"))

    for path in ("/", "/p/flights/schedule"):
        found = page(path)
        assert "so no scheduler runs" in text_of(found)
        assert "spanwise schedule start flights.py" in text_of(found)
        assert '<a class="button" href="/do/tick?file=flights.py">Run what is due</a>' in found.text


@pytest.mark.parametrize(("key", "command"), [("flights", "schedule start"), ("flights:data", "watch")])
def test_what_takes_a_tick_that_nobody_takes_goes_to_the_folder_of_its_file(past, page, tmp_path, key, command):
    """On both pages. Of a watched pipeline it was a scheduler and a button, which take no ticks of arrived data."""
    now, there = datetime.now(UTC), tmp_path / "there"
    there.mkdir()
    (there / "flights.py").write_text("")
    table = Timetable(key, cron="" if command == "watch" else "0 * * * *", span=days_before(1))
    known = ScheduleRecord(timetable=table, since=now, source=f"{there}/flights.py:flights", folder=str(there))
    put_schedule(past.store, known)
    tick = Tick(at=now - timedelta(hours=1), name="then", wall=now, span=FIRST)
    claim_tick(past.store, key, tick, holder=9, now=now)

    for path in ("/", "/p/flights/schedule"):
        found = page(path)
        assert f"cd {there} && spanwise {command} flights.py:flights " in unescape(text_of(found))
        assert ("/do/tick" in found.text) is (command != "watch")


def test_a_failure_says_why_where_it_is_first_seen(past, page):
    """What the node has said is on the overview and in the list of runs."""
    run = past.begin(FIRST, nodes=("ExampleGen",))
    begun = past.store.begin(Execution(pipeline="flights", run=1, node="ExampleGen", component="ExampleGen"))
    past.store.publish(replace(begun, state=State.FAILED, error="no file of span 2013-01-01\nin data"))
    past.store.update_run(replace(run, state=State.FAILED, error="ExampleGen failed"))

    for path in ("/", "/p/flights/runs"):
        assert "ExampleGen failed: no file of span 2013-01-01" in text_of(page(path))
    pushed = past.begin(FIRST, trigger=Trigger.PUSH)  # has nothing to resume
    past.store.update_run(replace(pushed, state=State.FAILED, error="rejected"))
    assert "spanwise logs flights/2" in text_of(page("/"))


def test_models_are_shown_with_metrics_beside_the_baseline(past, page):
    """As a chart with the table below it; two can be compared."""
    model = a_week(past)
    found = page("/p/flights/models")

    assert "auc" in text_of(found)
    assert "0.71" in text_of(found)
    assert "<b>serves</b>" in found.text
    assert "2013-01-03: auc 0.71" in found.text
    assert text_of(page(f"/p/flights/models?a={model.name}&b={model.name}")).count("learned from") == 1
    assert "flights/Trainer/model/1" in text_of(page("/p/flights/tainted?span=2013-01-02"))
    assert page("/p/flights/models?a=x&b=y").status_code == 404


def test_a_schedule_shows_ticks_and_simulates(past, page):
    """One that was never made says how; one that was paused says by whom, and until when."""
    a_week(past)
    assert "never scheduled" in text_of(page("/p/flights/schedule"))
    table = Timetable("flights", cron="0 3 * * *", zone="America/New_York", span=days_before(1))
    now = datetime.now(UTC)
    put_schedule(past.store, ScheduleRecord(timetable=table, since=now, source="flights.py", calendar="day"))
    until = datetime(2999, 1, 1, 11, tzinfo=UTC)
    pause_schedule(past.store, "flights", who="ann@host", why="new disks", now=now, until=until)
    found = page("/p/flights/schedule?from=2026-03-01&to=2026-03-15&duration=2h")

    assert "paused by ann@host, until 2999-01-01 06:00:00 EST: new disks" in text_of(found)
    assert "America/New_York" in text_of(found)
    assert "14 busy 8 % of the time" in re.sub(r" (&nbsp;|\s)+", " ", text_of(found))
    assert "is not a time" in text_of(page("/p/flights/schedule?from=soon&to=later&duration=2h")).replace("&#39;", "'")


@pytest.mark.parametrize(
    ("typed", "href"),
    [
        ("light", "/p/flights/runs"),
        ("flights/3", "/runs/flights/3"),
        ("2013-01-02", "/p/flights/spans/2013-01-02?node=ExampleGen"),
        ("flights/Trainer/model/1", "/a/"),
        ("NO SUCH DAY", "/runs/flights/4"),
    ],
)
def test_anything_typed_is_searched_for(past, page, typed, href):
    """By name or by a word of an error."""
    a_week(past)

    assert f'href="{href}' in page(f"/search?q={typed}").text
    assert "Nothing was found" in page(f"/search?q={typed}xyz").text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        *((f"limit={number}", "expected a whole number from 1 to 1000.") for number in ("1001", "0", "-1", "abc", "²")),
        ("before=0", "before=0: expected a whole number from 1 to "),
        (f"before={10**30}", "expected a whole number from 1 to "),
    ],
)
def test_the_api_refuses_a_number_that_it_does_not_take(past, page, query, said):
    """It never answers another question than the one that was asked."""
    a_week(past)
    refused = page(f"/api/pipelines/flights/runs?{query}")

    assert refused.status_code == 400
    assert said in refused.json()["error"]


def test_the_api_describes_which_values_it_takes(page):
    """Numbers with their bounds, and words."""
    paths = page("/api/openapi.json").json()["paths"]
    taken = {
        query["name"]: query["schema"]
        for path in ("/api/pipelines/{pipeline}/runs", "/api/artifacts/{id}/lineage")
        for query in paths[path]["get"]["parameters"]
        if query["in"] == "query"
    }

    assert taken["limit"] == {"type": "integer", "minimum": 1, "maximum": 1000}
    assert taken["direction"] == {"type": "string", "enum": ["up", "down"]}
    assert taken["state"] == {"type": "string"}


def test_the_api_gives_the_documents_of_the_commands(past, page, spanwise):
    """And describes itself; errors are documents too."""
    a_week(past)
    described = page("/api/openapi.json").json()

    assert page("/api/pipelines/flights/runs?limit=3").json() == json.loads(
        spanwise("runs", "--limit", "3", "--json")[1]
    )
    assert page("/api/runs/flights/3").json() == json.loads(spanwise("show", "flights/3", "--json")[1])
    assert [s["state"] for s in page("/api/pipelines/flights/spans").json()][-2:] == ["failed", "running"]
    assert page("/api/runs/flights/99").status_code == 404
    assert page("/api/runs/flights/99").json()["kind"] == "NotRecorded"
    assert page("/api/nothing").status_code == 404
    for asked in ("pipelines/flights/spans?first=garbage", "artifacts/1/lineage?direction=sideways"):
        garbled = page(f"/api/{asked}")
        assert (garbled.status_code, garbled.json()["kind"]) == (400, "UsageError")
    assert all({"400", "404"} <= {*each["get"]["responses"]} for each in described["paths"].values())
    without = [path for path in described["paths"] if "/log/" not in path and "/jobs/" not in path]  # there is none
    for path in without:
        asked = path.format(pipeline="flights", number=3, id=1, span="2013-01-02", node="Trainer")
        assert page(asked).status_code == 200, asked


def test_the_overview_looks_ahead_and_back(past, page):
    """The next tick with how long it is until then, when runs will overrun, and the way of the metric."""
    hours = timedelta(hours=1)
    for number in range(4):
        began = datetime.now(UTC) - (12 - 3 * number) * hours
        past.begin(FIRST + number, started=began, ended=began + 2 * hours)
        examples = past.ingest(FIRST + number)
        past.evaluate(past.train([examples]), [examples], auc=0.7 + number / 100)
    table = Timetable("flights", cron="0 * * * *", zone="UTC", span=days_before(1))
    put_schedule(past.store, ScheduleRecord(timetable=table, since=began, source="flights.py", calendar="day"))
    found = page("/")

    assert re.search(r'<time class="age"[^>]*>in \d+ (min|s)<', found.text)
    assert "first overrun expected" in text_of(found)
    assert re.search(r'<svg[^>]*class="spark".*?<polyline', found.text, re.DOTALL)


def test_a_pipeline_is_failing_until_what_has_failed_succeeds(past, page):
    """Not until data is ingested, a model pushed, or the past replayed; a Pusher may be renamed meanwhile."""
    every = ("ExampleGen", "Trainer", "Pusher")

    def health(nodes, **facts):
        past.begin(nodes=nodes)
        past.store.update_run(replace(past.run, **facts))
        return page("/api/pipelines").json()[0]["health"]

    assert health(every) == "not scheduled"
    assert health(every, state=State.FAILED, error="no memory left") == "failing"
    assert health(every[:1]) == "failing"
    assert health(every[2:], trigger=Trigger.PUSH) == "failing"
    assert health(every, replay=True) == "failing"
    assert page("/api/pipelines").json()[0]["why"] == "no memory left"
    assert health(every[2:], base=1) == "failing"
    assert health(every[1:], base=2) == "not scheduled"
    assert health(every[2:], trigger=Trigger.PUSH, state=State.FAILED) == "failing"
    assert health(every[2:], trigger=Trigger.PUSH) == "not scheduled"
    assert health(every, state=State.FAILED) == "failing"
    assert health((*every[:2], "Deploy")) == "not scheduled"


@pytest.mark.parametrize(
    "begun",
    [
        [(Trigger.MANUAL, ""), (Trigger.RESUME, "flights/1"), (Trigger.RESUME, "flights/2")],
        [(Trigger.SCHEDULE, "2026-03-01")] * 3,
    ],
    ids=["resumed", "retried"],
)
def test_what_continues_a_failed_run_has_succeeded_in_it(past, page, begun):
    """Of two last nodes, it does only the one that failed: the page proposed to resume what had been resumed."""
    for before, (trigger, cause) in enumerate(begun):
        past.begin(nodes=("Serve",) if before else ("ExampleGen", "Serve", "Tell"))
        state = State.FAILED if before < 2 else State.COMPLETE
        past.store.update_run(replace(past.run, trigger=trigger, cause=cause, base=before or None, state=state))

    assert page("/api/pipelines").json()[0]["health"] == "not scheduled"
