"""Several ExampleGens in one pipeline, each with spans and a calendar of its own, by the command line."""

import contextlib
import json
import re
import shlex
from datetime import UTC, datetime, timedelta

import pytest

from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.record import from_plain, to_plain
from spanwise.scheduler.ledger.schedules import ScheduleRecord, put_schedule
from spanwise.scheduler.ledger.ticks import claim_tick
from spanwise.scheduler.schedule.outcome import TickEnd, TickOutcome
from spanwise.scheduler.schedule.schedule import Schedule, timetables_of
from spanwise.scheduler.schedule.span_rule import days_before, months_before
from spanwise.scheduler.schedule.ticks import ticks
from spanwise.scheduler.web.queries.model_metrics import read_trained
from tests.scheduler import conftest
from tests.scheduler.web import conftest as pages

folder, spanwise, site = conftest.folder, conftest.spanwise, pages.site

PIPELINE = '''
"""Clicks are counted by the day, prices by the month; countries are a table that never changes."""

from spanwise import ExampleGen, Examples, Input, Output, Component, Pipeline, Report, RollingWindow


class Join(Component):
    def run(
        self,
        clicks: Input[list[Examples]],
        prices: Input[list[Examples]],
        countries: Input[Examples],
        report: Output[Report],
    ) -> None:
        labels = [",".join(str(each.span) for each in given) for given in (clicks, prices)]
        (report.path / "spans.txt").write_text(" ".join(labels))


def both() -> Pipeline:
    countries = ExampleGen(pattern="lake/countries/*.csv", name="countries")
    clicks = ExampleGen(pattern="lake/clicks/{YYYY}-{MM}-{DD}/v{VERSION}/*.csv", name="clicks")
    prices = ExampleGen(pattern="lake/prices/{YYYY}-{MM}/v{VERSION}/*.csv", name="prices")
    days = RollingWindow(clicks["examples"], size=2, name="days")
    months = RollingWindow(prices["examples"], size=2, name="months")
    join = Join(clicks=days["examples"], prices=months["examples"], countries=countries["examples"])
    return Pipeline("both", [countries, clicks, prices, days, months, join])
'''
DAYS = {"2026-11-20": 20777, "2026-11-21": 20778}
MONTHS = {"2026-10": 681, "2026-11": 682}


@pytest.fixture
def lake(folder):
    """Two days of clicks, two months of prices, and the countries."""
    (folder / "both.py").write_text(PIPELINE)

    def arrive(path):
        place = folder / "lake" / path
        place.mkdir(parents=True)
        (place / "rows.csv").write_text("a,b\n" + "".join(f"{row},{path}\n" for row in range(9)))

    for path in ("countries", *(f"clicks/{day}/v1" for day in DAYS), *(f"prices/{month}/v1" for month in MONTHS)):
        arrive(path)
    return arrive


def joined(folder):
    newest = max((folder / ".spanwise/both/Join/report").glob("*"), key=lambda path: int(path.name))
    return next(newest.rglob("spans.txt")).read_text()


