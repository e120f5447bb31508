"""A window reads what its own run's source has given, or the run fails: versions that go down, and other calendars."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from spanwise.orchestrator import (
    Calendar,
    Component,
    Examples,
    Input,
    Model,
    Output,
    Outputs,
    Pipeline,
    UsageError,
    past,
)
from spanwise.orchestrator.run import Trigger
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.store import Address
from spanwise.orchestrator.testing import Trial
from spanwise.resolvers import Fixed, Latest, LatestSpans, Previous, RollingWindow
from spanwise.scheduler.inspect.span_history import SpanHistory, SpanStatus
from spanwise.scheduler.inspect.taint import trace_taint


class Ingest(Component):
    """Publishes a span at the version and in the calendar that it is built with, as a source with another pattern."""

    prepared: ClassVar = ("span",)

    def check(self):
        self.calendar = Calendar(self.parameters["counts"])

    def prepare(self, run, history):
        return {"span": run.span}

    def run(self, examples: Output[Examples], span: int, version: int | None, counts: str) -> None:
        examples.span, examples.version, examples.split_names = span, version, ["train"]
        examples.calendar = counts
        Path(examples.path, "rows").write_text(f"{span} {version}")


class Clean(Component):
    """A node between source and window, whose artifacts carry the calendar on."""

    def run(self, examples: Input[Examples], clean: Output[Examples]) -> None:
        for name in ("span", "version", "split_names", "calendar"):
            setattr(clean, name, getattr(examples, name))


class Learn(Component):
    def run(self, examples: Input[list[Examples]], model: Output[Model]) -> None:
        (model.path / "saw").write_text(" ".join(f"{a.span}v{a.version}" for a in examples))


def pipeline(*, version=1, counts="number", size=2, **window):
    ingest = Ingest(version=version, counts=counts)
    clean = Clean(examples=ingest["examples"])
    if window.pop("latest", False):
        chosen = LatestSpans(clean["clean"], n=size, name="Window")
    elif window.pop("fixed", False):
        chosen = Fixed(clean["clean"], first=3, last=3, name="Window")
    else:
        chosen = RollingWindow(clean["clean"], size=size, name="Window", **window)
    return Pipeline("p", [ingest, clean, chosen, Learn(examples=chosen["clean"])])


@pytest.fixture
def trial(tmp_path):
    return Trial(tmp_path)


def learned(run):
    return (run["Learn"].outputs["model"][0].path / "saw").read_text()


# --- versions


@pytest.mark.parametrize("version", [1, None])
def test_a_version_that_goes_down_is_not_left_out_in_silence(trial, version):
    """The lake began anew at v1, or has no versions any more: the run fails and says who gave what, and what to do."""
    trial.run(pipeline(version=5, size=1), span=3)
    down = trial.run(pipeline(version=version, size=1), span=3)

    error = down["Window"].error
    assert down.outcome.failed == ("Window",)
    assert "Window would read p/Clean/clean/3/1 (v5) of span 3" in error
    assert f"Clean gave p/Clean/clean/3/2 ({'v1' if version else 'no version'}) last" in error
    assert "v6" in error
    assert "another name" in error


def test_the_next_span_does_not_go_round_it(trial):
    """A run of the next day fails too: its window would read the version that the input no longer has."""
    trial.run(pipeline(version=5, since=3), span=3)
    trial.run(pipeline(version=1, since=3), span=3)
    after = trial.run(pipeline(version=1, since=3), span=4)

    assert "but Clean gave p/Clean/clean/3/2 (v1) last" in after["Window"].error


def test_what_was_restored_goes_on(trial):
    """The files of v5 were lost and are back: the run of that span reuses them, and windows read them again."""
    for version in (5, 1, 5):
        last = trial.run(pipeline(version=version, size=1), span=3)

    assert last["Clean"].outputs["clean"][0].name == "p/Clean/clean/3/1"
    assert learned(last) == "3v5"


def test_resuming_does_not_go_round_it(trial):
    """The run that failed goes on at its window, and fails again."""
    whole = pipeline(version=1, size=1)
    trial.run(pipeline(version=5, size=1), span=3)
    trial.run(whole, span=3)
    rest = RunRequest(selection=whole.select(first=["Window"]), trigger=Trigger.RESUME, base=2, span=3)

    assert trial.run(whole, rest).outcome.failed == ("Window",)


def test_a_part_after_the_window_does_not_go_round_it(trial):
    """The window would choose the same as before, and fail: what it chose then is out of date, until it is restored."""
    whole = pipeline(version=5, size=1)
    part = RunRequest(selection=whole.select(first=["Learn"]))
    trial.run(whole, span=3)
    trial.run(pipeline(version=1, size=1), span=3)

    with pytest.raises(UsageError, match=r"Window would fail now: .* \(v5\) of span 3, but Clean gave .* \(v1\) last"):
        trial.run(whole, part)
    named = trial.run(whole, replace(part, base=1, force_base=True))
    trial.run(whole, span=3)

    assert learned(named) == learned(trial.run(whole, part)) == "3v5"


def test_a_higher_version_goes_on(trial):
    """The way on: the data again, at a version above the highest."""
    trial.run(pipeline(version=5, size=1), span=3)
    trial.run(pipeline(version=1, size=1), span=3)

    assert learned(trial.run(pipeline(version=6, size=1), span=3)) == "3v6"


def test_an_older_span_outside_of_the_window_may_be_given(trial):
    """The window does not want it, so nothing is left out."""
    trial.run(pipeline(version=1, size=1), span=5)

    assert learned(trial.run(pipeline(version=1, size=1), span=3)) == "5v1"


def test_a_part_that_begins_at_the_window_is_not_held_to_its_base_run(trial):
    """What an earlier run gave may have been superseded since; only this run's own source counts."""
    trial.run(pipeline(version=1, size=1), span=3)
    trial.run(pipeline(version=2, size=1), span=3)
    whole = pipeline(version=2, size=1)
    part = RunRequest(selection=whole.select(first=["Window"]), base=1, force_base=True)

    assert learned(trial.run(whole, part)) == "3v2"


