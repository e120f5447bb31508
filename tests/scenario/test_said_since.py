"""What people say while work is under way or waits: a backfill that is resumed and a part that pushes heed it."""

import shlex
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from spanwise.orchestrator.base_run import find_base_run
from spanwise.orchestrator.errors import UsageError
from spanwise.orchestrator.run import Trigger
from spanwise.orchestrator.run_request import RunRequest
from spanwise.scheduler.daemon.scheduled_run import ScheduledJob
from spanwise.scheduler.daemon.scheduled_run import _run as run_job
from spanwise.scheduler.project import settings
from spanwise.scheduler.project.load import load
from spanwise.scheduler.schedule.division import PartStart
from spanwise.scheduler.schedule.part import nodes_behind, select_part
from tests.scenario.command_line import CommandLine

HEAD = """
from pathlib import Path
from spanwise import *
from tests.scenario.random_life import Ingest, read_text

class Listed(Ingest):
    takes_span = True
    def available(self, spans=None):
        found = {int(file.name): int(file.read_text().split()[0]) for file in Path("lake").iterdir()}
        return {span: version for span, version in found.items() if spans is None or span in spans}

class Learn(Component):
    def run(self, examples: Input[list[Examples]], base: Input[Model | None], model: Output[Model]) -> None:
        before = read_text(base) if base else ""
        (model.path / "text").write_text(" ".join([before, *map(read_text, examples)]))
        model.spans, model.base = [a.span for a in examples], base.name if base else None
"""

CHECKED = f"""{HEAD}
class Check(Gate):
    def run(self, examples: Input[Examples]) -> None:
        pass
"""

DRIFT = f"""{HEAD}
class Drift(Gate):
    def run(self, examples: Input[Examples], other: Input[Examples | None], report: Output[Report]) -> None:
        (report.path / "text").write_text(f"{{read_text(examples)}} against {{other and read_text(other)}}")
        if Path("stop").exists():
            raise RuntimeError("no memory left")

def flow() -> Pipeline:
    ingest = Listed(lake="lake", name="Ingest")
    before = Previous(ingest["examples"], name="Before")
    drift = Drift(examples=ingest["examples"], other=before["examples"])
    window = RollingWindow(drift["examples"], size=2, since=1, missing=1, name="Window")
    return Pipeline("flow", [ingest, before, drift, window, Learn(examples=window["examples"])])
"""

PREDICT = f"""{HEAD}
class Predict(Component):
    def run(self, examples: Input[Examples], other: Input[Model | None], report: Output[Report]) -> None:
        (report.path / "text").write_text(f"{{read_text(examples)}} by {{other and other.name}}")
        if Path("stop").exists():
            raise RuntimeError("no memory left")

def flow() -> Pipeline:
    ingest = Listed(lake="lake", name="Ingest")
    best = LatestBlessed(past("Learn", "model", Model), name="Best")
    predict = Predict(examples=ingest["examples"], other=best["model"])
    window = RollingWindow(ingest["examples"], size=2, since=1, missing=1, name="Window")
    return Pipeline("flow", [ingest, best, predict, window, Learn(examples=window["examples"])])
"""

WARM = f"""{CHECKED}
def flow() -> Pipeline:
    ingest = Ingest(lake="lake")
    check = Check(examples=ingest["examples"])
    window = RollingWindow(check["examples"], size=1, name="Window")
    before = Latest(past("Learn", "model", Model), name="Before")
    learn = Learn(examples=window["examples"], base=before["model"])
    return Pipeline("flow", [ingest, check, window, before, learn, Pusher(model=learn["model"], destination="serving")])
"""

BLEND = f"""{CHECKED}
class Blend(Component):
    def run(self, newest: Input[Model], before: Input[Model | None], model: Output[Model]) -> None:
        members = [newest, before] if before else [newest]
        (model.path / "text").write_text(" ".join(map(read_text, members)))
        model.spans = sorted({{span for member in members for span in member.spans}})

def flow() -> Pipeline:
    ingest = Ingest(lake="lake")
    check = Check(examples=ingest["examples"])
    learn = Learn(examples=check["examples"])
    before = Latest(past("Learn", "model", Model), name="Before")
    blend = Blend(newest=learn["model"], before=before["model"])
    return Pipeline("flow", [ingest, check, learn, before, blend, Pusher(model=blend["model"], destination="serving")])
"""

