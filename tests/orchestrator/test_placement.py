"""Placements: where an engine executes a node is recorded as soon as it is known, and shown."""

from datetime import UTC, datetime

import pytest

from spanwise.orchestrator import Component, Output, Pipeline, Report
from spanwise.orchestrator.errors import StoreUnavailable
from spanwise.orchestrator.job import JobEnded, JobPlaced
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.placement import Placement, find_placements, record_placement
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.runner import run
from spanwise.orchestrator.store import Claim, MemoryStore
from spanwise.scheduler.inspect import records

PAGE = "http://cluster:8265/#/actors/a1"
PLACED = Placement(place="ray:auto: one", page_url=PAGE)


class Say(Component):
    def run(self, report: Output[Report]) -> None:
        (report.path / "word").write_text("said")


class Placing(LocalExecutor):
    """Says of each job where it is, as executors on engines do."""

    def wait(self, timeout_s):
        events = super().wait(timeout_s)
        placed = [JobPlaced(event.id, PLACED) for event in events if isinstance(event, JobEnded)]
        return [*placed, *events]


def make_run(root, store, observe=lambda event: None):
    pipeline = Pipeline("p", [Say()])
    with Placing(pipeline) as executor:
        return run(pipeline, executor=executor, store=store, root=root, request=RunRequest(cache=True), observe=observe)


def shown(store, outcome):
    executions = store.executions(outcome.run)
    found = find_placements(store, executions)
    return records.format_run(outcome.run, executions, now=datetime.now(UTC), placements=found)


def test_where_a_node_is_executed_is_recorded_and_shown(tmp_path):
    """With the engine's own page, on a line that a terminal makes a link of; and said while it runs."""
    store, said = MemoryStore(), []
    outcome = make_run(tmp_path, store, lambda event: said.append((event.what, event.message)))

    text = shown(store, outcome)
    assert "  on          ray:auto: one\n" in text
    assert f"  on          {PAGE}\n" in text
    assert ("node-placed", f"ray:auto: one  {PAGE}") in said
    document = records.execution_document(*store.executions(outcome.run), "number", PLACED)
    assert (document["place"], document["page_url"]) == (PLACED.place, PAGE)


def test_a_node_that_reuses_a_result_was_executed_nowhere(tmp_path):
    """The placement belongs to the execution that did the work."""
    store = MemoryStore()
    make_run(tmp_path, store)

    again = make_run(tmp_path, store)

    assert "  on " not in shown(store, again)


def test_a_placement_that_cannot_be_recorded_does_not_fail_the_node(tmp_path, caplog, monkeypatch):
    """It decides nothing."""
    store = MemoryStore()
    claim = store.claim

    def refuse(*claims):
        if claims[0].kind == "placement":
            raise StoreUnavailable("no answer")
        claim(*claims)

    monkeypatch.setattr(store, "claim", refuse)

    assert make_run(tmp_path, store).succeeded
    assert "placement-unrecorded" in caplog.text


@pytest.mark.parametrize("page_url", ["javascript:alert(1)", "file:///etc/passwd", ""])
def test_only_what_is_a_page_is_shown_as_a_link(tmp_path, page_url):
    """Another program may write to the metadata."""
    store = MemoryStore()
    (execution,) = store.executions(make_run(tmp_path, store).run)
    store.amend(Claim("placement", execution.name, {"place": "there", "page_url": page_url}))

    assert find_placements(store, [execution]) == {execution.name: Placement(place="there")}


def test_the_first_placement_of_an_execution_stays(tmp_path):
    """A job is placed once."""
    store = MemoryStore()
    (execution,) = store.executions(make_run(tmp_path, store).run)

    record_placement(store, execution, Placement(place="elsewhere"))

    assert find_placements(store, [execution]) == {execution.name: PLACED}
