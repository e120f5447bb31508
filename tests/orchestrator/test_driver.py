"""Drivers: what to do with a node in a run, decided from what is there; nothing is started or written."""

import functools
import importlib
import shutil
import threading
from pathlib import Path

import pytest

from spanwise.orchestrator import (
    Artifact,
    Component,
    Examples,
    Input,
    Model,
    Output,
    Outputs,
    Report,
    ResolutionError,
    Resolver,
    Run,
    past,
)
from spanwise.orchestrator.driver import Execute, Reuse, drive, find_edits, history_of, is_on_disk
from spanwise.orchestrator.pipeline import Pipeline
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.testing import Trial

RUN = Run(pipeline="p", number=9)


class Make(Component):
    libraries = ("pytest",)

    def run(self, report: Output[Report], word: str) -> None:
        (report.path / "word").write_text(word)


class Link(Component):
    def run(self, report: Output[Report]) -> None:
        (report.path / "7").write_text("content")
        (report.path / "latest").symlink_to("7")


class Push(Make):
    cacheable = False

    def run(self, report: Output[Report], word: str) -> None: ...


class Read(Component):
    def run(self, one: Input[Report], many: Input[list[Report]], none: Input[Report | None]) -> None: ...


class Take(Component):
    def run(self, one: Input[Report]) -> None: ...


class Train(Component):
    def run(self, model: Output[Model]) -> None:
        (model.path / "weights").write_text("1")


class Compare(Component):
    def run(self, baseline: Input[list[Model]]) -> None: ...


class Each(Component):
    def run(self, reports: Outputs[Report]) -> None: ...


class Dated(Component):
    """What it does depends on the run's span and on what it has published before."""

    prepared = ("today", "before")

    def run(self, report: Output[Report], today: int, before: int) -> None: ...

    def prepare(self, run, history):
        return {"today": run.span, "before": len(list(history("report").newest()))}


class All(Resolver):
    def __init__(self, source):
        super().__init__(source, many=True)

    def resolve(self, history):
        return list(history.newest())


class Forecast(Artifact):
    horizon: int | None


class LongForecast(Forecast):
    certainty: float | None


class Renamed(Artifact, kind="Forecast"):
    horizon: int | None


def make_of(given):
    """A component `Foretell`, the code of which is the same whatever the kind of its output."""

    class Foretell(Component):
        def run(self, out: Output[Report]) -> None:
            (out.path / "x").write_text("1")

    Foretell.run.__annotations__["out"] = Output[given]
    return Foretell


@pytest.fixture
def trial(tmp_path):
    """A store in which `Make(word="a")` was published once."""
    trial = Trial(tmp_path)
    trial.first = trial.run(Pipeline("p", [Make(word="a")]))
    return trial


def decide(trial, node, inputs=None, *, cache=True, mine=None, run=RUN):
    return drive(node, run, trial.store, inputs or {}, mine or {}, cache=cache)


def test_what_was_done_before_is_reused(trial):
    """The same component, parameters and code: the earlier outputs, and whose they are."""
    plan = decide(trial, Make(word="a"))

    assert isinstance(plan, Reuse)
    assert plan.outputs["report"][0].id == trial.first.artifact("Make", "report").id
    assert plan.execution == trial.first["Make"].id
    assert plan.reason == "same inputs, parameters and code as p/1/Make/1"


@pytest.mark.parametrize(
    ("node", "options", "reason"),
    [
        (Make(word="b"), {}, "no cached result matched"),
        (Make(word="a", name="Other"), {}, "no cached result matched"),
        (Make(word="a"), {"cache": False}, "caching is disabled for this run"),
        (Make(word="a", cache=False), {}, "caching is disabled for this node"),
        (Push(word="a"), {}, "it has effects outside the store, so it is never served from the cache"),
    ],
)
def test_work_is_done_for_a_reason(trial, node, options, reason):
    """What has changed, or what keeps the cache from being used, is told."""
    plan = decide(trial, node, **options)

    assert isinstance(plan, Execute)
    assert plan.reason == reason


def test_a_hit_is_checked_against_the_disk(trial):
    """Outputs that are gone, or of another size, are made again."""
    report = trial.first.artifact("Make", "report")
    (report.path / "word").write_text("longer")
    damaged = decide(trial, Make(word="a"))
    shutil.rmtree(report.path)
    gone = decide(trial, Make(word="a"))

    assert isinstance(damaged, Execute)
    assert gone.reason == f"the cached result of p/1/Make/1 is unusable: {report.uri} is missing or damaged"