def test_each_node_that_ingests_has_a_span_of_its_own(lake, folder, spanwise):
    """A run names a day of clicks and a month of prices; the table has no span. Records and lists say both."""
    spanwise(
        "run", "both.py", "--span", "clicks=2026-11-20", "--span", "prices=2026-10", "--to", "clicks", "--to", "prices"
    )

    code, out, err = spanwise("run", "both.py", "--span", "prices=2026-11", "--span", "clicks=2026-11-21")

    assert code == 0, out + err
    assert joined(folder) == "20777,20778 681,682"
    assert "of span clicks=2026-11-21, prices=2026-11: complete" in out + err
    assert "clicks=2026-11-21, prices=2026-11" in spanwise("runs")[1]
    assert re.search(r"span +clicks=2026-11-21, prices=2026-11\n", spanwise("show", "both/2")[1])
    assert re.findall(r"parameter +span = (.*)", spanwise("show", "both/2")[1]) == ["0", "2026-11-21", "2026-11"]
    shown = json.loads(spanwise("show", "both/2", "--json")[1])
    assert shown["spans"] == {"clicks": "2026-11-21", "prices": "2026-11"}
    windows = {
        w["node"]: [s["span_label"] for s in w["spans"]] for w in json.loads(spanwise("window", "both.py", "--json")[1])
    }
    assert windows == {"days": list(DAYS), "months": list(MONTHS)}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("2026-11-21",), "the nodes that ingest use different calendars"),
        (("clicks=2026-11-21",), "--span names no span for prices. Name each node that ingests."),
        (("clicks=2026-11", "prices=2026-11"), "'2026-11' is not a span. A span is a day here"),
        (("clicks=2026-11-21", "prices=2026-11", "countries=1"), "countries does not ingest spans"),
        (("clicks=2026-11-21", "clicks=2026-11-20"), "name each node once"),
        (("clicks=2026-11-21", "2026-11"), "name each node once"),
    ],
)
def test_a_span_that_is_not_clear_is_refused_with_an_example(lake, spanwise, words, reason):
    """Whose span is it? The message shows how to name each."""
    code, _, err = spanwise("run", "both.py", *(option for word in words for option in ("--span", word)))

    assert code == 2
    assert reason in err


def test_without_spans_each_takes_its_newest(lake, folder, spanwise):
    """As with one ExampleGen."""
    spanwise(
        "run", "both.py", "--span", "clicks=2026-11-20", "--span", "prices=2026-10", "--to", "clicks", "--to", "prices"
    )

    code, out, err = spanwise("run", "both.py")

    assert code == 0, out + err
    assert joined(folder) == "20777,20778 681,682"


def test_a_part_names_the_spans_of_what_it_ingests(lake, folder, spanwise):
    """A run of one source alone needs no span of the other."""
    code, out, err = spanwise("run", "both.py", "--only", "prices", "--span", "prices=2026-10")

    assert code == 0, out + err
    assert "of span prices=2026-10: complete" in out + err


def test_a_resumed_run_keeps_all_its_spans(lake, folder, spanwise):
    """What failed after ingesting goes on with the spans of the run."""
    spanwise(
        "run", "both.py", "--span", "clicks=2026-11-20", "--span", "prices=2026-10", "--to", "clicks", "--to", "prices"
    )
    lost = folder / "lake/prices/2026-11/v1/rows.csv"
    text = lost.read_text()
    lost.write_text("")
    code, out, err = spanwise("run", "both.py", "--span", "clicks=2026-11-21", "--span", "prices=2026-11")
    assert code == 1, out + err
    lost.write_text(text)

    code, out, err = spanwise("resume", "both/2")

    assert code == 0, out + err
    assert joined(folder) == "20777,20778 681,682"
    assert "of span clicks=2026-11-21, prices=2026-11: complete" in out + err


def test_one_source_is_backfilled_by_itself(lake, folder, spanwise):
    """A new version of a month is ingested and learned with the latest days; the days are not ingested again."""
    spanwise(
        "run", "both.py", "--span", "clicks=2026-11-20", "--span", "prices=2026-10", "--to", "clicks", "--to", "prices"
    )
    spanwise("run", "both.py", "--span", "clicks=2026-11-21", "--span", "prices=2026-11")
    lake("prices/2026-10/v2")

    code, out, err = spanwise("backfill", "both.py", "--span", "prices=2026-10")

    assert code == 0, out + err
    shown = json.loads(spanwise("show", "both/3", "--json")[1])
    assert (shown["spans"], "clicks" in shown["nodes"]) == ({"prices": "2026-10"}, False)
    windows = json.loads(spanwise("window", "both.py", "--json")[1])
    assert {w["node"]: [s["chosen"]["version"] for s in w["spans"]] for w in windows} == {
        "days": [1, 1],
        "months": [2, 1],
    }
    assert joined(folder) == "20777,20778 681,682"


