"""The promise of the RFC that a span may be any grouping: months, weeks and quarters, by the command line."""

import json
import re
import shlex
import sys

import pytest

from tests.scheduler import conftest

folder, spanwise = conftest.folder, conftest.spanwise

PIPELINES = '''
"""Models of twelve months, of three weeks and of two quarters."""

from spanwise import (
    ExampleGen, Pipeline, RollingWindow, Schedule, Trainer, days_before, months_before, quarters_before, weeks_before,
)


def train(task):
    spans = sorted({row["span"] for row in task.table("train").to_pylist()})
    (task.model_dir / "spans.txt").write_text(",".join(spans))


def learn(name: str, pattern: str, size: int) -> Pipeline:
    ingest = ExampleGen(pattern=f"lake/{pattern}/*.csv")
    recent = RollingWindow(ingest["examples"], size=size)
    return Pipeline(name, [ingest, recent, Trainer(examples=recent["examples"], run_fn=train)])


def yearly() -> Pipeline:
    return learn("yearly", "{YYYY}-{MM}/v{VERSION}", 12)


def weekly() -> Pipeline:
    return learn("weekly", "{GGGG}-W{WW}", 3)


def quarterly() -> Pipeline:
    return learn("quarterly", "{YYYY}-Q{Q}", 2)


monthly = Schedule(yearly, cron="0 5 1 * *", span=months_before(1))
mondays = Schedule(weekly, cron="0 5 * * mon", span=weeks_before(1))
each_quarter = Schedule(quarterly, cron="0 5 1 1,4,7,10 *", span=quarters_before(1))
'''


@pytest.fixture
def lake(folder):
    """A lake into which a span arrives, beside the pipelines."""
    (folder / "periods.py").write_text(PIPELINES)

    def arrive(*labels, version=""):
        for label in labels:
            place = folder / "lake" / label / version
            place.mkdir(parents=True)
            (place / "rows.csv").write_text("span,value\n" + "".join(f"{label},{row}\n" for row in range(20)))

    return arrive


def months(first, count):
    year, month = map(int, first.split("-"))
    return [f"{year + (month - 1 + n) // 12}-{(month - 1 + n) % 12 + 1:02}" for n in range(count)]


def learned(folder, pipeline):
    newest = max((folder / ".spanwise" / pipeline / "Trainer" / "model").glob("*"), key=lambda path: int(path.name))
    return next(newest.rglob("spans.txt")).read_text().split(",")


def test_a_run_on_1_may_trains_on_the_months_from_last_may_to_april(lake, folder, spanwise):
    """RFC, Rolling Window: "for pipeline runs on May 1st ... 12 Spans from last year May till current April"."""
    lake(*months("2025-04", 13), version="v1")

    code, out, err = spanwise("backfill", "periods.py:yearly", "--span", "2025-04..2026-03", "--train-once")
    assert code == 0, out + err
    code, out, err = spanwise("run", "periods.py:yearly", "--span", "2026-04")
    assert code == 0, out + err

    assert learned(folder, "yearly") == months("2025-05", 12)
    assert "of span 2026-04: complete" in out + err


def test_a_month_that_is_missing_at_the_end_of_the_year_is_named_and_mended_by_the_printed_command(
    lake,
    folder,
    spanwise,
):
    """Twelve months around New Year without December: the gap is 2025-12, and what mends it works when pasted."""
    wanted = months("2025-05", 12)
    lake(*(month for month in wanted if month != "2025-12"), version="v1")
    for labels in ("2025-05..2025-11", "2026-01..2026-03"):  # neither window is whole, so nothing is trained
        spanwise("backfill", "periods.py:yearly", "--span", labels, "--train-once")

    code, out, err = spanwise("run", "periods.py:yearly", "--span", "2026-04")
    err = out + err

    assert code == 1
    assert "wants the 12 spans 2025-05 to 2026-04" in err
    assert "1 is missing: 2025-12." in err
    lake("2025-12", version="v1")
    (printed,) = re.findall(r"2025-12: never ingested\. Ingest it: +spanwise (.*)", err)
    assert spanwise(*shlex.split(printed))[0] == 0
    assert spanwise("run", "periods.py:yearly", "--span", "2026-04")[0] == 0
    assert learned(folder, "yearly") == wanted


def test_a_correction_of_an_old_month_trains_on_the_latest_twelve(lake, folder, spanwise):
    """RFC, Version Handling, with months: a new version of one month is learned within the same window."""
    lake(*months("2025-05", 12), version="v1")
    spanwise("backfill", "periods.py:yearly", "--span", "2025-05..2026-04", "--train-once")
    lake("2025-12", version="v2")

    code, _, err = spanwise("backfill", "periods.py:yearly", "--span", "2025-12")

    assert code == 0, err
    window = json.loads(spanwise("window", "periods.py:yearly", "--json")[1])
    read = window[0]["spans"]
    assert [span["span_label"] for span in read] == months("2025-05", 12)
    assert [span["chosen"]["version"] for span in read] == [1] * 7 + [2] + [1] * 4