@pytest.mark.parametrize(("before", "now"), [(Report, Forecast), (Forecast, Report), (Artifact, Model)])
def test_a_resolver_reads_no_artifact_that_was_published_as_another_kind(trial, before, now):
    """The kind of an output was changed: the old files are not what the new kind says. The message has the way out."""
    old = trial.run(Pipeline("p", [make_of(before)()])).artifact("Foretell", "out")

    with pytest.raises(ResolutionError) as refused:
        decide(trial, All(make_of(now)()["out"]))

    assert f"All would read {old.name}, which was published as {before.kind}" in str(refused.value)
    assert f"is a channel of {now.kind} now" in str(refused.value)
    assert "give the output or the node Foretell another name" in str(refused.value)
    assert ('class Forecast(Artifact, kind="Report")' in str(refused.value)) == (now is Forecast)
    assert decide(trial, All(make_of(now)(name="Anew")["out"])).outputs == {}


@pytest.mark.parametrize(
    ("before", "now"),
    [(Forecast, LongForecast), (LongForecast, Forecast), (Forecast, Renamed), (Report, Artifact)],
)
def test_a_resolver_reads_what_extends_its_kind_or_is_extended_by_it(trial, before, now):
    """A kind may get properties, or a class of another name, without the loss of its history; what is read says what it was."""
    old = trial.run(Pipeline("p", [make_of(before)()])).artifact("Foretell", "out")

    (found,) = decide(trial, All(make_of(now)()["out"])).outputs["out"]

    assert (found.id, type(found), found.kind) == (old.id, now, before.kind)


def test_a_result_of_another_kind_is_not_reused(trial, monkeypatch):
    """The name of a kind in the signature may mean another class since; the code is the same."""
    monkeypatch.setitem(globals(), "Kind", Forecast)
    one, other = make_of(Report), make_of(Report)
    one.run.__annotations__["out"] = other.run.__annotations__["out"] = "Output[Kind]"
    made = trial.run(Pipeline("p", [one()]))
    monkeypatch.setitem(globals(), "Kind", Report)

    plan, edits = decide(trial, other()), find_edits(other(), made["Foretell"])

    assert plan.reason == "the cached result of p/2/Foretell/1 is unusable: p/Foretell/out/1 was published as Forecast"
    assert edits == ["output out"]


class Publish(Component):
    """What it does is never cached, so only its parameters are on record."""

    cacheable = False

    def run(self, columns: dict[str, str]) -> None: ...


def test_an_edit_of_the_order_of_a_dict_is_seen_also_where_nothing_is_cached(trial):
    """Code may go by it, as the cache key says of all other nodes."""
    made = trial.run(Pipeline("p", [Publish(columns={"a": "x", "b": "y"})]))["Publish"]

    same, other = (find_edits(Publish(columns=each), made) for each in ({"a": "x", "b": "y"}, {"b": "y", "a": "x"}))

    assert (same, other) == ([], ["parameter columns"])


class KeepsFirst(Component):
    """Keeps an argument of its own `__init__`, as a class in Python does."""

    def __init__(self, *, at_least, name=None):
        self.at_least = at_least
        super().__init__(name=name)

    @functools.cached_property
    def limit(self):
        return 2 * self.at_least

    def run(self, report: Output[Report]) -> None:
        (report.path / "x").write_text(str(self.at_least))


class KeepsLast(KeepsFirst):
    def __init__(self, *, at_least):
        super().__init__(at_least=0)
        self.at_least = at_least


class KeepsUncached(KeepsFirst):
    cacheable = False


@pytest.mark.parametrize("component", [KeepsFirst, KeepsLast, KeepsUncached])
def test_what_a_component_keeps_of_its_own_init_counts(trial, component):
    """A run with another value of it is no reuse, and a part does not read what was made with the old one."""
    made = trial.run(Pipeline("p", [component(at_least=5)]))[component.__name__]
    again = component(at_least=5)
    assert again.limit

    other = component(at_least=500)

    assert find_edits(again, made) == []
    assert isinstance(decide(trial, again), Reuse if component.cacheable else Execute)
    assert find_edits(other, made) == ["parameter self.at_least"]
    assert isinstance(decide(trial, other), Execute)


def test_what_a_component_keeps_that_has_no_content_is_not_cached(trial):
    """As a parameter that cannot be fingerprinted."""
    plan = decide(trial, KeepsFirst(at_least=threading.Lock()))

    assert plan.reason.startswith("it cannot be cached: parameter 'self.at_least' of KeepsFirst")