def test_a_range_of_one_source_is_ingested_and_then_one_model_is_trained(lake, folder, spanwise):
    """With `--train-once`, for the source that is named; the other one has been ingested before."""
    for day in DAYS:
        spanwise("run", "both.py", "--only", "clicks", "--span", f"clicks={day}")
    spanwise("run", "both.py", "--only", "countries")

    code, out, err = spanwise("backfill", "both.py", "--span", "prices=2026-10..2026-11", "--train-once")

    assert code == 0, out + err
    assert "2026-10  v1       new" in out
    assert joined(folder) == "20777,20778 681,682"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--span", "682"), "whose span is 682?"),
        (("--stale",), "each is backfilled by itself"),
        (("--span", "countries=1"), "countries does not ingest spans"),
        (("--span", "prices=2026-10-01"), "A span is a month here"),
    ],
)
def test_a_backfill_that_is_not_clear_is_refused(lake, spanwise, words, reason):
    """With an example that names a node."""
    code, _, err = spanwise("backfill", "both.py", *words)

    assert code == 2
    assert reason in err


def test_a_schedule_with_one_span_for_nodes_that_count_differently_is_refused(lake, folder, spanwise):
    """A day is no month; without a rule, each node takes its newest."""
    schedule = (
        'from both import both\nfrom spanwise import Schedule, days_before\n\ndaily = Schedule(both, cron="@daily"{})\n'
    )
    (folder / "ruled.py").write_text(schedule.format(", span=days_before(1)"))
    (folder / "newest.py").write_text(schedule.format(""))

    code, _, err = spanwise("schedule", "next", "ruled.py")

    assert code == 2
    assert "the nodes of 'both' use different calendars: clicks days, prices months" in err
    assert spanwise("schedule", "next", "newest.py")[0] == 0


def test_a_schedule_by_parts_gives_each_node_that_ingests_a_rule_of_its_own(lake, folder, spanwise):
    """It was refused, and what it was to say instead was what it said."""
    (folder / "apart.py").write_text(
        "from both import both\nfrom spanwise import Schedule, days_before, months_before\n\n"
        'both_rules = {"clicks": days_before(1), "prices": months_before(1)}\n'
        'apart = Schedule(both, parts={"ingest": "@daily", "train": "@weekly"}, span=both_rules)\n'
    )

    code, out, err = spanwise("schedule", "next", "apart.py", "1")

    assert code == 0, err
    assert re.findall(r"both:\w+", out) == ["both:ingest", "both:train"]


def test_a_watch_over_nodes_that_count_differently_is_refused(lake, folder, spanwise):
    """There is no span that has arrived in all of them: the message names the nodes and what to write instead."""
    code, _, err = spanwise("watch", "both.py", "--once", "--settle", "0")

    assert code == 2
    assert "clicks counts days, prices counts months" in err
    assert 'Schedule(both, cron="0 3 * * *", span={"clicks": days_before(1), "prices": months_before(1)})' in err
    assert spanwise("runs", "both")[1].count("both/") == 0


RULES = """
from both import both
from spanwise import Schedule
from spanwise.orchestrator import Calendar

def day(tick):
    return Calendar.DAY.parse("2026-11-22")

def month(tick):
    return Calendar.MONTH.parse("2026-11")

minutely = Schedule(both, cron="* * * * *", span={"clicks": day, "prices": month})
"""


def test_a_tick_gives_each_node_that_ingests_a_span_of_its_own(lake, folder, spanwise):
    """A rule for each; the leading span names the tick. What was missed is recovered by the printed command."""
    (folder / "ruled.py").write_text(RULES)
    spanwise(
        "run", "both.py", "--span", "clicks=2026-11-21", "--span", "prices=2026-10", "--to", "clicks", "--to", "prices"
    )

    code, out, err = spanwise("schedule", "tick", "ruled.py")
    assert code == 1, out + err
    failed = spanwise("show", "both")[1]
    assert "no file of span 2026-11-22 matches" in failed
    assert re.search(r"span +clicks=2026-11-22, prices=2026-11\n", failed)
    listed = spanwise("schedule", "missed")[1]
    (recover,) = re.findall(r"spanwise (run .*)", listed)
    lake("clicks/2026-11-22/v1")
    code, out, err = spanwise(*shlex.split(recover))

    assert code == 0, out + err
    assert spanwise("schedule", "missed")[0] == 0
    assert joined(folder) == "20778,20779 681,682"