WIDE = f"""{CHECKED}
def flow() -> Pipeline:
    ingest = Listed(lake="lake", name="Ingest")
    check = Check(examples=ingest["examples"])
    window = RollingWindow(check["examples"], size=4, since=1, missing=1, name="Window")
    return Pipeline("flow", [ingest, check, window, Learn(examples=window["examples"])])
"""

SERVED = f"""{CHECKED}
def flow() -> Pipeline:
    ingest = Ingest(lake="lake")
    check = Check(examples=ingest["examples"])
    window = RollingWindow(check["examples"], size=2, missing=1, name="Window")
    learn = Learn(examples=window["examples"])
    return Pipeline("flow", [ingest, check, window, learn, Pusher(model=learn["model"], destination="serving")])
"""

LAG = f"""{CHECKED}
class Features(Component):
    def run(self, examples: Input[Examples], before: Input[Examples | None], features: Output[Examples]) -> None:
        (features.path / "text").write_text(f"{{read_text(examples)}}<-{{before and read_text(before)}}")
        features.span, features.version, features.split_names = examples.span, examples.version, ["train"]

def flow() -> Pipeline:
    ingest = Listed(lake="lake", name="Ingest")
    check = Check(examples=ingest["examples"])
    before = Previous(check["examples"], name="Before")
    features = Features(examples=check["examples"], before=before["examples"])
    window = RollingWindow(features["features"], size=2, since=1, name="Window")
    learn = Learn(examples=window["features"])
    push = Pusher(model=learn["model"], destination="serving")
    return Pipeline("flow", [ingest, check, before, features, window, learn, push])
"""

DIRECT = f"""{CHECKED}
class Derive(Component):
    def run(self, examples: Input[Examples], derived: Output[Examples]) -> None:
        derived.span, derived.version, derived.split_names = examples.span, examples.version, ["train"]
        (derived.path / "text").write_text(read_text(examples))

class Fit(Component):
    def run(self, examples: Input[Examples], rounds: int, model: Output[Model]) -> None:
        if Path("stop").exists():
            raise RuntimeError("no memory left")
        (model.path / "text").write_text(f"{{read_text(examples)}} {{rounds}} rounds")
        model.spans = [examples.span]

def flow(rounds: int = 1) -> Pipeline:
    ingest = Ingest(lake="lake")
    check = Check(examples=ingest["examples"])
    derive = Derive(examples=check["examples"])
    fit = Fit(examples=check["examples"], rounds=rounds)
    push = Pusher(model=fit["model"], destination="serving")
    return Pipeline("flow", [ingest, check, derive, fit, push])
"""

TELL = """class Tell(Component):
    def run(self, model: Input[Model], destination: str, report: Output[Report]) -> None:
        (report.path / "text").write_text(model.name)

def flow"""


@pytest.mark.parametrize("parallel", [[], ["--parallel", "2"]], ids=["alone", "parallel"])
@pytest.mark.parametrize(
    ("text", "reader", "words", "instead"),
    [
        (DRIFT, "Drift", ["refuse", "flow.py", "--span", "3"], "flow/Ingest/examples/2/1"),
        (PREDICT, "Predict", ["unbless", "flow/Learn/model/3"], "flow/Learn/model/2"),
    ],
    ids=["refused", "taken back"],
)
def test_a_resumed_backfill_reads_nothing_that_a_person_has_refused_since(
    tmp_path, monkeypatch, text, reader, words, instead, parallel
):
    """Its parallel runs do not see each other, for which they read what was there when it began."""
    bench = CommandLine(tmp_path, monkeypatch, text)
    for span in (1, 2, 3, 4):
        bench.arrive(span, "a")
    for span in (1, 2, 3):
        assert bench("run", "flow.py", "--span", str(span)) == 0
        assert bench("bless", f"flow/Learn/model/{span}", "--because", "good") == 0
    (tmp_path / "stop").touch()
    assert bench("backfill", "flow.py", "--span", "4", "--train-once", *parallel) == 1
    (tmp_path / "stop").unlink()
    assert bench(*words, "--because", "wrong unit") == 0
    bench("backfill", "--resume", "flow/1")

    done = (e for run in bench.store.runs("flow") for e in bench.store.executions(run) if e.node == reader)
    read = next(e for e in done if e.state.succeeded).inputs["other"]
    assert [artifact.name for artifact in read] == [instead]


