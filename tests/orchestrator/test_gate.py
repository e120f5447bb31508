"""Gates: what they accept, refuse or leave unjudged, and what is recorded of it."""

import os
import signal
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from spanwise.orchestrator import (
    Component,
    Examples,
    Gate,
    Input,
    Output,
    Outputs,
    Pipeline,
    PipelineError,
    Refused,
    Report,
    State,
    Statistics,
    past,
)
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.testing import Trial
from spanwise.orchestrator.verdict import Verdict, append, read_verdicts
from spanwise.resolvers import Fixed, Latest, LatestSpans, Previous, RollingWindow


class Ingest(Component):
    """Publishes one span with a number of rows."""

    def run(self, examples: Output[Examples], span: int, rows: int, version: int = 1) -> None:
        (examples.path / "rows").write_text(f"{rows}")
        examples.span, examples.version, examples.split_names = span, version, ["train"]
        examples.rows = {"train": rows}


class Describe(Component):
    """Statistics of one span."""

    def run(self, examples: Input[Examples], statistics: Output[Statistics]) -> None:
        (statistics.path / "rows").write_text((examples.path / "rows").read_text())
        statistics.span, statistics.version, statistics.split_names = examples.span, examples.version, ["train"]


class Big(Gate):
    """Accepts a span with enough rows; dies or sleeps when told to."""

    def run(
        self,
        examples: Input[Examples],
        before: Input[Statistics | None],
        note: Output[Report],
        least: int = 10,
        fate: str = "",
    ) -> None:
        if fate == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if fate == "raises":
            raise ValueError("a bug")
        if fate == "sleeps":
            time.sleep(1000)
        (note.path / "note").write_text("looked")
        if examples.rows["train"] < least:
            raise Refused(f"{examples.rows['train']} rows; at least {least} are needed\nmore about it")


class Train(Component):
    def run(self, examples: Input[list[Examples]], report: Output[Report]) -> None:
        (report.path / "spans").write_text(" ".join(f"{e.span}v{e.version}" for e in examples))


@pytest.fixture
def trial(tmp_path):
    return Trial(tmp_path)


def pipeline(span, rows, *, version=1, size=2, missing=0, least=10, fate="", timeout_s=None):
    ingest = Ingest(span=span, rows=rows, version=version)
    statistics = Describe(examples=ingest["examples"])
    before = Previous(statistics["statistics"])
    gate = Big(examples=ingest["examples"], before=before["statistics"], least=least, fate=fate, timeout_s=timeout_s)
    window = RollingWindow(gate["examples"], size=size, since=1, missing=missing)
    train = Train(examples=window["examples"])
    return Pipeline("p", [ingest, statistics, before, gate, window, train])


def verdicts(trial, name="p/Ingest/examples/1/1"):
    return [(v.word, v.judged_by, v.because.partition("\n")[0]) for v in read_verdicts(trial.store, "accepted", name)]


def person(trial, *, given, name="p/Ingest/examples/1/1", why="a holiday"):
    append(trial.store, [Verdict(mark="accepted", artifact=name, given=given, by="ann@host", because=why)])


def trained_on(ran):
    return (ran.artifact("Train", "report").path / "spans").read_text()


def test_an_accepted_span_is_passed_on(trial):
    """The gate's output is the artifact that it was given, and the verdict is recorded with its execution."""
    ran = trial.run(pipeline(1, 10))

    assert ran.artifact("Big", "examples").name == ran.artifact("Ingest", "examples").name
    assert verdicts(trial) == [("accepted", "Big in run 1", "")]
    assert trained_on(ran) == "1v1"


def test_a_refused_span_stops_the_run_and_says_what_to_do(trial):
    """Nothing after the gate runs; the reason is the verdict, and the message adds the ways on."""
    ran = trial.run(pipeline(1, 3), RunRequest(source="p.py"))

    assert (ran.outcome.failed, ran.outcome.skipped) == (("Big",), ("RollingWindow", "Train"))
    assert verdicts(trial) == [("refused", "Big in run 1", "3 rows; at least 10 are needed")]
    assert ran["Big"].error == (
        "3 rows; at least 10 are needed\nmore about it\n"
        "Correct the data and run its new version:  spanwise run p.py --span 1\n"
        "Or accept the span as it is:  spanwise accept p.py --span 1 --because TEXT"
    )


def test_a_refused_span_is_not_learned_the_next_day(trial):
    """It is a gap of later windows, with the gate, the run and the reason in the message."""
    trial.run(pipeline(1, 10))
    trial.run(pipeline(2, 3))

    ran = trial.run(pipeline(3, 10, size=3), RunRequest(source="p.py"))

    assert ran.outcome.failed == ("RollingWindow",)
    assert ran["RollingWindow"].error == (
        "RollingWindow wants the 3 spans 1 to 3 of Big['examples'], but 1 is missing: 2.\n"
        "  2: refused by Big in run 2: 3 rows; at least 10 are needed\n"
        "    Ingest a new version:  spanwise run p.py --span 2 --to Big\n"
        "    or accept it as it is:  spanwise accept p.py --span 2 --because TEXT\n"
        "If gaps are expected, pass missing=1.\n"
        "To leave out a span by name, pass exclude=, or for one run:  --exclude 2"
    )