DAILY_PRICES = PIPELINE.replace("prices/{YYYY}-{MM}/", "prices/{YYYY}-{MM}-{DD}/").replace(
    "size=2,", "size=2, missing=1,"
)


def lost(folder, **terms):
    """A schedule of `both.py` as the metadata knows it, whose ticks of 23 November at three failed."""
    at = datetime(2026, 11, 23, 3, tzinfo=UTC)
    with contextlib.closing(open_store(str(folder / ".spanwise" / "metadata.db"))) as store:
        for table in timetables_of(Schedule(**terms), "both"):
            put_schedule(store, ScheduleRecord(timetable=table, since=at, source="both.py", calendar="day"))
            (tick,) = ticks(table, at - timedelta(seconds=1), at)
            assert claim_tick(store, table.pipeline, tick, holder=1, now=at, end=TickEnd(outcome=TickOutcome.FAILED))


def test_a_span_of_another_node_recovers_no_tick_of_the_leading_one(lake, folder, spanwise):
    """The clicks of that day were never ingested, though a model was trained once its prices were."""
    (folder / "both.py").write_text(DAILY_PRICES)
    for day in ("20", "21", "22"):
        lake(f"prices/2026-11-{day}/v1")
    for day in ("20", "21"):
        assert spanwise("run", "both.py", "--span", f"clicks=2026-11-{day}", "--span", f"prices=2026-11-{day}")[0] == 0
    rules = dict.fromkeys(("ingest", "train"), days_before(1))
    lost(folder, parts=dict.fromkeys(rules, "0 3 * * *"), span=rules)

    assert spanwise("run", "both.py", "--span", "prices=2026-11-22", "--from", "prices", "--from", "days")[0] == 0
    assert [each["pipeline"] for each in missed(spanwise)] == ["both:ingest", "both:train"]

    lake("clicks/2026-11-22/v1")
    assert spanwise("run", "both.py", "--span", "clicks=2026-11-22", "--span", "prices=2026-11-22")[0] == 0
    assert missed(spanwise) == []


def test_a_tick_that_gives_each_node_a_span_of_its_own_is_recovered_by_a_run_of_these(lake, folder, spanwise):
    """The printed command names the span of each; a run of the leading span closed the tick without the prices."""
    (folder / "both.py").write_text(PIPELINE.replace("size=2,", "size=2, missing=1,"))
    assert spanwise("run", "both.py", "--span", "clicks=2026-11-21", "--span", "prices=2026-10")[0] == 0
    lake("clicks/2026-11-22/v1")
    lake("prices/2026-09/v1")
    lost(folder, cron="0 3 * * *", span={"clicks": days_before(1), "prices": months_before(2)})

    assert spanwise("run", "both.py", "--span", "clicks=2026-11-22", "--span", "prices=2026-10")[0] == 0
    code, out, _ = spanwise("backfill", "both.py", "--missed")
    assert code == 1
    assert "1 missed tick gives each node a span of its own. Run it:" in out

    (recover,) = re.findall(r"spanwise (run .*)", spanwise("schedule", "missed")[1])
    assert recover == "run both.py --span clicks=2026-11-22 --span prices=2026-09"
    assert recover in out
    assert spanwise(*shlex.split(recover))[0] == 0
    assert missed(spanwise) == []


def test_a_tick_is_not_superseded_while_a_window_reads_the_span_of_another_node(lake, folder, spanwise):
    """No window reads the clicks of that day any more; the prices of its month are a gap that one would read."""
    (folder / "both.py").write_text(PIPELINE.replace("size=2,", "size=2, missing=1,"))
    lost(folder, cron="0 3 * * *", span={"clicks": days_before(1), "prices": months_before(2)})
    for day in ("23", "24"):
        lake(f"clicks/2026-11-{day}/v1")
        assert spanwise("run", "both.py", "--span", f"clicks=2026-11-{day}", "--span", "prices=2026-10")[0] == 0
    assert len(missed(spanwise)) == 1

    lake("prices/2026-09/v1")
    assert spanwise("run", "both.py", "--span", "clicks=2026-11-24", "--span", "prices=2026-09")[0] == 0
    assert missed(spanwise) == []