@pytest.mark.parametrize("loss", ["gone", "cut short"])
def test_work_is_not_done_on_inputs_that_are_gone(trial, loss):
    """A node does not run on what is left of its inputs: the message names the artifact and makes it again."""
    report = trial.first.artifact("Make", "report")
    if loss == "gone":
        shutil.rmtree(report.path)
    else:
        (report.path / "word").write_text("")

    with pytest.raises(ResolutionError, match="missing or damaged") as refused:
        decide(trial, Take(one=Make(word="a")["report"]), {"one": (report,)})

    assert "p/Make/report/1" in str(refused.value)
    assert "spanwise run p.py --to Make" in str(refused.value)


@pytest.mark.parametrize("chosen", [True, False])
def test_an_earlier_model_that_is_gone_is_not_trained_again(trial, chosen):
    """Training makes another model, which neither a resolver nor a push by name takes for it."""
    train = Train()
    model = trial.run(Pipeline("p", [train])).artifact("Train", "model")
    compare = Compare(baseline=(All(train["model"]) if chosen else train)["model"])
    shutil.rmtree(model.path)

    with pytest.raises(ResolutionError) as refused:
        decide(trial, compare, {"baseline": (model,)})

    assert str(refused.value) == (
        f"Compare reads p/Train/model/1, but the files are missing or damaged: {model.uri}\n"
        "Restore the model from a backup; to train again makes another one.\n"
        "If it is a champion, the one before it is the baseline after:  spanwise unbless p/Train/model/1 --because damaged"
    )


def test_a_file_is_on_the_disk_with_its_size(trial):
    """An artifact may be one file, or a folder of them."""
    report = trial.first.artifact("Make", "report")
    file = type(report)(str(report.path / "word"), size_bytes=1)

    assert is_on_disk(report)
    assert is_on_disk(file)
    assert not is_on_disk(type(report)(str(report.path / "nothing")))


def test_links_between_the_files_of_an_artifact_count_for_nothing(trial):
    """As in the size that was recorded: a model with a link `latest` is neither missing nor damaged."""
    report = trial.run(Pipeline("p", [Link()])).artifact("Link", "report")

    assert (report.path / "latest").read_text() == "content"
    assert is_on_disk(report)


def test_what_a_run_prepares_is_part_of_the_key(trial):
    """The values that only the run knows can change the result, so they change the key, and are recorded."""
    first = decide(trial, Dated(), run=Run(pipeline="p", number=9, span=1))
    second = decide(trial, Dated(), run=Run(pipeline="p", number=9, span=2))

    assert first.prepared == {"today": 1, "before": 0}
    assert first.parameters == {"today": "1", "before": "0"}
    assert first.key.digest != second.key.digest


def test_an_input_changes_the_key_by_its_content(trial):
    """Where an artifact lies does not matter, what is in it does."""
    make = Make(word="a")
    node = Read(one=make["report"], many=[make["report"]])
    report = trial.first.artifact("Make", "report")

    def key(artifact):
        return decide(trial, node, {"one": (artifact,), "many": (artifact,)}).key.digest

    size = {"kind": report.kind, "size_bytes": report.size_bytes}
    elsewhere = shutil.copytree(report.path, trial.root / "elsewhere")
    moved = type(report)(str(elsewhere), id=77, content=report.content, **size)
    other = type(report)(report.uri, id=report.id, content="other", **size)

    assert key(report) == key(moved) != key(other)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"one": 0, "many": 1}, r"Read needs 'one', but Make\['report'\] is empty in this run"),
        ({"one": 1, "many": 0}, r"Read needs 'many', but Make\['report'\] is empty in this run"),
        ({"one": 2, "many": 1}, r"Read takes one 'one', not 2; annotate it Input\[list\[…\]\]"),
    ],
)
def test_inputs_are_as_many_as_the_signature_says(trial, inputs, message):
    """Too few and too many are found before anything is started."""
    make = Make(word="a")
    node = Read(one=make["report"], many=[make["report"]])
    report = trial.first.artifact("Make", "report")

    with pytest.raises(ResolutionError, match=message):
        decide(trial, node, {name: (report,) * count for name, count in inputs.items()})


def test_a_resolver_reuses_what_it_chose(trial):
    """It says which it chose, and never this run's own."""
    make = Make(word="a")
    report = trial.first.artifact("Make", "report")
    found, nothing = decide(trial, All(make["report"])), decide(trial, All(make["report"]), mine={"report": [report]})

    assert found.outputs["report"][0].id == report.id
    assert found.reason == "chose p/Make/report/1"
    assert nothing.outputs == {}
    assert nothing.reason == "found no artifact to choose"