def test_a_new_version_fixes_the_gap(trial):
    """The newest version decides, and the older ones of its span are never used in its place."""
    trial.run(pipeline(1, 10))
    trial.run(pipeline(1, 3, version=2))
    refused = trial.run(pipeline(2, 10))
    trial.run(pipeline(1, 12, version=3))

    fixed = trial.run(pipeline(2, 10))

    assert "1: refused by Big in run 2" in refused["RollingWindow"].error
    assert trained_on(fixed) == "1v3 2v1"


def test_gaps_that_are_allowed_stay_gaps(trial):
    """With missing=1 the window goes without the refused span."""
    trial.run(pipeline(1, 10))
    trial.run(pipeline(2, 3))

    assert trained_on(trial.run(pipeline(3, 10, size=3, missing=1))) == "1v1 3v1"


@pytest.mark.parametrize("fate", ["dies", "raises", "sleeps"])
def test_a_gate_that_did_not_decide_leaves_the_span_unjudged(trial, fate):
    """A crash, an exception or a time-out is no verdict; the next window says which gate has to judge the span."""
    ran = trial.run(pipeline(1, 10, fate=fate, timeout_s=0.5 if fate == "sleeps" else None))
    later = trial.run(pipeline(2, 10), RunRequest(source="p.py"))

    assert ran.outcome.failed == ("Big",)
    assert verdicts(trial) == []
    assert "1: not judged yet by Big. Judge it:  spanwise run p.py --span 1 --to Big" in later["RollingWindow"].error


def test_a_refusal_is_not_retried(trial):
    """A judgement is no accident: however often the node may be retried, it judges once."""
    made = pipeline(1, 3)
    made.nodes["Big"].retry = replace(made.nodes["Big"].retry, times=3)

    ran = trial.run(made)

    assert ran["Big"].attempt == 1


def test_a_verdict_from_the_cache_counts_again(trial):
    """The rule changes and is taken back (A, B, A): the third run reuses the first, and the span is accepted again."""
    for least in (10, 20):
        trial.run(pipeline(1, 15, least=least))

    ran = trial.run(pipeline(1, 15, least=10))

    assert ran.states["Big"] is State.CACHED
    assert verdicts(trial) == [
        ("accepted", "Big in run 1", ""),
        ("refused", "Big in run 2", "15 rows; at least 20 are needed"),
        ("accepted", "Big in run 3", ""),
    ]
    assert trained_on(ran) == "1v1"


def test_the_cache_judges_the_artifact_of_this_run(trial):
    """The same rows published again are another artifact: the verdict is about it, and it is passed on."""
    trial.run(pipeline(1, 10))

    again = trial.run(pipeline(1, 10), RunRequest(cache=False, selection=pipeline(1, 10).select(last=["Ingest"])))
    ran = trial.run(pipeline(1, 10), RunRequest(selection=pipeline(1, 10).select(first=["Describe"])))

    assert again.artifact("Ingest", "examples").name == "p/Ingest/examples/1/2"
    assert ran.states["Big"] is State.CACHED
    assert ran.artifact("Big", "examples").name == "p/Ingest/examples/1/2"
    assert verdicts(trial, "p/Ingest/examples/1/2") == [("accepted", "Big in run 3", "")]


def test_what_a_person_accepts_passes_the_gate(trial):
    """The gate is not asked again: it passes the span with the person's reason."""
    trial.run(pipeline(1, 3))
    person(trial, given=True)

    ran = trial.run(pipeline(1, 3))

    assert ran["Big"].reason == "accepted by ann@host: a holiday"
    assert trained_on(ran) == "1v1"
    assert [v[0] for v in verdicts(trial)] == ["refused", "accepted"]


def test_what_a_person_refuses_fails_the_gate(trial):
    """However often the gate would accept it, the person's reason stands."""
    trial.run(pipeline(1, 10))
    person(trial, given=False, why="wrong currency")

    ran = trial.run(pipeline(1, 10), RunRequest(source="p.py"))

    assert ran.outcome.failed == ("Big",)
    assert ran["Big"].error.startswith("span 1 was refused by ann@host: wrong currency\n")
    assert "spanwise accept p.py --span 1" in ran["Big"].error
    assert [v[0] for v in verdicts(trial)] == ["accepted", "refused"]


def test_a_refused_span_is_no_drift_baseline(trial):
    """`Previous` stands before the gate, and yet chooses among accepted spans: the gates downstream decide."""
    trial.run(pipeline(1, 10))
    trial.run(pipeline(2, 3))

    ran = trial.run(pipeline(3, 10))

    assert [a.span for a in ran.artifacts("Previous", "statistics")] == [1]


def test_a_baseline_of_an_older_version_does_not_count(trial):
    """A span whose newest version was refused, or was never counted, is no baseline at all."""
    trial.run(pipeline(1, 10))
    trial.run(pipeline(2, 10))
    trial.run(pipeline(2, 3, version=2))

    ran = trial.run(pipeline(3, 10))

    assert [a.span for a in ran.artifacts("Previous", "statistics")] == [1]