def test_fixed_spans_are_read_as_a_window_reads_them(trial):
    """A version that went down, or a correction that a node has not read, fails where the spans are fixed, too."""
    trial.run(pipeline(version=5, fixed=True), span=3)
    down = trial.run(pipeline(version=1, fixed=True), span=3)
    ingested(trial, version=6)
    behind = trial.run(pipeline(version=1, fixed=True), span=4)

    assert "(v5) of span 3, but Clean gave p/Clean/clean/3/2 (v1) last" in down["Window"].error
    assert "but Ingest gave p/Ingest/examples/3/3 (v6) since" in behind["Window"].error
    assert learned(trial.run(pipeline(version=6, fixed=True), span=3)) == "3v6"


# --- spans of several artifacts


class Shops(Component):
    """Publishes one artifact for each shop of a span, in one execution."""

    prepared: ClassVar = ("span",)

    def prepare(self, run, history):
        return {"span": run.span}

    def run(self, examples: Outputs[Examples], span: int, shops: str) -> None:
        for shop in shops:
            draft = examples.new()
            draft.span, draft.version, draft.split_names = span, 1, ["train"]
            (draft.path / "rows").write_text(shop)


class Count(Component):
    def run(self, examples: Input[list[Examples]], model: Output[Model]) -> None:
        (model.path / "saw").write_text("".join((a.path / "rows").read_text() for a in examples))
        model.spans = sorted({a.span for a in examples})


def of_shops(*choose, shops="abc"):
    """A pipeline that learns from the shops of the run, and from what a resolver chooses of all spans."""
    source = Shops(shops=shops)
    chosen = [each(source["examples"]) for each in choose]
    learn = Count(examples=source["examples"], name="Learn")
    return Pipeline("p", [source, learn, *chosen, *(Count(examples=c["examples"], name=f"By{c.name}") for c in chosen)])


BY_SPAN = {
    "RollingWindow": lambda source: RollingWindow(source, size=2, since=1),
    "LatestSpans": lambda source: LatestSpans(source, n=2),
    "Fixed": lambda source: Fixed(source, first=1, last=1),
    "Latest": Latest,
    "Latest(n=2)": lambda source: Latest(source, n=2, name="Two"),
    "Latest(past)": lambda source: Latest(past("Shops", "examples", Examples), name="Past"),
    "Previous": Previous,
}


@pytest.mark.parametrize("resolver", BY_SPAN)
def test_one_artifact_of_several_is_not_read_as_a_span(trial, resolver):
    """A window read the last shop of each span, and lineage said that the span was learned: it fails, and says the way."""
    trial.run(of_shops(), span=1)

    run = trial.run(of_shops(BY_SPAN[resolver]), span=2)

    error = run[next(node for node in run.states if run[node].error)].error
    assert "Shops made 3 artifacts of span " in error
    assert (
        "Publish one for each span, with a split or a file for each part, or connect shops['examples'] itself" in error
    )