def missed(spanwise):
    return json.loads(spanwise("schedule", "missed", "--json")[1])


def test_the_command_that_creates_lost_files_again_names_the_span_in_the_calendar_of_its_node(lake, folder, spanwise):
    """The files of a month are gone: what is printed names the month, and works when pasted."""
    spans = ("--span", "clicks=2026-11-20", "--span", "prices=2026-10")
    spanwise("run", "both.py", *spans, "--to", "clicks", "--to", "prices")
    spanwise("run", "both.py", "--span", "clicks=2026-11-21", "--span", "prices=2026-11")
    lost = next((folder / ".spanwise/both/prices/examples").rglob("*.parquet"))
    lost.unlink()

    code, out, err = spanwise("run", "both.py", "--from", "Join", "--no-cache")

    assert code == 1, out + err
    (printed,) = set(re.findall(r"spanwise (run both.py --span 2026-1[01] --to prices.*)", out + err))
    assert spanwise(*printed.split())[0] == 0
    assert spanwise("run", "both.py", "--from", "months", "--no-cache")[0] == 0


def test_what_learned_of_a_month_is_found_by_the_month(lake, folder, spanwise):
    """`tainted` takes the label of either calendar, and the backfill that it prints names the node."""
    spanwise("run", "both.py", "--only", "prices", "--span", "prices=2026-10")
    spanwise("run", "both.py", "--only", "clicks", "--span", "clicks=2026-11-20")

    for label, again in (("2026-10", "--span prices=2026-10"), ("2026-11-20", "--span clicks=2026-11-20")):
        found = json.loads(spanwise("tainted", "both", "--span", label, "--json")[1])
        assert found["span_label"] == label
        assert again in found["backfill"]


TRAINED = '''
"""Clicks are counted by the day, prices by the month; a model learns from each."""

from spanwise import ExampleGen, Pipeline, RollingWindow, Trainer


def fit(task):
    (task.model_dir / "model").write_text("fitted")


def both() -> Pipeline:
    clicks = ExampleGen(pattern="lake/clicks/{YYYY}-{MM}-{DD}/v{VERSION}/*.csv", name="clicks")
    prices = ExampleGen(pattern="lake/prices/{YYYY}-{MM}/v{VERSION}/*.csv", name="prices", bad_rows="keep")
    days = RollingWindow(clicks["examples"], size=1, name="days")
    months = RollingWindow(prices["examples"], size=1, name="months")
    daily = Trainer(examples=days["examples"], run_fn=fit, name="daily")
    monthly = Trainer(examples=months["examples"], run_fn=fit, name="monthly")
    return Pipeline("both", [clicks, prices, days, months, daily, monthly])
'''


def test_what_a_model_learned_from_is_written_in_the_calendar_of_what_it_read(lake, folder, spanwise, site):
    """By `show`, the client and the page alike; a month was written as the day of the same number, in 1971."""
    (folder / "both.py").write_text(TRAINED)
    with (folder / "lake/prices/2026-11/v1/rows.csv").open("a") as rows:
        rows.write("1,2,3\n")
    code, out, err = spanwise("run", "both.py", "--span", "clicks=2026-11-21", "--span", "prices=2026-11")
    assert code == 0, out + err

    shown = spanwise("show", "both")[1]

    learned = {"daily": "2026-11-21", "monthly": "2026-11"}
    assert sorted(re.findall(r"learned from (.*)", shown)) == sorted(learned.values())
    pipeline = site.client.pipeline()
    assert {model.node: model.spans_label for model in pipeline.models()} == learned
    assert {window.node: window.labels for window in pipeline.window()} == {
        "days": ["2026-11-21"],
        "months": ["2026-11"],
    }
    (trained,) = read_trained(site, [pipeline.latest.run], pipeline.latest.run)
    assert trained.spans == learned[trained.artifact.name.split("/")[1]]
    assert [artifact.span_label for artifact in pipeline.artifacts("Rejects")] == ["2026-11"]