def test_a_replay_judges_nothing(trial):
    """A run as of the past reads the verdicts of then, and records none of its own."""
    trial.run(pipeline(1, 10))
    then = datetime.now(UTC)
    trial.run(pipeline(2, 3))

    replay = trial.run(pipeline(1, 10, least=20), RunRequest(as_of=then, replay=True))

    assert replay.outcome.failed == ("Big",)
    assert [v[0] for v in verdicts(trial)] == ["accepted"]


def test_the_base_run_supplies_a_verdict_only_once(trial):
    """A partial run after the gate reads what was accepted, and records no verdict."""
    made = pipeline(1, 10)
    trial.run(made)

    ran = trial.run(made, RunRequest(selection=made.select(first=["RollingWindow"])))

    assert trained_on(ran) == "1v1"
    assert len(verdicts(trial)) == 1


# --- how a pipeline with gates is built


def test_a_window_around_a_gate_is_not_built():
    """The message names the channel to pass instead."""
    ingest = Ingest(span=1, rows=1)
    gate = Big(examples=ingest["examples"])
    window = RollingWindow(ingest["examples"], size=2)

    with pytest.raises(PipelineError) as refused:
        Pipeline("p", [ingest, gate, window])

    assert "RollingWindow reads spans of Ingest['examples'] around Big" in str(refused.value)
    assert "Pass Big['examples'] to RollingWindow instead." in str(refused.value)


@pytest.mark.parametrize("resolver", [Latest, lambda c: LatestSpans(c, n=3)])
def test_no_resolver_of_spans_reads_around_a_gate(resolver):
    """Past channels neither."""
    ingest = Ingest(span=1, rows=1)
    gate = Big(examples=ingest["examples"])

    with pytest.raises(PipelineError, match=r"or past\('Big', 'examples'"):
        Pipeline("p", [ingest, gate, resolver(past("Ingest", "examples", Examples))])


def test_what_derives_from_examples_is_not_read_around_a_gate():
    """Statistics that the gate does not need are made of what it passes on."""
    ingest = Ingest(span=1, rows=1)
    gate = Big(examples=ingest["examples"])
    statistics = Describe(examples=ingest["examples"])

    with pytest.raises(PipelineError, match=r"Pass Big\['examples'\] to Describe, which RollingWindow chooses from"):
        Pipeline("p", [ingest, gate, statistics, RollingWindow(statistics["statistics"], size=2)])


def test_gates_over_the_same_examples_are_chained():
    """A window behind one of two gates side by side reads around the other."""
    ingest = Ingest(span=1, rows=1)
    one, other = (Big(examples=ingest["examples"], name=name) for name in ("One", "Other"))
    window = RollingWindow(one["examples"], size=2)

    with pytest.raises(PipelineError, match=r"Let Other judge what One passes on, One\['examples'\], and pass Other"):
        Pipeline("p", [ingest, one, other, window])


def test_chained_gates_must_all_accept(trial):
    """The window behind the last gate reads what every one of them accepts."""

    def chained(span, rows):
        ingest = Ingest(span=span, rows=rows)
        one = Big(examples=ingest["examples"], name="One", least=5)
        other = Big(examples=one["examples"], name="Other", least=10)
        return Pipeline("p", [ingest, one, other, RollingWindow(other["examples"], size=2, since=1)])

    trial.run(chained(1, 7))
    ran = trial.run(chained(2, 12))

    assert "1: refused by Other in run 1: 7 rows; at least 10 are needed" in ran["RollingWindow"].error


def test_a_past_channel_of_a_gate_is_that_of_what_it_judges(trial):
    """`past(gate, …)` chooses among accepted spans of earlier runs."""

    def made(span, rows):
        ingest = Ingest(span=span, rows=rows)
        gate = Big(examples=ingest["examples"])
        return Pipeline("p", [ingest, gate, Latest(past("Big", "examples", Examples))])

    trial.run(made(1, 10))
    ran = trial.run(made(2, 3))

    assert [a.span for a in ran.artifacts("Latest", "examples")] == [1]


class Several(Gate):
    def run(self, examples: Input[list[Examples]]) -> None: ...


class Remakes(Gate):
    def run(self, examples: Input[Examples], examples_: Outputs[Examples]) -> None: ...


@pytest.mark.parametrize(
    ("gate", "message"),
    [(Several, "takes the span that it judges as 'examples'"), (Remakes, "rename its own output examples_")],
)
def test_a_gate_judges_one_span_and_makes_none(gate, message):
    """Its signature says so, or it is not built."""
    with pytest.raises(PipelineError, match=message):
        gate(examples=Ingest(span=1, rows=1)["examples"])


def test_a_gate_does_not_judge_a_choice():
    """It judges what its run makes; a resolver's choice was made, and judged, before."""
    chosen = Fixed(Ingest(span=1, rows=1)["examples"], artifact="p/Ingest/examples/1/1")

    with pytest.raises(PipelineError, match="judges the span of its run"):
        Big(examples=chosen["examples"])