def test_a_year_of_53_weeks_has_no_gap(lake, folder, spanwise):
    """After 2026-W53 comes 2027-W01: a window of three weeks over New Year is whole."""
    lake("2026-W52", "2026-W53", "2027-W01")

    code, _, err = spanwise("backfill", "periods.py:weekly", "--span", "2026-W52..2027-W01", "--train-once")

    assert code == 0, err
    assert learned(folder, "weekly") == ["2026-W52", "2026-W53", "2027-W01"]


def test_quarters_are_a_calendar(lake, folder, spanwise):
    """Two quarters around New Year, by their labels."""
    lake("2025-Q4", "2026-Q1")

    code, _, err = spanwise("backfill", "periods.py:quarterly", "--span", "2025-Q4..2026-Q1", "--train-once")

    assert code == 0, err
    assert learned(folder, "quarterly") == ["2025-Q4", "2026-Q1"]


@pytest.mark.parametrize(
    ("pipeline", "span", "reason"),
    [
        ("weekly", "2025-W53", "the ISO year 2025 has 52 weeks"),
        ("yearly", "2026-13", "there is no such month"),
        ("quarterly", "2026-Q5", "there is no such quarter"),
        ("yearly", "2026-W01", "A span is a month here, for example 2013-01"),
    ],
)
def test_a_span_that_does_not_exist_is_refused_with_the_reason(lake, spanwise, pipeline, span, reason):
    """Nothing is started for a month 13 or a week 53 of a year of 52."""
    code, _, err = spanwise("run", f"periods.py:{pipeline}", "--span", span)

    assert code == 2
    assert reason in err


def test_a_schedule_counts_in_the_calendar_of_its_pipeline(lake, folder, spanwise):
    """Its ticks are shown with months, weeks and quarters; a rule of another calendar is refused with the right one."""
    code, out, err = spanwise("schedule", "next", "periods.py", "--json")
    assert code == 0, err
    labels = [schedule["ticks"][0]["span_label"] for schedule in json.loads(out)]
    assert [len(label) for label in labels] == [7, 8, 7]
    assert ["W" in label or "Q" in label for label in labels] == [False, True, True]

    (folder / "wrong.py").write_text(PIPELINES.replace("span=months_before(1)", "span=days_before(1)"))
    code, _, err = spanwise("schedule", "next", "wrong.py")

    assert code == 2
    assert "span=days_before(1) gives days, and the spans of 'yearly' are months" in err
    assert "span=months_before(1)" in err


def test_spans_are_left_out_by_name_for_one_run_and_the_run_says_so(lake, folder, spanwise):
    """`--exclude` leaves a week out of a run's window: `window`, the model, `show` and a resumed run agree."""
    lake("2026-W52", "2026-W53", "2027-W01")
    spanwise("backfill", "periods.py:weekly", "--span", "2026-W52..2027-W01", "--train-once")

    shown = json.loads(spanwise("window", "periods.py:weekly", "--exclude", "2026-W53", "--json")[1])
    code, out, err = spanwise("run", "periods.py:weekly", "--span", "2027-W01", "--exclude", "RollingWindow=2026-W53")

    assert code == 0, out + err
    assert [span["span_label"] for span in shown[0]["spans"]] == ["2026-W52", "2027-W01"]
    assert learned(folder, "weekly") == ["2026-W52", "2027-W01"]
    run = re.findall(r"Run (weekly/[0-9]+) ", out)[0]
    assert re.search(r"excluded +RollingWindow=2026-W53\n", spanwise("show", run)[1])
    assert json.loads(spanwise("show", run, "--json")[1])["exclude"] == ["RollingWindow=2026-W53"]
    _, out, err = spanwise("run", "periods.py:weekly", "--span", "2027-W01")
    assert "chose 2026-W52 to 2027-W01" in out + err


def test_a_resumed_run_leaves_out_what_the_run_left_out(lake, folder, spanwise):
    """A run with `--exclude` whose training failed goes on without the span, as it was asked for."""
    lake("2026-W52", "2026-W53", "2027-W01")
    spanwise("backfill", "periods.py:weekly", "--span", "2026-W52..2027-W01", "--train-once")
    text = (folder / "periods.py").read_text()
    (folder / "periods.py").write_text(text.replace("def train(task):", "def train(task):\n    raise SystemExit(3)"))
    sys.modules.pop("periods")
    _, out, err = spanwise("run", "periods.py:weekly", "--span", "2027-W01", "--exclude", "2026-W53", "--no-cache")
    (folder / "periods.py").write_text(text)
    sys.modules.pop("periods")

    code, *_ = spanwise("resume", re.findall(r"Run (weekly/[0-9]+) ", out + err)[0])

    assert code == 0
    assert learned(folder, "weekly") == ["2026-W52", "2027-W01"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--exclude", "2026-11"), "A span is a week here"),
        (("--exclude", "Recnt=2026-W53"), "no node 'Recnt' that this run executes chooses among spans"),
        (("--exclude", "2026-W53", "--to", "ExampleGen"), "has no effect"),
    ],
)
def test_an_exclusion_that_means_nothing_is_refused(lake, spanwise, words, reason):
    """A span of another calendar, an unknown window, or none that runs: nothing is started."""
    code, _, err = spanwise("run", "periods.py:weekly", *words)

    assert code == 2
    assert reason in err