LATE = '''
"""Clicks of a day are judged; their labels come days later."""

from spanwise import ExampleGen, Examples, Gate, Input, Pipeline, Refused, RollingWindow, Trainer


class Many(Gate):
    def run(self, examples: Input[Examples], least: int) -> None:
        if sum(examples.rows.values()) < least:
            raise Refused("few rows")


def fit(task):
    (task.model_dir / "model").write_text("fitted")


def late(least: int = 1) -> Pipeline:
    clicks = ExampleGen(pattern="lake/clicks/{YYYY}-{MM}-{DD}/v{VERSION}/*.csv", name="clicks")
    labels = ExampleGen(pattern="lake/labels/{YYYY}-{MM}-{DD}/v{VERSION}/*.csv", name="labels")
    many = Many(examples=clicks["examples"], least=least)
    days = RollingWindow(many["examples"], size=2, name="days")
    return Pipeline("late", [clicks, labels, many, days, Trainer(examples=days["examples"], run_fn=fit)])
'''


@pytest.fixture
def late(lake, folder, spanwise):
    """Clicks of November 21 are ingested, with labels of the 20th; those of the 21st have not come."""
    (folder / "late.py").write_text(LATE)
    lake("labels/2026-11-20/v1")
    spanwise("run", "late.py", "--span", "clicks=2026-11-20", "--span", "labels=2026-11-20")
    spanwise("run", "late.py", "--span", "clicks=2026-11-21", "--span", "labels=2026-11-20")
    return lake


def test_a_corrected_span_of_one_node_is_found_though_another_node_has_no_input_of_it(late, spanwise):
    """`--stale` names it with its node, and ends with 1; what it prints runs it."""
    late("clicks/2026-11-21/v2")

    code, out, _ = spanwise("backfill", "late.py", "--stale")
    assert code == 1
    assert "has no span to backfill" in out
    plan = json.loads(spanwise("backfill", "late.py", "--stale", "--dry-run", "--json")[1])
    assert plan["alone"] == [{"node": "clicks", "span": 20778, "span_label": "2026-11-21"}]

    (option,) = re.findall(r"--span \S+", out)
    assert spanwise("backfill", "late.py", *option.split())[0] == 0
    assert spanwise("backfill", "late.py", "--stale")[0] == 0


def test_a_watcher_says_which_node_has_a_span_that_others_lack(late, folder):
    """A correction of clicks waits for labels of that day, and not without a word."""
    from spanwise.orchestrator.mlmd import open_store
    from spanwise.scheduler.daemon.arrival import ReadyData, describe_awaited, find_ready
    from spanwise.scheduler.project.load import load

    late("clicks/2026-11-21/v2")
    loaded = load("late.py")
    with contextlib.closing(open_store(str(folder / ".spanwise/metadata.db"))) as store:
        found = find_ready(loaded.pipeline, loaded.calendar, store)

    assert not found.arrivals
    assert found.lone == {"clicks": (20778,)}
    assert from_plain(ReadyData, json.loads(json.dumps(to_plain(found)))) == found
    assert describe_awaited(found, [], loaded.calendar, 60.0).endswith(
        "; clicks has 2026-11-21, of which other nodes have no input"
    )


def test_a_corrected_span_that_no_window_reads_needs_no_backfill(late, spanwise):
    """Of one node as of all."""
    late("clicks/2026-11-22/v1")
    spanwise("run", "late.py", "--span", "clicks=2026-11-22", "--span", "labels=2026-11-20")
    late("clicks/2026-11-23/v1")
    spanwise("run", "late.py", "--span", "clicks=2026-11-23", "--span", "labels=2026-11-20")
    late("clicks/2026-11-21/v2")

    assert "late needs no backfill." in spanwise("backfill", "late.py", "--stale")[1]