def test_a_window_reads_nodes_that_may_publish_several_artifacts(trial):
    """One for each span, and the same span again in another run."""
    window = BY_SPAN["RollingWindow"]
    trial.run(of_shops(window, shops="a"), span=1)
    trial.run(of_shops(window, shops="b"), span=1)
    run = trial.run(of_shops(window, shops="c"), span=2)

    assert (run["ByRollingWindow"].outputs["model"][0].path / "saw").read_text() == "bc"


def test_several_artifacts_of_a_span_do_not_supersede_each_other(trial):
    """`tainted` called all but one corrected, and no artifact is wrong that was read directly, until there is another."""
    trial.run(of_shops(), span=1)
    found = trace_taint(trial.store, "p", 1)
    trial.run(of_shops(shops="abd"), span=1)
    corrected = trace_taint(trial.store, "p", 1)

    assert ([a.name for a in found.wrong], found.corrected) == ([f"p/Shops/examples/1/{n}" for n in (1, 2, 3)], False)
    assert ([a.name for a in corrected.wrong], corrected.corrected) == (["p/Shops/examples/1/3"], True)


def test_a_span_of_several_artifacts_is_not_tainted_by_one_of_them(trial):
    """The page of the spans compared what a model that serves had learned with the last artifact of the span."""
    learned = trial.run(of_shops(), span=1)["Shops"].outputs["examples"]
    statuses = []
    for shops in ("abc", "abd"):
        trial.run(of_shops(shops=shops), span=1)
        history = SpanHistory(Address("p", "Shops", "examples"), Calendar.NUMBER)
        history.refresh(trial.store)
        history.learned = {1: learned}  # as of a model that was pushed
        statuses.append(history.statuses(trial.store, 1, 1)[1])

    assert statuses == [SpanStatus.INGESTED, SpanStatus.TAINTED]


# --- what a span was made from


def ingested(trial, *, version, span=3, since=3):
    """Only the source has run: the node between it and the window failed, or was not asked for."""
    whole = pipeline(version=version, since=since)
    return trial.run(whole, RunRequest(selection=whole.select(last=["Ingest"]), span=span))


def test_a_correction_that_has_not_come_through_to_the_window_is_not_left_out_in_silence(trial):
    """The window's own source gave v1 last, but what that was made from is at v2: the message says how to go on."""
    trial.run(pipeline(since=3), span=3)
    ingested(trial, version=2)
    after = trial.run(pipeline(version=1, since=3), span=4)

    error = after["Window"].error
    assert after.outcome.failed == ("Window",)
    assert "Window would read p/Clean/clean/3/1 of span 3, which was made from p/Ingest/examples/3/1 (v1)" in error
    assert "but Ingest gave p/Ingest/examples/3/2 (v2) since" in error
    assert "--span 3 --to Clean" in error

    trial.run(pipeline(version=2, since=3), span=3)
    assert learned(trial.run(pipeline(version=1, since=3), span=4)) == "3v2 4v1"


def test_a_part_does_not_go_round_a_correction_that_has_not_come_through(trial):
    """Neither one that chooses anew, nor one after the window."""
    whole = pipeline(since=3)
    trial.run(whole, span=3)
    ingested(trial, version=2)

    assert trial.run(whole, RunRequest(selection=whole.select(first=["Window"]))).outcome.failed == ("Window",)
    said = r"Window would fail now: .* was made from p/Ingest/examples/3/1 \(v1\)(.|\n)* --span 3 --to Clean\n"
    with pytest.raises(UsageError, match=said):
        trial.run(whole, RunRequest(selection=whole.select(first=["Learn"])))


def test_the_same_data_ingested_once_more_is_no_correction(trial):
    """As after its files were collected: what was made from the first publication is up to date."""
    whole = pipeline(since=3)
    first = trial.run(whole, span=3)
    shutil.rmtree(first["Ingest"].outputs["examples"][0].path)
    again = ingested(trial, version=1)

    assert again["Ingest"].outputs["examples"][0].name == "p/Ingest/examples/3/2"
    assert learned(trial.run(whole, span=4)) == "3v1 4v1"


def test_a_day_that_a_node_has_not_made_is_not_left_out_in_silence(trial):
    """The window does not end at the day before, whether the day is its last one or lies between."""
    whole = pipeline(since=3)
    trial.run(whole, span=3)
    ingested(trial, version=1, span=4)
    rest = RunRequest(selection=whole.select(first=["Window"]))

    last = trial.run(whole, rest)["Window"].error

    said = "  4: p/Ingest/examples/4/1 was ingested, but Clean has not read it. Make it from that:  spanwise run "
    assert "the 2 spans 3 to 4" in last
    assert said in last
    assert said in trial.run(whole, span=5)["Window"].error
    trial.run(whole, RunRequest(selection=whole.select(last=["Clean"]), span=4))
    assert learned(trial.run(whole, rest)) == "4v1 5v1"


