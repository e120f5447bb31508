from dataclasses import replace

import pytest

from spanwise.orchestrator import Examples, Execution, NotRecorded, Run, State, UsageError
from spanwise.orchestrator.store import MemoryStore
from spanwise.scheduler.inspect import find
from tests.scheduler.records import DAY, begun, ended, filled, published


@pytest.mark.parametrize(
    ("reference", "name"), [("flights/2", "flights/2"), ("flights", "flights/3"), ("taxi", "taxi/1")]
)
def test_a_run_is_found_by_name_or_as_the_newest_of_a_pipeline(reference: str, name: str) -> None:
    """`flights` alone is its newest run."""
    assert find.run(filled(), reference).name == name


def test_a_pipeline_that_is_named_is_found_without_listing_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a thousand."""
    store = filled()
    monkeypatch.setattr(store, "pipelines", lambda: pytest.fail("they were listed"))

    assert find.run(store, "flights/2").number == 2
    assert find.run(store, "flights").number == 3
    assert [run.number for run in find.runs(store, "flights", 2)] == [3, 2]


def test_a_number_is_enough_when_there_is_one_pipeline() -> None:
    """Nobody types the name of the only pipeline."""
    store = MemoryStore()
    ended(store, begun(store))

    assert find.run(store, "1").name == "flights/1"


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("2", "flights/2, taxi/2"),
        ("flight", "Did you mean flights?"),
        ("flights/9", "runs are 1 to 3"),
        ("zzz/1", "Pipelines: flights, taxi"),
    ],
)
def test_a_run_that_is_not_there_is_told_with_what_is_near(reference: str, says: str) -> None:
    """The message holds what could have been meant."""
    with pytest.raises(NotRecorded) as unknown:
        find.run(filled(), reference)

    assert says in str(unknown.value)


def test_an_empty_store_says_how_to_begin() -> None:
    """Before the first run there is nothing to find."""
    with pytest.raises(NotRecorded, match="spanwise run FILE"):
        find.run(MemoryStore(), "flights")


def test_runs_of_all_pipelines_are_listed_up_to_a_limit() -> None:
    """With a pipeline's name, only its own."""
    store = filled()

    assert {r.pipeline for r in find.runs(store, None, 10)} == {"flights", "taxi"}
    assert [r.name for r in find.runs(store, "flights", 2)] == ["flights/3", "flights/2"]


def test_published_artifacts_come_newest_first() -> None:
    """Without a span, the newest runs are read."""
    found, calendars = find.artifacts(filled(), "flights", kind=None, span=None, limit=3)

    assert [a.name for a in found] == [
        "flights/Trainer/model/3",
        f"flights/ExampleGen/examples/{DAY}/2",
        "flights/Trainer/model/2",
    ]
    assert calendars["flights"].label(DAY) == "2013-01-05"


def test_what_a_gate_has_passed_on_is_listed_once_and_takes_no_place_of_another() -> None:
    """A gate has as its output what it judged, often an old artifact; nothing was published by that."""
    store = filled()
    judged, _ = find.artifacts(store, "flights", kind="Examples", span=None, limit=10)
    run = begun(store, span=DAY + 1)
    published(store, run, "RowCount", outputs={"examples": judged[1]})
    ended(store, run)

    found, _ = find.artifacts(store, "flights", kind="Examples", span=None, limit=10)
    newest, _ = find.artifacts(store, "flights", kind="Examples", span=None, limit=1)

    assert [a.name for a in found] == [a.name for a in judged]
    assert [a.name for a in newest] == [judged[0].name]


@pytest.mark.parametrize("span", ["2013-01-05", str(DAY)])
def test_artifacts_of_a_span_are_found_by_label_or_number(span: str) -> None:
    """Every version of the span, and nothing else."""
    found, _ = find.artifacts(filled(), "flights", kind="Examples", span=span, limit=10)

    assert [a.properties["version"] for a in found] == [2, 1]


def test_artifacts_of_a_span_are_found_after_many_runs_that_have_reused_them() -> None:
    """As when only the second half of the pipeline was run since."""
    store = filled()
    (examples,), _ = find.artifacts(store, "flights", kind="Examples", span=str(DAY + 1), limit=10)
    for _ in range(find.LOOK_BACK):
        run = begun(store, span=DAY + 1)
        begun_now = store.begin(Execution(pipeline="flights", run=run.number, node="ExampleGen"))
        store.publish(replace(begun_now, state=State.CACHED, reused=1, outputs={"examples": (examples,)}))
        ended(store, run)

    found, _ = find.artifacts(store, "flights", kind="Examples", span=str(DAY + 1), limit=10)

    assert found == [examples]


@pytest.mark.parametrize("pipeline", ["flights", None])
def test_a_span_may_be_one_of_any_node_or_pipeline(pipeline: str | None) -> None:
    """Prices come by the month, and the newest run was one of theirs alone; another pipeline counts hours."""
    store = filled()
    month = Examples("/root/prices", properties={"span": 516, "split_names": ["train"], "calendar": "month"})
    of_prices = store.begin_run(Run(pipeline="flights", calendar="month", span=516))
    published(store, of_prices, "Prices", outputs={"examples": month})
    store.begin_run(Run(pipeline="taxi", calendar="hour"))

    days, _ = find.artifacts(store, pipeline, kind="Examples", span="2013-01-06", limit=10)
    months, _ = find.artifacts(store, pipeline, kind="Examples", span="2013-01", limit=10)

    assert [a.name for a in days] == [f"flights/ExampleGen/examples/{DAY + 1}/1"]
    assert [a.name for a in months] == ["flights/Prices/examples/516/1"]


def test_a_span_that_is_none_is_refused() -> None:
    """The calendar of the pipeline says how spans are typed."""
    with pytest.raises(UsageError, match="is not a span"):
        find.artifacts(filled(), "flights", kind=None, span="soon", limit=10)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("Modle", "No Modle was published here. Did you mean Model? Published types: Examples, Model."),
        ("example", "No example was published here. Did you mean Examples? Published types: Examples, Model."),
        ("Zebra", "No Zebra was published here. Published types: Examples, Model."),
        ("Model", "No such artifact was published here."),
        (None, "No such artifact was published here."),
    ],
)
def test_a_type_that_nothing_has_is_told_with_those_there_are(kind: str | None, said: str) -> None:
    """Of a type that is there, nothing fitted the rest of what was asked."""
    assert find.no_artifacts_message(filled(), None, kind) == said