def test_the_backfill_of_an_accepted_span_names_its_node(late, spanwise):
    """Where other nodes have no input of the span yet; what is printed works when pasted."""
    late("clicks/2026-11-21/v2")
    spanwise("run", "late.py", "--span", "clicks=2026-11-21", "--to", "Many", "--param", "least=99")

    out = spanwise("accept", "late.py", "--span", "2026-11-21", "--because", "a holiday")[1]

    (printed,) = re.findall(r"spanwise (backfill .*)", out)
    assert spanwise(*shlex.split(printed))[0] == 0


def test_the_backfill_without_a_tainted_span_names_its_node(late, spanwise):
    """Where only one node has published the span; what is printed works when pasted."""
    out = spanwise("tainted", "late", "--span", "2026-11-21")[1]

    (printed,) = set(re.findall(r"spanwise (backfill .*)", out))
    assert spanwise(*shlex.split(printed))[0] == 0


def test_a_backfill_says_which_node_has_no_input(late, spanwise):
    """And which spans have some, and how to run the span of the other node."""
    code, _, err = spanwise("backfill", "late.py", "--span", "2026-11-21")

    assert code != 0
    assert "Span 2026-11-21 of labels has no input" in err
    assert "Nearest spans with input: 2026-11-20." in err
    assert err.rstrip().endswith("To run the span of one node:  --span clicks=2026-11-21")


LABELLED = """
from late import late
from spanwise import Schedule
from spanwise.orchestrator import Calendar

def day(tick):
    return Calendar.DAY.parse("2026-11-22")

minutely = Schedule(late, cron="* * * * *", span=day)
"""


def test_a_missed_span_of_one_node_is_named_though_another_node_has_no_input_of_it(late, folder, spanwise):
    """One rule for all: the clicks came late, the labels of that day have yet to come. Its tick waits for both."""
    (folder / "labelled.py").write_text(LABELLED)
    assert spanwise("schedule", "tick", "labelled.py")[0] == 1
    late("clicks/2026-11-22/v1")

    code, out, _ = spanwise("backfill", "late.py", "--missed")
    assert code == 1
    (option,) = re.findall(r"itself:  (--span \S+)", out)
    assert spanwise("backfill", "late.py", *option.split())[0] == 0
    assert spanwise("schedule", "missed")[0] == 1

    late("labels/2026-11-22/v1")
    assert spanwise("backfill", "late.py", "--missed")[0] == 0
    assert spanwise("schedule", "missed")[0] == 0


BOOM = """        if __import__("pathlib").Path("boom").exists():
            raise RuntimeError("boom")
        labels ="""


def test_a_part_of_one_node_that_cannot_be_resumed_prints_commands_that_work(lake, folder, spanwise):
    """It names the spans of the nodes that run, so the part begins where it began; and reading on names no span."""
    (folder / "both.py").write_text(PIPELINE.replace("        labels =", BOOM))
    spanwise("run", "both.py", "--only", "prices", "--span", "prices=2026-10")
    spanwise("run", "both.py", "--span", "clicks=2026-11-20", "--span", "prices=2026-10", "--skip", "Join")
    spanwise("run", "both.py", "--span", "clicks=2026-11-21", "--span", "prices=2026-10")
    (folder / "boom").touch()
    assert spanwise("run", "both.py", "--from", "prices", "--span", "prices=2026-11")[0] == 1
    (folder / "boom").unlink()
    lake("prices/2026-11/v2")
    spanwise("run", "both.py", "--only", "prices", "--span", "prices=2026-11")

    code, _, err = spanwise("resume", "both/4")

    assert code == 2
    assert "months chose 2026-10 to 2026-11 v1 in run 4, and would choose 2026-10 v1, 2026-11 v2 now" in err
    again, insisted = re.findall(r":  spanwise (run .*)", err)
    for printed, artifact in ((insisted, 1), (again, 2)):
        code, out, err = spanwise(*shlex.split(printed))
        assert code == 0, out + err
        months = re.findall(r"prices/examples/682/(\d+)", spanwise("show", "both", "--json")[1])
        assert set(months) == {str(artifact)}
    assert joined(folder) == "20777,20778 681,682"