class Sift(Component):
    """Makes nothing of a holiday: the fourth, from a version on."""

    def run(self, examples: Input[Examples], clean: Output[Examples | None], since: int) -> None:
        if examples.span != 4 or (examples.version or 0) < since:
            for name in ("span", "version", "split_names", "calendar"):
                setattr(clean, name, getattr(examples, name))
            (clean.path / "rows").touch()


def sifted(*, version=1, since=1):
    ingest = Ingest(version=version, counts="number")
    sift = Sift(examples=ingest["examples"], since=since)
    window = RollingWindow(sift["clean"], size=2, since=3, name="Window")
    return Pipeline("p", [ingest, sift, window, Learn(examples=window["clean"])])


def test_a_day_of_which_a_node_has_made_nothing_is_a_gap_that_can_be_left_out(trial):
    """No command would make it, so none is printed; the run in which nothing was made of it is named."""
    trial.run(sifted(), span=3)

    for span in (4, 5):
        error = trial.run(sifted(), span=span)["Window"].error
        assert "  4: p/Ingest/examples/4/1 was ingested, but Sift made nothing of it in run 2.\n" in error
        assert "spanwise run" not in error
    assert learned(trial.run(sifted(), RunRequest(span=5, exclude=("4",)))) == "5v1"


def test_a_correction_of_which_a_node_has_made_nothing_is_named(trial):
    """The day as it was before is not read, and no command would make it anew."""
    trial.run(sifted(since=2), span=3)
    trial.run(sifted(since=2), span=4)
    error = trial.run(sifted(version=2, since=2), span=4)["Window"].error

    assert "but Ingest gave p/Ingest/examples/4/2 (v2) since, of which Sift made nothing in run 3.\n" in error
    assert error.endswith("--exclude 4")


class Yesterday(Component):
    """Makes the labels of the day before, of that day and this one."""

    def run(self, today: Input[Examples], before: Input[Examples | None], labels: Output[Examples]) -> None:
        day = before or today
        labels.span, labels.version, labels.split_names = day.span, day.version, ["train"]


def test_a_window_of_what_is_made_a_day_later_ends_at_the_last_day_that_was_made(trial):
    """What was ingested last is not made into one of its spans yet, and is no gap."""
    ingest = Ingest(version=1, counts="number")
    before = Previous(ingest["examples"])
    late = Yesterday(today=ingest["examples"], before=before["examples"])
    window = RollingWindow(late["labels"], size=2, since=2, name="Window")
    whole = Pipeline("p", [ingest, before, late, window, Learn(examples=window["labels"])])
    for span in (2, 3, 4):
        last = trial.run(whole, span=span)

    assert learned(last) == "2v1 3v1"


# --- calendars

FIRST_HOUR, FIRST_DAY = 476_304, 19_846  # 2024-05-03


@pytest.mark.parametrize("latest", [False, True])
def test_days_do_not_mix_with_hours(trial, latest):
    """Hours have higher numbers than days: after a change to days, the window holds days alone."""
    for hour in (0, 1, 2):
        trial.run(pipeline(counts="hour", size=1), span=FIRST_HOUR + hour)
    since = {} if latest else {"since": "2024-05-03"}
    for day in (0, 1):
        last = trial.run(pipeline(counts="day", latest=latest, **since), span=FIRST_DAY + day)

    assert learned(last) == f"{FIRST_DAY}v1 {FIRST_DAY + 1}v1"


def test_dates_do_not_mix_with_numbers(trial):
    """A pattern changed from {SPAN} to dates, where numbers such as 20240503 are higher than any day."""
    trial.run(pipeline(counts="number", size=1), span=20_240_503)

    assert learned(trial.run(pipeline(counts="day", size=1), span=FIRST_DAY)) == f"{FIRST_DAY}v1"


def test_the_same_number_in_another_calendar_is_another_span(trial):
    """A number that happens to be that of the day supersedes nothing."""
    trial.run(pipeline(version=7, counts="number", size=1), span=FIRST_DAY)

    assert learned(trial.run(pipeline(version=1, counts="day", size=1), span=FIRST_DAY)) == f"{FIRST_DAY}v1"


def test_the_gaps_of_a_new_calendar_say_why(trial):
    """The window of days lacks the days that were ingested by the hour; the message says so, and how to ingest them."""
    trial.run(pipeline(counts="hour", size=1), span=FIRST_HOUR)
    first = trial.run(pipeline(counts="day"), span=FIRST_DAY)

    error = first["Window"].error
    assert "spans of Clean['clean'] were published by the hour before" in error
    assert "2024-05-02" in error