@pytest.mark.parametrize(
    ("editions", "calendar", "reason"),
    [
        ([(15_707, 1), (15_708, 2), (15_709, 2)], "day", "chose 2013-01-02 v1, 2013-01-03 to 2013-01-04 v2"),
        ([(3, None), (4, None)], None, "chose 3 to 4"),
        ([(span, 1) for span in range(0, 200, 2)], None, "chose 100 spans, 0 to 198"),
    ],
)
def test_a_choice_of_spans_is_told_as_people_write_them(trial, editions, calendar, reason):
    """Dates and versions, neighbours summed up, and of many only the ends."""

    class Given(All):
        def resolve(self, history):
            facts = [{"span": s, "version": v, "split_names": [], "calendar": calendar} for s, v in editions]
            return [Examples(f"/{n}", id=n + 1, properties=of) for n, of in enumerate(facts)]

    assert decide(trial, Given(past("Ingest", "examples", Examples))).reason == reason


def test_the_past_is_seen_as_of_the_run(trial):
    """A history knows the run's pipeline, node and key, and what it may see."""
    history = history_of(trial.store, RUN, Make(word="a")["report"])

    assert str(history.address) == "p/Make/report"
    assert history.latest().kind == "Report"


def test_many_outputs_are_reused_together(trial):
    """All that an earlier execution made under a key."""
    each = Each()
    trial.run(Pipeline("p", [each]), RunRequest())

    assert decide(trial, each).outputs == {}


class ImportsByName(Component):
    """Its result depends on code that no static name leads to."""

    def run(self, report: Output[Report], module: str) -> None:
        (report.path / "x").write_text(str(importlib.import_module(module)))


class ImportsInside(Component):
    """As above; the import stands where it is used."""

    def run(self, report: Output[Report], module: str) -> None:
        from importlib import import_module

        (report.path / "x").write_text(str(import_module(module)))


@pytest.mark.parametrize("component", [ImportsByName, ImportsInside])
def test_code_that_imports_by_name_is_warned_of(trial, caplog, component):
    """What it imports is not in the cache key; the warning names the node, the function, and the way out."""
    decide(trial, component(module="json"))

    (warning,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("dynamic-import")]
    assert f"{component.__name__} imports modules by names that are known only when it runs" in warning
    assert f"({component.__name__}.run)" in warning


class OpensFile(Component):
    """Reads a file that is in no input."""

    def run(self, report: Output[Report]) -> None:
        (report.path / "x").write_text(read_words() + "words.no")


def read_words() -> str:
    return Path("lists/words.txt").read_text()


def test_code_that_names_a_file_is_warned_of(trial, caplog, tmp_path, monkeypatch):
    """What it reads is not in the cache key, also where a function that it calls reads it."""
    monkeypatch.chdir(tmp_path)
    decide(trial, OpensFile())
    assert "file-outside-key" not in caplog.text, "there is no such file"
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/words.txt").write_text("a b")

    decide(trial, OpensFile())

    (warning,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("file-outside-key")]
    assert "the code or a parameter of OpensFile names lists/words.txt, and what files hold" in warning


class OpensNamedFile(Component):
    """Reads the file whose path it is given."""

    def run(self, report: Output[Report], words: object) -> None:
        (report.path / "x").write_text(Path(str(words)).read_text())


class OpensNeighbour(Component):
    """Reads a file beside its code, whatever the working directory is."""

    def run(self, report: Output[Report]) -> None:
        (report.path / "x").write_text(Path(__file__).with_name("driven_words.txt").read_text())


class OpensGlobal(Component):
    """Reads a file whose path is in a global."""

    def run(self, report: Output[Report]) -> None:
        (report.path / "x").write_text(WORDS.read_text())


WORDS = Path("words.txt")


@pytest.mark.parametrize(
    ("node", "name"),
    [
        (OpensNamedFile(words="words.txt"), "words.txt"),
        (OpensNamedFile(words=[{"of": Path("words.txt")}]), "words.txt"),
        (OpensGlobal(), "words.txt"),
        (OpensNeighbour(), "driven_words.txt"),
    ],
    ids=["a parameter", "in a parameter", "a global", "beside the code"],
)
def test_a_file_is_warned_of_however_code_comes_to_its_name(trial, caplog, tmp_path, monkeypatch, node, name):
    """What is in the cache key is the name, so a result is reused after the file was edited."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("a b")
    if isinstance(node, OpensNeighbour):
        code = OpensNeighbour.run.__code__.replace(co_filename=str(tmp_path / "code.py"))
        monkeypatch.setattr(OpensNeighbour.run, "__code__", code)
        monkeypatch.chdir("/")

    decide(trial, node)

    (warning,) = [r.getMessage() for r in caplog.records if r.getMessage().startswith("file-outside-key")]
    assert f"of {node.name} names {name}, and what files hold" in warning


def test_code_that_imports_by_statement_is_not_warned_of(trial, caplog):
    """The modules of import statements are in the cache key."""
    decide(trial, Make(word="a"))

    assert "dynamic-import" not in caplog.text