@pytest.mark.parametrize("refused", [1, 2])
def test_a_part_does_not_read_what_a_refused_span_was_learned_into_through_a_base(tmp_path, monkeypatch, refused):
    """The second model read span 2 itself, and span 1 through the model that it was trained on from."""
    bench = CommandLine(tmp_path, monkeypatch, WARM)
    for span in (1, 2):
        bench.arrive(span, "a")
        assert bench("run", "flow.py", "--span", str(span), "--skip", "Pusher") == 0
    assert bench("refuse", "flow.py", "--span", str(refused), "--because", "wrong unit") == 0

    pipeline = load("flow.py").pipeline
    parts = (PartStart("ingest"), PartStart("train"), PartStart("push", ("Pusher",)))
    push = RunRequest(
        selection=select_part(pipeline, "push", parts),
        behind=nodes_behind(pipeline, "push", parts),
        trigger=Trigger.SCHEDULE,
    )
    with pytest.raises(UsageError, match="does not count any more: refused by") as caught:
        find_base_run(bench.store, pipeline, push.selection, push)

    command = str(caught.value).splitlines()[-1].partition("spanwise ")[2].split()
    assert command[:2] == (["tainted", "flow"] if refused == 1 else ["run", "flow.py"])
    if refused == 1:
        assert [model["name"] for model in bench.ask(*command)["models"]] == [
            "flow/Learn/model/1",
            "flow/Learn/model/2",
        ]


def learn_and_refuse(bench, refused):
    """Two runs train, the second on from the first, and neither pushes; then a person refuses a span."""
    for span in (1, 2):
        bench.arrive(span, "a")
    assert bench("run", "flow.py", "--span", "1", "--skip", "Pusher") == 0
    (bench.folder / "serving").write_text("a file, so that the push fails")
    assert bench("run", "flow.py", "--span", "2") == 1
    (bench.folder / "serving").unlink()
    assert bench("refuse", "flow.py", "--span", str(refused), "--because", "wrong unit") == 0
    return bench


@pytest.mark.parametrize("refused", [1, 2])
@pytest.mark.parametrize("words", [["resume", "flow/2"], ["run", "flow.py", "--only", "Pusher"]], ids=["resume", "run"])
def test_the_same_holds_without_a_window(tmp_path, monkeypatch, capsys, words, refused):
    """The node that trains reads what the gate passes on."""
    text = WARM.replace("Learn(examples=window", "Learn(examples=check").replace("check, window,", "check,")
    bench = learn_and_refuse(CommandLine(tmp_path, monkeypatch, text), refused)

    capsys.readouterr()
    assert bench(*words) == 2
    assert not (tmp_path / "serving").exists()
    said = capsys.readouterr().err
    assert f"learned from {refused} v1" in said
    assert ("through the model that it was trained on from" in said) == (refused == 1)


@pytest.mark.parametrize("refused", [1, 2])
@pytest.mark.parametrize("words", [["resume", "flow/2"], ["run", "flow.py", "--only", "Pusher"]], ids=["resume", "run"])
def test_a_run_pushes_nothing_that_a_refused_span_was_learned_into_unless_its_base_run_is_named(
    tmp_path, monkeypatch, capsys, words, refused
):
    """The same for span 1, which the second model learned through its base, as for span 2, which it read itself."""
    bench = learn_and_refuse(CommandLine(tmp_path, monkeypatch, WARM), refused)

    capsys.readouterr()
    assert bench(*words) == 2
    assert not (tmp_path / "serving").exists()
    lines = capsys.readouterr().err.strip().splitlines()
    assert ("learned from 1 v1 through the model that it was trained on from" in lines[0]) == (refused == 1)
    assert lines[-2].startswith("See how to train without it:  spanwise tainted flow --span 1") == (refused == 1)
    assert bench(*lines[-1].partition("  spanwise ")[2].split()) == 0
    assert (tmp_path / "serving").exists()


