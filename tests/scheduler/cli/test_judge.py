"""`spanwise accept` and `spanwise refuse`: a person overrules the gates, and everything that looks at windows heeds it."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from spanwise.orchestrator import Calendar, Examples
from spanwise.orchestrator.verdict import Standing, Verdict
from spanwise.scheduler.run.judge import PersonalVerdict, format_judgements
from tests.scheduler.conftest import run_warm
from tests.scheduler.histories import live

PIPELINE = '''
"""A number a day; a gate refuses small ones."""

from pathlib import Path

from spanwise import Component, ExampleGen, Examples, Gate, Input, Model, Output, Pipeline, Refused, RollingWindow


class Big(Gate):
    def run(self, examples: Input[Examples]) -> None:
        rows = sum((examples.rows or {}).values())
        if rows < 5:
            raise Refused(f"{rows} rows; a day needs at least 5")


class Learn(Component):
    def run(self, *, examples: Input[list[Examples]], model: Output[Model]) -> None:
        (model.path / "spans").write_text(" ".join(f"{e.span}v{e.version}" for e in examples))
        model.spans = [e.span for e in examples]


def days(data: str = "data") -> Pipeline:
    ingest = ExampleGen(pattern=f"{data}/{{SPAN}}/v{{VERSION}}/*.csv")
    gate = Big(examples=ingest["examples"])
    window = RollingWindow(gate["examples"], size=2, since=1)
    return Pipeline("days", [ingest, gate, window, Learn(examples=window["examples"])])
'''


OTHER = 'other = ExampleGen(pattern=f"{data}/{{SPAN}}/v{{VERSION}}/*.csv", name="Other")'


@pytest.fixture
def days(folder):
    """Day 1 is big, day 2 small."""
    Path("days.py").write_text(PIPELINE)
    arrive(1, rows=10)
    arrive(2, rows=2)


def arrive(span, *, rows, version=1):
    file = Path("data", str(span), f"v{version}", "rows.csv")
    file.parent.mkdir(parents=True)
    file.write_text("x\n" + "".join(f"{n}\n" for n in range(rows)))


def ran(*spans):
    """There was a run of each of these spans."""
    live(Path.cwd(), tuple(map(str, spans)), _run)


def _run(folder, span):
    done = run_warm("run", "days.py", "--span", span, cwd=folder, reads_data=True)
    assert done.returncode == 0 or "Big failed" in done.stdout, done.stdout + done.stderr


def learned():
    models = sorted(Path(".spanwise/days/Learn/model").glob("*/spans"), key=lambda p: int(p.parent.name))
    return [model.read_text() for model in models]


@pytest.mark.parametrize("changed", [True, False])
def test_an_earlier_verdict_moves_no_cursor(changed):
    """Its reason may quote the data."""
    earlier = Verdict(mark="accepted", artifact="x", given=False, by="ann@host", because="\x1b]0;title\x07bad\x1b[2J")
    judged = PersonalVerdict(
        span=1, artifact=Examples("x"), verdict=replace(earlier, because="bad day") if changed else earlier, before=Standing({"": earlier}),
        calendar=Calendar.NUMBER, read=True,
    )  # fmt: skip

    assert "refused by ann@host: bad" in (text := format_judgements([judged], None))
    assert "\x1b" not in text


def test_each_command_of_a_gap_works_when_pasted(days, spanwise):
    """The window of day 3 names day 2, who refused it and why; accepting it is enough, and so is a new version."""
    ran(1)
    refused = spanwise("run", "days.py", "--span", "2")[1]
    arrive(3, rows=10)

    code, stopped, _ = spanwise("run", "days.py", "--span", "3")
    accept = next(line for line in stopped.splitlines() if "spanwise accept" in line).partition(":  spanwise ")[2]
    assert code == 1
    assert "2: refused by Big in run 2: 2 rows; a day needs at least 5" in stopped
    assert "spanwise accept days.py --span 2 --because TEXT" in refused
    assert accept == "accept days.py --span 2 --because TEXT"
    assert spanwise(*accept.split())[0] == 0
    assert spanwise("run", "days.py", "--span", "3")[0] == 0
    assert spanwise("refuse", "days.py", "--span", "2", "--because", "too small after all")[0] == 0
    assert spanwise("run", "days.py", "--from", "RollingWindow")[0] == 1
    arrive(2, rows=9, version=2)
    ingest = next(line for line in stopped.splitlines() if "Ingest a new version" in line).partition("spanwise ")[2]
    assert spanwise(*ingest.split())[0] == 0
    assert spanwise("run", "days.py", "--span", "3")[0] == 0
    assert learned() == ["1v1", "2v1 3v1", "2v2 3v1"]


def test_a_backfill_of_a_refused_span_prints_its_way_on(days, spanwise):
    """The gate fails again; the accepted span is backfilled."""
    ran(1, 2)

    code, out, error = spanwise("backfill", "days.py", "--span", "2")
    _, accepted, _ = spanwise("accept", "days.py", "--span", "2", "--because", "a holiday")
    command = accepted.splitlines()[-1].partition("spanwise ")[2]

    assert code == 1
    assert "spanwise accept days.py --span 2 --because TEXT" in out + error
    assert command == "backfill days.py --span 2"
    assert spanwise(*command.split())[0] == 0
    assert learned() == ["1v1", "1v1 2v1"]


def test_the_command_after_an_accept_has_the_arguments_that_were_typed(days, spanwise):
    """Without them the backfill would read the default input."""
    Path("data").rename("it's elsewhere")
    where = ("--param", "data=it's elsewhere")
    spanwise("run", "days.py", "--span", "2", *where)

    _, accepted, _ = spanwise("accept", "days.py", "--span", "2", "--because", "a holiday", *where)
    command = shlex.split(accepted.splitlines()[-1].partition("spanwise ")[2])

    assert command == ["backfill", "days.py", *where, "--span", "2"]


def test_a_verdict_says_what_held_before_and_is_recorded_once(days, spanwise):
    """The same verdict of a person again changes nothing; another reason is recorded."""
    ran(2)

    _, first, _ = spanwise("accept", "days.py", "--span", "2", "--because", "a holiday")
    _, again, _ = spanwise("accept", "days.py", "--span", "2", "--because", "a holiday")
    _, listed, _ = spanwise("artifacts", "--type", "Examples", "--json")

    assert "Accepted 2 v1 (days/ExampleGen/examples/2/1); before, it was refused by Big in run 1: 2 rows" in first
    assert "2 v1 was accepted by " in again
    assert again.splitlines()[0].endswith(": a holiday already.")
    assert [(v["given"], v["judge"]) for v in json.loads(listed)[0]["verdicts"]] == [(False, "Big"), (True, None)]


def test_refusing_names_the_models_that_learned_from_it(days, spanwise):
    """With the command that replaces them."""
    ran(1)

    code, out, _ = spanwise("refuse", "days.py", "--span", "1", "--because", "wrong unit")

    assert code == 0
    assert "Refused 1 v1 (days/ExampleGen/examples/1/1); before, it was accepted by Big in run 1." in out
    assert "days/Learn/model/1" in out
    assert "spanwise backfill days.py --span 1" in out


def test_refusing_names_no_model_that_learned_from_another_node(days, spanwise):
    """Both nodes have published version 1 of the day, and a model learned from each; one day is refused."""
    both, other = 'Learn(examples=window["examples"])', 'Learn(examples=other["examples"], name="LearnToo")'
    text = PIPELINE.replace(both, f"{both}, other, {other}").replace("    return", f"    {OTHER}\n    return")
    Path("days.py").write_text(text)
    spanwise("run", "days.py", "--span", "1")

    _, out, _ = spanwise("refuse", "days.py", "--span", "1", "--because", "wrong unit")

    assert "days/Learn/model/1" in out
    assert "days/LearnToo/model/1" not in out


def test_a_range_is_judged_at_once(days, spanwise):
    """Every span of it that was published; an older version changes nothing for windows, and it says so."""
    ran(1, 2)
    arrive(2, rows=7, version=2)
    spanwise("run", "days.py", "--span", "2")

    _, out, _ = spanwise("accept", "days.py", "--span", "1..4", "--because", "checked by hand")
    _, old, _ = spanwise("refuse", "days.py", "--span", "2", "--version", "1", "--because", "old")

    assert [line.split(" (")[0] for line in out.splitlines()[:2]] == ["Accepted 1 v1", "Accepted 2 v2"]
    assert out.splitlines()[-1].endswith("spanwise backfill days.py --span 1..2 --train-once")
    assert "Windows read a newer version of the span" in old


def test_verdicts_are_seen_where_spans_are_looked_at(days, spanwise):
    """window, show, lineage and artifacts say who decided, and why."""
    ran(1, 2)

    before = spanwise("window", "days.py")[1]
    spanwise("accept", "days.py", "--span", "2", "--because", "a holiday")
    seen = [
        spanwise("window", "days.py")[1],
        spanwise("show", "days/2")[1],
        spanwise("lineage", "days/ExampleGen/examples/2/1")[1],
        spanwise("artifacts", "days", "--type", "Examples")[1],
    ]

    assert "refused  v1, publication 1" in before
    assert "refused by Big in run 2: 2 rows; a day needs at least 5" in before
    for text in seen:
        assert "accepted by " in text
        assert ": a holiday" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--span", "9", "--because", "x"),
            "has published nothing for span 9, so there is nothing to judge. Nearest: 1.",
        ),
        (("--span", "1", "--because", " "), "Say why, for whoever reads the verdict later:  --because TEXT"),
        (("--span", "1", "--version", "7", "--because", "x"), "Span 1 was not published as v7; it has v1."),
    ],
)
def test_a_verdict_on_nothing_is_refused(days, spanwise, words, message):
    """What was never published, another version, or no reason."""
    ran(1)

    code, _, error = spanwise("accept", "days.py", *words)

    assert code == 2
    assert message in error


def test_a_pipeline_without_gates_has_nothing_to_judge(days, spanwise):
    """Its windows heed no verdict, so none is recorded."""
    Path("days.py").write_text(
        PIPELINE.replace('RollingWindow(gate["', 'RollingWindow(ingest["').replace("gate, w", "w")
    )

    code, _, error = spanwise("accept", "days.py", "--span", "1", "--because", "x")

    assert code == 2
    assert "has no gate" in error