def test_a_run_pushes_no_ensemble_with_a_model_that_learned_a_refused_span(tmp_path, monkeypatch, capsys):
    """The component that makes it of the newest model and the one before records the spans of both."""
    bench = learn_and_refuse(CommandLine(tmp_path, monkeypatch, BLEND), refused=1)

    capsys.readouterr()
    assert bench("run", "flow.py", "--only", "Pusher") == 2
    assert "flow/Blend/model/2 learned from 1 v1 through what it was made of, which does" in capsys.readouterr().err
    found = bench.ask("tainted", "flow", "--span", "1")["models"]
    assert "flow/Blend/model/2" in [model["name"] for model in found]


def test_a_replay_of_a_time_before_a_refusal_reads_the_model_as_it_was_then(tmp_path, monkeypatch):
    """What was learned through a base, as what was read, was not refused by then."""
    bench = CommandLine(tmp_path, monkeypatch, WARM.replace("Pusher(model", "Tell(model").replace("def flow", TELL))
    for span in (1, 2):
        bench.arrive(span, "a")
        assert bench("run", "flow.py", "--span", str(span)) == 0
    then = datetime.now(UTC).isoformat()
    assert bench("refuse", "flow.py", "--span", "1", "--because", "wrong unit") == 0

    assert bench("run", "flow.py", "--only", "Tell") == 2
    assert bench("run", "flow.py", "--only", "Tell", "--as-of", then) == 0


@pytest.mark.parametrize("how", ["resume", "retry"])
def test_what_goes_on_with_a_run_does_not_leave_out_the_span_of_it_that_was_refused_since(
    tmp_path, monkeypatch, capsys, how
):
    """A person that resumes it, and the scheduler that tries the tick again: trained without its span, it had run."""
    bench = CommandLine(tmp_path, monkeypatch, WIDE)
    for span in (1, 2, 3, 4):
        bench.arrive(span, "a")
    assert bench("run", "flow.py", "--span", "1") == 0
    known = settings.read(config=None, root=None)
    tick = ScheduledJob(source="flow.py", pipeline="flow", tick="4", span=4, attempt=1, root=str(known.place))
    assert run_job(tick, known) == 1  # spans 2 and 3 are missing
    for span in (2, 3):
        assert bench("run", "flow.py", "--span", str(span), "--to", "Check") == 0
    assert bench("refuse", "flow.py", "--span", "4", "--because", "wrong unit") == 0

    capsys.readouterr()
    code = bench("resume", "flow/2") if how == "resume" else run_job(replace(tick, attempt=2, base=2), known)
    assert code == 1
    said = capsys.readouterr().out
    assert "Window would leave out span 4, but Ingest gave flow/Ingest/examples/4/1 in this run: refused by" in said


@pytest.fixture
def lagging(tmp_path, monkeypatch):
    """The features of each day are made from the day before as well; four days are learned, and a fifth is there."""
    bench = CommandLine(tmp_path, monkeypatch, LAG)
    for span in (1, 2, 3, 4, 5):
        bench.arrive(span, "a")
    for span in (1, 2, 3, 4):
        assert bench("run", "flow.py", "--span", str(span)) == 0
    return bench


def last_learned(bench):
    models = (bench.folder / ".spanwise/flow/Learn/model").glob("*/text")
    return max(models, key=lambda path: int(path.parent.name)).read_text().split()


def test_a_window_does_not_read_what_was_made_from_a_day_before_that_was_refused_since(lagging, capsys):
    """The window wants days 4 and 5; the features of day 4 were made from day 3, and are made again without it."""
    assert lagging("refuse", "flow.py", "--span", "3", "--because", "wrong unit") == 0
    capsys.readouterr()

    assert lagging("run", "flow.py", "--span", "5") == 1

    said = capsys.readouterr().out
    assert "  4: made from 3, refused by " in said
    again, accept, resume = (line.partition("  spanwise ")[2] for line in said.splitlines() if ":  spanwise " in line)
    assert again == "run flow.py --span 4 --to Check --to Features"
    assert accept == "accept flow.py --span 3 --because TEXT"
    assert [lagging(*command.split()) for command in (again, resume)] == [0, 0]
    assert last_learned(lagging) == ["4v1a<-2v1a", "5v1a<-4v1a"]


def test_what_was_made_from_a_refused_day_before_counts_once_that_is_accepted(lagging):
    """The person takes the refusal back."""
    assert lagging("refuse", "flow.py", "--span", "3", "--because", "wrong unit") == 0
    assert lagging("accept", "flow.py", "--span", "3", "--because", "it was right") == 0

    assert lagging("run", "flow.py", "--span", "5") == 0

    assert last_learned(lagging) == ["4v1a<-3v1a", "5v1a<-4v1a"]


def test_a_window_reads_what_was_made_from_an_older_version_of_the_day_before(lagging):
    """A later version replaces what it was made from, and nobody has refused that: `tainted` says what to make again."""
    lagging.arrive(3, "b", version=2)
    assert lagging("run", "flow.py", "--span", "3", "--to", "Features") == 0

    assert lagging("run", "flow.py", "--span", "5") == 0

    assert last_learned(lagging) == ["4v1a<-3v1a", "5v1a<-4v1a"]


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "superseded"])
def test_what_tainted_prints_makes_again_what_was_made_from_a_wrong_day_before(lagging, refused):
    """The window has left day 3 behind, and reads day 4, of which the features were made from it."""
    assert lagging("run", "flow.py", "--span", "5") == 0
    lagging.arrive(3, "b", version=2)
    if refused:
        assert lagging("refuse", "flow.py", "--span", "3", "--because", "wrong unit") == 0
    else:
        assert lagging("run", "flow.py", "--span", "3", "--to", "Features") == 0
    before = lagging.ask("tainted", "flow", "--span", "3", "--version", "1")
    assert (before["in_newest_window"], before["through"]) == (False, ["4"])
    assert before["backfill"] == "spanwise backfill flow.py --span 3..4 --train-once --force"

    assert lagging(*before["backfill"].split()[1:]) == 0

    assert last_learned(lagging) == ["4v1a<-3v2b", "5v1a<-4v1a"]
    after = lagging.ask("tainted", "flow", "--span", "3", "--version", "1")
    assert (after["outlived"], after["serving"], after["through"]) == (True, [], [])


def resume(bench):
    return bench("resume", "flow/1")


def try_again(bench):
    known = settings.read(config=None, root=None)
    tick = ScheduledJob(source="flow.py", pipeline="flow", tick="2", span=2, attempt=2, base=1, root=str(known.place))
    return run_job(tick, known)


def run_part(bench):
    return bench("run", "flow.py", "--from", "Fit", "--param", "rounds=2")


def train_as_scheduled(bench):
    known = settings.read(config=None, root=None)
    division = (("ingest", ()), ("train", ("Fit",)))
    tick = ScheduledJob(
        source="flow.py",
        pipeline="flow:train",
        part="train",
        division=division,
        tick="2",
        span=None,
        attempt=1,
        root=str(known.place),
    )
    return run_job(tick, known)


def fit_and_refuse(bench):
    """The run of span 2 fails where it trains; then a person refuses the span."""
    bench.arrive(2, "a")
    (bench.folder / "stop").touch()
    assert bench("run", "flow.py", "--span", "2") == 1
    (bench.folder / "stop").unlink()
    assert bench("refuse", "flow.py", "--span", "2", "--because", "wrong unit") == 0
    return bench


@pytest.mark.parametrize("read", ['check["examples"]', 'derive["derived"]'], ids=["passed on", "derived"])
@pytest.mark.parametrize("go_on", [resume, try_again, run_part, train_as_scheduled])
def test_no_run_is_supplied_with_a_span_that_was_refused_since_behind_its_gate(
    tmp_path, monkeypatch, capsys, go_on, read
):
    """A person that resumes it, the scheduler that tries the tick again, and the two that run a part: no window does."""
    text = DIRECT.replace('Fit(examples=check["examples"]', f"Fit(examples={read}")
    bench = fit_and_refuse(CommandLine(tmp_path, monkeypatch, text))

    capsys.readouterr()
    try:
        assert go_on(bench) != 0
        said = "".join(capsys.readouterr())
    except UsageError as error:
        said = str(error)
    assert "refused by" in said
    assert "spanwise accept flow.py" in said
    assert not (tmp_path / "serving").exists()


@pytest.mark.parametrize("line", [1, 2, 3], ids=["a new version", "accepted", "insisted"])
def test_each_command_that_is_printed_then_works(tmp_path, monkeypatch, capsys, line):
    """A new version of the span is run, the span is accepted, or a person names the base run."""
    bench = fit_and_refuse(CommandLine(tmp_path, monkeypatch, DIRECT))
    capsys.readouterr()
    assert bench("run", "flow.py", "--from", "Fit", "--param", "rounds=2") == 2
    words = shlex.split(capsys.readouterr().err.splitlines()[line].partition("  spanwise ")[2])

    bench.arrive(2, "b", version=2)
    assert bench(*words) == 0
    assert (tmp_path / "serving").exists() == (line != 2)
    assert line != 2 or bench("resume", "flow/1") == 0


def test_a_span_was_refused_since_also_where_its_data_were_published_again(tmp_path, monkeypatch, capsys):
    """A person refuses what was published last, and an earlier run is resumed, which has published the same."""
    bench = CommandLine(tmp_path, monkeypatch, DIRECT)
    bench.arrive(2, "a")
    (tmp_path / "stop").touch()
    assert bench("run", "flow.py", "--span", "2") == 1
    (tmp_path / "stop").unlink()
    assert bench("run", "flow.py", "--span", "2", "--to", "Check", "--no-cache") == 0
    assert bench("refuse", "flow.py", "--span", "2", "--because", "wrong unit") == 0

    assert bench("resume", "flow/1") == 2
    assert "Check passed on 2 v1, which does not count any more: refused by" in capsys.readouterr().err


def test_a_part_with_the_gate_itself_judges_the_span_again(tmp_path, monkeypatch, capsys):
    """Its gate refuses what a person has refused, as in a whole run."""
    bench = fit_and_refuse(CommandLine(tmp_path, monkeypatch, DIRECT))
    assert bench("run", "flow.py", "--from", "Check") == 1
    assert "Check failed: span 2 was refused by" in "".join(capsys.readouterr())


def test_a_part_that_reads_a_window_goes_on_without_the_span_that_was_refused_since(tmp_path, monkeypatch):
    """The window chooses among the spans that count."""
    bench = CommandLine(
        tmp_path, monkeypatch, WIDE.replace("size=4", "size=1").replace("missing=1", "missing=1, skip=1")
    )
    for span in (1, 2, 3):
        bench.arrive(span, "a")
        assert bench("run", "flow.py", "--span", str(span), "--to", "Check") == 0
    assert bench("refuse", "flow.py", "--span", "3", "--because", "wrong unit") == 0

    assert bench("run", "flow.py", "--from", "Window") == 0


def test_no_push_serves_what_learned_from_a_span_that_was_refused_since(tmp_path, monkeypatch, capsys):
    """Neither by name, nor as the champion, nor as the printed way back; a person who blesses it since insists."""
    bench = CommandLine(tmp_path, monkeypatch, SERVED)
    for span in (1, 2, 3, 4):
        bench.arrive(span, "a")
        assert bench("run", "flow.py", "--span", str(span)) == 0
    assert bench("refuse", "flow.py", "--span", "3", "--because", "wrong unit") == 0
    capsys.readouterr()

    assert bench("unbless", "flow/Learn/model/4", "--because", "learned from 3") == 0
    assert "Roll back:  spanwise push flow/Learn/model/2 --because TEXT" in capsys.readouterr().out
    for named in ("flow/Learn/model/3", "flow"):
        assert bench("push", named, "--because", "4 is wrong") == 2
        refused = capsys.readouterr().err
        assert "flow/Learn/model/3 learned from flow/Ingest/examples/3/1, which was refused by" in refused
        assert "spanwise tainted flow --span 3\n" in refused
    assert bench("tainted", "flow", "--span", "3") == 1

    assert bench("bless", "flow/Learn/model/3", "--because", "better than 4") == 0
    assert bench("push", "flow", "--because", "4 is wrong") == 0
