"""The run loop: what it starts, in which order, what it records of every outcome, and that it leaves nothing open."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from spanwise.orchestrator import (
    Attempt,
    Component,
    Fenced,
    Held,
    Input,
    Model,
    NodeFailed,
    Output,
    Pipeline,
    Report,
    Resolver,
    Retry,
    State,
    UsageError,
    node_server,
)
from spanwise.orchestrator.errors import StoreUnavailable
from spanwise.orchestrator.lease import Clock, acquire, current
from spanwise.orchestrator.local_executor import LocalExecutor
from spanwise.orchestrator.run_request import RunRequest
from spanwise.orchestrator.runner import Controller, run
from spanwise.orchestrator.stop_request import request_stop
from spanwise.orchestrator.store import Address, AlreadyClaimed, Claim, MemoryStore
from spanwise.orchestrator.testing import Trial
from tests.scenario.processes import frozen, needs_freezer

pytestmark = pytest.mark.usefixtures("with_servers")


class Say(Component):
    """Writes what it is told, after `wait_s`; notes its start and end in `notes`, if given."""

    def run(
        self,
        before: Input[list[Report] | None],
        report: Output[Report],
        attempt: Attempt,
        word: str = "",
        wait_s: float = 0.0,
        fails: int = 0,
        until: str = "",
    ) -> None:
        (report.path / "started").write_text(str(time.monotonic()))
        time.sleep(wait_s)
        while until and not Path(until).exists():
            time.sleep(0.01)
        if attempt.number <= fails:
            raise ValueError(f"try {attempt.number}")
        (report.path / "word").write_text(word + "".join((b.path / "word").read_text() for b in before or []))


class Leave(Component):
    """Leaves a child, notes who it is, and ends when it is told to go."""

    def run(self, report: Output[Report], place: str) -> None:
        child = os.fork()
        if not child:
            time.sleep(1000)
        Path(place, "draft").write_text(str(child))
        Path(place, "draft").rename(Path(place, "pid"))
        while not Path(place, "go").exists():
            time.sleep(0.01)
        (report.path / "word").write_text("left")


class Train(Component):
    """Makes a model without what its kind requires, or asks the controller before it acts."""

    def run(self, model: Output[Model]) -> None:
        (model.path / "weights").touch()


class Newest(Resolver):
    def __init__(self, source):
        super().__init__(source, name="Newest", many=False, optional=True)

    def resolve(self, history):
        return list(history.newest())[:1]


class Unprepared(Say):
    """Fails before it starts."""

    def prepare(self, run, history):
        raise KeyError("no such table")


@pytest.fixture
def trial(tmp_path):
    return Trial(tmp_path)


def chain(**second):
    first = Say(word="a", name="First")
    return Pipeline("p", [first, Say(word="b", before=[first["report"]], name="Second", **second)])


def word(ran, node):
    return (ran.artifact(node, "report").path / "word").read_text()


def states_of(store, number=1, pipeline="p"):
    return {e.name: e.state for e in store.executions(store.run(pipeline, number))}


def test_parents_come_first(trial):
    """A node reads what its parents made in this run."""
    ran = trial.run(chain())

    assert ran.run.state is State.COMPLETE
    assert word(ran, "Second") == "ba"


def test_everything_is_told_in_order(trial):
    """Observers hear of the run and of each node as it happens."""
    ran = trial.run(chain())

    assert [(e.what, e.node) for e in ran.events] == [
        ("run-started", ""),
        ("node-started", "First"),
        ("node-completed", "First"),
        ("node-started", "Second"),
        ("node-completed", "Second"),
        ("run-ended", ""),
    ]


def test_a_second_run_reuses_the_first(trial):
    """What has not changed is not done again, and refers to what was made before."""
    first = trial.run(chain())
    second = trial.run(chain())

    assert second.states == {"First": State.CACHED, "Second": State.CACHED}
    assert second.artifact("Second", "report").id == first.artifact("Second", "report").id
    assert second["Second"].reused == first["Second"].id


def test_the_cache_can_be_left_aside(trial):
    """`cache=False` does everything again, and publishes it anew."""
    trial.run(chain())
    ran = trial.run(chain(), RunRequest(cache=False))

    assert ran.states == {"First": State.COMPLETE, "Second": State.COMPLETE}
    assert ran.artifact("First", "report").name == "p/First/report/2"


def test_no_more_nodes_run_at_once_than_asked(trial, tmp_path):
    """The limit holds, and up to it independent nodes run side by side: none ends before a second has started."""
    pipeline = Pipeline("p", [Say(name=f"n{i}", until=str(tmp_path / "go")) for i in range(4)])
    running, at_once = set(), []

    def observe(event):
        if event.what == "node-started":
            running.add(event.node)
        elif event.what == "node-completed":
            running.remove(event.node)
        at_once.append(len(running))
        if len(running) == 2:
            (tmp_path / "go").touch()

    with LocalExecutor(pipeline) as executor:
        request = RunRequest(jobs=2)
        run(pipeline, executor=executor, store=trial.store, root=trial.root, request=request, observe=observe)

    assert max(at_once) == 2


def test_a_failure_skips_what_depends_on_it_and_nothing_else(trial):
    """Branches that do not depend on a failed node go on to their end."""
    bad = Say(name="Bad", fails=9)
    good = Say(name="Good", word="g", wait_s=0.1)
    nodes = [
        bad,
        good,
        Say(name="AfterBad", before=[bad["report"]]),
        Say(name="AfterThat", before=[bad["report"]]),
        Say(name="AfterGood", before=[good["report"]]),
        Say(name="AfterBoth", before=[good["report"], bad["report"]]),
    ]
    ran = trial.run(Pipeline("p", nodes))

    assert ran.states == {"Bad": State.FAILED, "Good": State.COMPLETE, "AfterGood": State.COMPLETE}
    assert ran.outcome.failed == ("Bad",)
    assert set(ran.outcome.skipped) == {"AfterBad", "AfterThat", "AfterBoth"}
    assert (ran.run.state, ran.run.error) == (State.FAILED, "Bad failed")


def test_a_failed_node_publishes_nothing_and_leaves_no_files(trial):
    """What it had written is taken away; the log stays."""
    ran = trial.run(Pipeline("p", [Say(name="Bad", fails=9)]))

    assert ran["Bad"].error.startswith("ValueError: try 1")
    assert list((trial.root / "p" / "Bad" / "report").iterdir()) == []
    assert list(trial.store.newest(Address("p", "Bad", "report"))) == []
    assert "ValueError: try 1" in ran.log("Bad")


def test_an_output_without_what_its_kind_requires_is_not_published(trial):
    """A missing property is an error of the node that made it; nothing of it becomes visible."""

    class Gauge(Report):
        level: int

    class Measure(Component):
        def run(self, gauge: Output[Gauge], report: Output[Report]) -> None:
            (report.path / "fine").touch()

    ran = trial.run(Pipeline("p", [Measure()]))

    assert "without level, which Gauge requires" in ran["Measure"].error
    assert list(trial.store.newest(Address("p", "Measure", "report"))) == []
    assert list(trial.store.newest(Address("p", "Measure", "gauge"))) == []


def test_a_failed_node_is_tried_again(trial):
    """Retries are attempts of their own, each recorded, and the last one counts."""
    ran = trial.run(Pipeline("p", [Say(name="Flaky", fails=2, retry=Retry(times=2, backoff_s=0.01))]))

    assert ran.run.state is State.COMPLETE
    assert states_of(trial.store) == {
        "p/1/Flaky/1": State.FAILED,
        "p/1/Flaky/2": State.FAILED,
        "p/1/Flaky/3": State.COMPLETE,
    }
    assert [e.what for e in ran.events].count("retry-scheduled") == 2


def test_retries_come_to_an_end(trial):
    """After its retries a node has failed."""
    ran = trial.run(Pipeline("p", [Say(name="Bad", fails=9, retry=Retry(times=1, backoff_s=0.01))]))

    assert ran["Bad"].attempt == 2
    assert ran.outcome.failed == ("Bad",)


@pytest.fixture
def turns(monkeypatch):
    """How long each turn of the loop was ready to wait."""
    timeouts, wait = [], LocalExecutor.wait

    def counted(executor, timeout_s):
        timeouts.append(timeout_s)
        return wait(executor, timeout_s)

    monkeypatch.setattr(LocalExecutor, "wait", counted)
    return timeouts


def test_the_back_off_is_kept(trial, turns):
    """The second try starts no sooner than the back-off says, and the loop does not spin while it waits."""
    ran = trial.run(Pipeline("p", [Say(name="Flaky", fails=1, retry=Retry(times=1, backoff_s=0.5))]))
    first, second = trial.store.executions(ran.run)

    assert (second.started - first.ended).total_seconds() >= 0.5
    assert len(turns) < 20


def test_a_retry_that_is_due_does_not_spin_while_all_places_are_taken(trial, turns):
    """With no place free, a node whose wait is over waits for a place, without asking all the time."""
    flaky = Say(name="Flaky", fails=1, retry=Retry(times=1, backoff_s=0.0))
    long = Say(name="Long", wait_s=0.6)
    ran = trial.run(Pipeline("p", [flaky, long, Say(name="Last")]), RunRequest(jobs=1))

    assert ran.run.state is State.COMPLETE
    assert len(turns) < 20


def test_what_a_node_prepares_is_not_tried_again(trial):
    """An error before the work starts is told at once; trying again would find the same."""
    ran = trial.run(Pipeline("p", [Unprepared(name="Bad", retry=5), Say(name="Good")]))

    assert ran["Bad"].attempt == 1
    assert ran["Bad"].error == "KeyError: 'no such table'"
    assert ran["Good"].state is State.COMPLETE


def test_a_node_that_takes_too_long_fails(trial):
    """After `timeout_s` it is stopped and has failed, and the run goes on."""
    ran = trial.run(Pipeline("p", [Say(name="Slow", wait_s=60.0, timeout_s=0.2), Say(name="Good")]))

    assert ran["Slow"].error == "It took longer than its limit of 0.2 s (timeout_s) and was stopped."
    assert ran.states == {"Slow": State.FAILED, "Good": State.COMPLETE}


def test_a_killed_node_leaves_no_scratch(trial):
    """What was for the run alone is gone when it ends; the log stays."""
    trial.run(Pipeline("p", [Say(name="Slow", wait_s=60.0, timeout_s=0.2)]))

    assert [path.name for path in (trial.root / "p" / ".runs" / "1").iterdir()] == ["logs"]


def test_a_run_without_jobs_is_refused(trial):
    """Nothing could ever run; it is told instead of waited for."""
    with pytest.raises(UsageError, match="at least one job at a time, not 0"):
        trial.run(chain(), RunRequest(jobs=0))

    assert current(trial.store, "p") is None


def test_a_node_that_took_too_long_is_tried_again(trial):
    """A timeout is a failure like any other."""
    ran = trial.run(Pipeline("p", [Say(name="Slow", wait_s=60.0, timeout_s=0.1, retry=Retry(times=1, backoff_s=0.01))]))

    assert [e.state for e in trial.store.executions(ran.run)] == [State.FAILED, State.FAILED]


def stop_when(what, node, number):
    """An observer that sends this process a signal when something happens."""

    def observe(event):
        if (event.what, event.node) == (what, node):
            os.kill(os.getpid(), number)

    return observe


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_the_run(trial, number):
    """What runs is stopped and recorded as canceled, what has not begun is not begun, and the lease is given back."""
    pipeline = Pipeline("p", [Say(name="Long", wait_s=60.0), Say(name="Never")])
    with LocalExecutor(pipeline) as executor:
        outcome = run(
            pipeline,
            executor=executor,
            store=trial.store,
            root=trial.root,
            request=RunRequest(jobs=1),
            observe=stop_when("node-started", "Long", number),
        )

    assert outcome.run.state is State.CANCELED
    assert outcome.run.error == f"stopped by {number.name}"
    assert {n: e.state for n, e in outcome.executions.items()} == {"Long": State.CANCELED}
    assert outcome.skipped == ("Never",)
    assert current(trial.store, "p").closed
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_run_is_stopped_through_the_store(trial):
    """A claim named like the run asks it to stop, from whatever machine."""

    def observe(event):
        if event.what == "node-started":
            request_stop(trial.store, event.run, "`spanwise stop` of ann@host")

    pipeline = Pipeline("p", [Say(name="Long", wait_s=60.0)])
    with LocalExecutor(pipeline) as executor:
        outcome = run(pipeline, executor=executor, store=trial.store, root=trial.root, observe=observe)

    assert (outcome.run.state, outcome.run.error) == (State.CANCELED, "stopped by `spanwise stop` of ann@host")


def test_who_asked_is_told_and_not_by_which_signal(trial):
    """`spanwise stop` claims the stop, then sends SIGTERM; the record names the command."""

    def observe(event):
        if event.what == "node-started":
            request_stop(trial.store, event.run, "`spanwise stop` of ann@host")
            os.kill(os.getpid(), signal.SIGTERM)

    pipeline = Pipeline("p", [Say(name="Long", wait_s=60.0)])
    with LocalExecutor(pipeline) as executor:
        outcome = run(pipeline, executor=executor, store=trial.store, root=trial.root, observe=observe)

    assert outcome.run.error == "stopped by `spanwise stop` of ann@host"


def test_an_execution_notes_what_was_left_at_its_default(trial):
    """So that what was said of a node can be told from what was not."""
    ran = trial.run(chain())

    assert ran["First"].defaults == ("wait_s", "fails", "until")


def test_a_run_in_a_thread_leaves_signals_alone(trial):
    """Only the main thread may take signals; elsewhere a run goes without."""
    before = signal.getsignal(signal.SIGTERM)
    ran = []
    thread = threading.Thread(target=lambda: ran.append(trial.run(chain())))
    thread.start()
    thread.join()

    assert ran[0].run.state is State.COMPLETE
    assert signal.getsignal(signal.SIGTERM) is before


def test_one_run_at_a_time(trial):
    """Whoever finds the pipeline held is refused, and nothing is recorded (law 1)."""
    acquire(trial.store, "p", "a backfill")

    with pytest.raises(Held, match="a backfill of 'p' is still going"):
        trial.run(chain())

    assert list(trial.store.runs("p")) == []


def test_a_part_without_a_base_is_refused(trial):
    """Nothing stands in for what is left out: nothing is recorded, and the lease is free again."""
    with pytest.raises(UsageError, match="needs what it leaves out: First"):
        trial.run(chain(), RunRequest(selection=chain().select(first=["Second"])))

    assert list(trial.store.runs("p")) == []
    assert current(trial.store, "p").closed


def test_a_part_reads_the_base_run(trial):
    """The outputs of the base run stand in for the nodes left out, recorded as such."""
    trial.run(chain())
    pipeline = chain(cache=False)
    ran = trial.run(pipeline, RunRequest(selection=pipeline.select(first=["Second"])))

    assert ran.states == {"First": State.CACHED, "Second": State.COMPLETE}
    assert ran.run.base == 1
    assert ran["First"].reason == "supplied by p/1/First/1"
    assert word(ran, "Second") == "ba"


def test_a_resolver_publishes_what_it_chose(trial):
    """It makes nothing; its outputs are references, and an empty choice is an outcome too."""
    train = Train(cache=False)
    pipeline = Pipeline("p", [train, Newest(train["model"])])
    first, second = trial.run(pipeline), trial.run(pipeline)

    assert first.artifacts("Newest", "model") == ()
    assert first["Newest"].state is State.CACHED
    assert second.artifact("Newest", "model").id == first.artifact("Train", "model").id


class Breaking:
    """A MemoryStore that fails at one moment, once or for ever."""

    def __init__(self, verb, at, error, lands=False):
        self._store = MemoryStore()
        self._verb, self._left, self._error, self._lands = verb, at, error, lands

    def __getattr__(self, name):
        method = getattr(self._store, name)
        if name != self._verb:
            return method

        def fails_once(*arguments):
            self._left -= 1
            if self._left != 0:
                return method(*arguments)
            if self._lands:
                method(*arguments)
            raise self._error

        return fails_once


@pytest.mark.parametrize(
    ("verb", "at"),
    [
        ("begin", 1),
        ("begin", 2),
        ("publish", 1),
        ("publish", 2),
        ("update_run", 1),
        ("begin_run", 1),
        ("find_cached", 2),
    ],
)
@pytest.mark.parametrize("lands", [False, True], ids=["", "though it landed"])
def test_a_store_that_fails_leaves_nothing_open_for_long(tmp_path, verb, at, lands):
    """Whatever write fails, and whether or not it landed, the next run closes what is open and what is live is whole."""
    store = Breaking(verb, at, StoreUnavailable("the disk is full"), lands=lands)
    trial = Trial(tmp_path, store)
    if verb == "update_run":
        assert trial.run(chain()).run.state is State.COMPLETE
    else:
        with pytest.raises(StoreUnavailable):
            trial.run(chain())
    ran = trial.run(chain())

    assert ran.run.state is State.COMPLETE
    for number in range(1, ran.run.number + 1):
        assert store.run("p", number).state.ended
        assert all(state.ended for state in states_of(store, number).values())
    for node in ("First", "Second"):
        for artifact in store.newest(Address("p", node, "report")):
            assert (artifact.path / "word").exists()


def test_an_observer_that_fails_ends_the_run_in_order(trial):
    """An error that is none of ours is raised, after all that ran was ended and recorded."""

    def observe(event):
        if (event.what, event.node) == ("node-started", "Second"):
            raise BrokenPipeError("nobody reads")

    pipeline = Pipeline("p", [Say(name="First", wait_s=60.0), Say(name="Second")])
    executor = LocalExecutor(pipeline)
    with pytest.raises(BrokenPipeError):
        run(
            pipeline, executor=executor, store=trial.store, root=trial.root, request=RunRequest(jobs=2), observe=observe
        )

    assert not Path(f"/proc/{executor.session}").exists()
    assert states_of(trial.store) == {"p/1/First/1": State.FAILED, "p/1/Second/1": State.FAILED}
    assert trial.store.run("p", 1).error == "BrokenPipeError: nobody reads"
    assert current(trial.store, "p").closed


def test_a_server_that_was_killed_ends_the_run_in_order(trial):
    """Every node that ran has failed, and so has the run; nothing stays RUNNING, and whoever follows the run is told."""
    ends = []
    pipeline = Pipeline("p", [Say(name="Long", wait_s=60.0)])
    with LocalExecutor(pipeline) as executor:

        def observe(event):
            ends.extend([(event.what, event.node)] * (event.what in {"node-failed", "run-ended"}))
            if event.what == "node-started":
                threading.Timer(0.2, os.kill, (executor.session, signal.SIGKILL)).start()

        with pytest.raises(NodeFailed, match="The process that starts the nodes died"):
            run(pipeline, executor=executor, store=trial.store, root=trial.root, observe=observe)

    assert states_of(trial.store) == {"p/1/Long/1": State.FAILED}
    assert trial.store.run("p", 1).state is State.FAILED
    assert ends == [("node-failed", "Long"), ("run-ended", "")]


@needs_freezer
def test_a_lease_is_not_given_back_while_a_process_lives_that_cannot_be_killed(trial, tmp_path, monkeypatch, caplog):
    """The run ends and says who is left; nobody else can begin."""
    monkeypatch.setattr(node_server, "REAP_S", 0.3)
    pipeline = Pipeline("p", [Leave(place=str(tmp_path))])
    with LocalExecutor(pipeline) as executor:
        stuck = threading.Thread(target=freeze_noted, args=[tmp_path])
        stuck.start()
        ran = run(pipeline, executor=executor, store=trial.store, root=trial.root)
        with pytest.raises(Held, match="run 1 of 'p' is still going"):
            acquire(trial.store, "p", "a run")
        (tmp_path / "thaw").touch()
        stuck.join()

    pid = (tmp_path / "pid").read_text()
    (told,) = [r for r in caplog.records if r.getMessage() == "lease-release-failed"]
    assert ran.succeeded
    assert told.reason.startswith(f"{pid} (state D: ")
    assert not current(trial.store, "p").released


def freeze_noted(folder):
    while not (folder / "pid").exists():
        time.sleep(0.01)
    with frozen(int((folder / "pid").read_text())):
        (folder / "go").touch()
        while not (folder / "thaw").exists():
            time.sleep(0.01)


def test_a_run_that_lost_its_lease_stops(trial):
    """Once another has the lease, nodes are ended, nothing more is written, and Fenced is raised."""
    clock = Clock(ttl_s=0.2)
    pipeline = Pipeline("p", [Say(name="Long", wait_s=60.0)])

    def observe(event):
        if event.what == "node-started":
            token = current(trial.store, "p").token
            trial.store.claim(Claim("lease", f"p#{token + 1}", trial.store.find_claim("lease", f"p#{token}").facts))

    executor = LocalExecutor(pipeline)
    with pytest.raises(Fenced, match="has lost its lease"):
        run(pipeline, executor=executor, store=trial.store, root=trial.root, observe=observe, clock=clock)

    assert not Path(f"/proc/{executor.session}").exists()


def test_a_run_that_lost_its_lease_after_its_last_node_does_not_pass_for_complete(trial):
    """Who has taken over has recorded that it failed, so it says that too, and raises Fenced."""
    ends = []

    def observe(event):
        if (event.what, event.node) == ("node-completed", "Second"):
            old = current(trial.store, "p")
            trial.store.claim(Claim("lease", f"p#{old.token + 1}", trial.store.find_claim("lease", old.name).facts))
            place = trial.store.last_claim("journal", f"{old.name}/") + 1
            trial.store.claim(Claim("journal", f"{old.name}/{place}", {"sealed": True}))
        elif event.what == "run-ended":
            ends.append(event.run.state)

    with LocalExecutor(chain()) as executor, pytest.raises(Fenced, match="has lost its lease"):
        run(chain(), executor=executor, store=trial.store, root=trial.root, observe=observe)

    assert ends == [State.FAILED]


def test_a_dead_run_that_a_refused_one_has_closed_is_announced(trial):
    """Whoever follows runs hears of its end: the next command found nothing left to close, and said nothing."""
    _leave_open(trial.store)
    events, request = [], RunRequest(selection=chain().select(first=["Second"]))

    with LocalExecutor(chain()) as executor, pytest.raises(UsageError):
        run(chain(), executor=executor, store=trial.store, root=trial.root, request=request, observe=events.append)

    assert [(e.what, e.run.name, e.run.state) for e in events] == [("abandoned-run-closed", "p/1", State.FAILED)]


def test_what_a_dead_run_left_is_closed(trial):
    """The next run records the dead one as failed, with its executions, and takes its files away."""
    store = trial.store
    execution = _leave_open(store)
    left = trial.root / "p" / "First" / "report" / str(execution.id)
    left.mkdir(parents=True)
    scratch = trial.root / "p" / ".runs" / "1" / "First.scratch"
    scratch.mkdir(parents=True)
    ran = trial.run(chain())

    assert ran.run.state is State.COMPLETE
    assert store.run("p", 1).state is State.FAILED
    assert store.run("p", 1).error == "abandoned: its controller died"
    assert states_of(store, 1) == {"p/1/First/1": State.FAILED}
    assert not left.exists()
    assert not scratch.exists()
    assert [e.message for e in ran.events if e.what == "abandoned-run-closed"] == ["p/1"]


def _leave_open(store):
    """A run that died while its first node was working."""
    lease = acquire(store, "p", "run 1")
    died = lease.write(lambda place: store.begin_run(_run(lease), place))
    execution = lease.write(lambda place: store.begin(_execution(died), place))
    claim = store.find_claim("lease", "p#1")
    store.amend(Claim("lease", "p#1", {**claim.facts, "who": {**claim.facts["who"], "started": 1}}))
    return execution


def _run(lease):
    from spanwise.orchestrator import Run

    return Run(pipeline="p", token=lease.token)


def _execution(run_):
    from spanwise.orchestrator import Execution

    return Execution(pipeline="p", run=run_.number, node="First")


def test_an_executor_serves_one_run_after_the_other(trial):
    """A backfill of many spans forks one server."""
    pipeline = chain(cache=False)
    with LocalExecutor(pipeline) as executor:
        outcomes = [
            run(pipeline, executor=executor, store=trial.store, root=trial.root, request=RunRequest(span=span))
            for span in (1, 2)
        ]

    assert [outcome.run.span for outcome in outcomes] == [1, 2]
    assert all(outcome.succeeded for outcome in outcomes)


def test_runs_side_by_side_share_a_lease_and_an_executor(trial, tmp_path):
    """Two runs meet in the middle, each waiting for a file the other's node has not written before it has begun."""
    pipeline = Pipeline("p", [Say(until=str(tmp_path / "go"), name="A", cache=False)])
    began = []

    def observe(event):
        if event.what == "node-started":
            began.append(event.run.number)
            if len(began) == 2:
                (tmp_path / "go").touch()

    with (
        LocalExecutor(pipeline) as executor,
        Controller(pipeline, executor=executor, store=trial.store, root=trial.root, observe=observe) as controller,
    ):
        outcomes = list(controller.run_all([RunRequest(cause=c, jobs=2) for c in "abc"], parallel=2))

    assert began == [1, 2, 3]
    assert sorted((o.run.cause, o.run.state, o.run.token) for o in outcomes) == [(c, State.COMPLETE, 1) for c in "abc"]
    assert current(trial.store, "p").closed


def test_stopping_one_run_leaves_those_beside_it_alone(trial, tmp_path):
    """Of two runs side by side only the one that is named ends; the other one's nodes work on."""
    pipeline = Pipeline("p", [Say(until=str(tmp_path / "go"), name="A", cache=False)])
    began = []

    def observe(event):
        if event.what == "node-started":
            began.append(event.run)
            if len(began) == 2:
                request_stop(trial.store, began[0], "a test")
        elif event.what == "run-ended":
            (tmp_path / "go").touch()

    with (
        LocalExecutor(pipeline) as executor,
        Controller(pipeline, executor=executor, store=trial.store, root=trial.root, observe=observe) as controller,
    ):
        outcomes = list(controller.run_all([RunRequest(cause=c, jobs=2) for c in "ab"], parallel=2))

    assert [(o.run.number, o.run.state) for o in outcomes] == [(1, State.CANCELED), (2, State.COMPLETE)]


def test_a_retry_that_is_due_does_not_spin_while_another_run_takes_the_place(trial, turns):
    """The places are shared by the runs that go side by side, and so is the waiting for one."""
    pipeline = Pipeline("p", [Say(name="Flaky", wait_s=0.6, fails=1, retry=Retry(times=1, backoff_s=0.1))])
    with (
        LocalExecutor(pipeline) as executor,
        Controller(pipeline, executor=executor, store=trial.store, root=trial.root) as controller,
    ):
        outcomes = list(controller.run_all([RunRequest(jobs=1)] * 2, parallel=2))

    assert all(outcome.succeeded for outcome in outcomes)
    assert len(turns) < 40


def test_nobody_comes_between_the_runs_of_a_controller(trial):
    """The lease is held from before the first to after the last."""
    pipeline = chain()
    with (
        LocalExecutor(pipeline) as executor,
        Controller(pipeline, executor=executor, store=trial.store, root=trial.root, purpose="a backfill") as controller,
    ):
        with pytest.raises(Held, match="a backfill"):
            trial.run(pipeline)
        controller.run(RunRequest())
        with pytest.raises(Held):
            trial.run(pipeline)

    assert trial.run(pipeline).run.number == 2


def test_a_run_with_a_claim_that_exists_does_not_begin(trial):
    """Whoever starts a run for a cause starts it once; the pipeline is free for the next."""
    once = RunRequest(claims=(Claim("attempt", "p@2024-01-01#1"),))
    trial.run(chain(), once)

    with pytest.raises(AlreadyClaimed):
        trial.run(chain(), once)

    assert [r.number for r in trial.store.runs("p")] == [1]
    assert trial.run(chain()).run.number == 2


def test_a_controller_that_was_asked_to_stop_begins_no_further_run(trial):
    """Ctrl-C during the first of three is the end of all."""
    pipeline = Pipeline("p", [Say(wait_s=30, name="A")])
    observe = stop_when("node-started", "A", signal.SIGINT)
    with (
        LocalExecutor(pipeline) as executor,
        Controller(pipeline, executor=executor, store=trial.store, root=trial.root, observe=observe) as controller,
    ):
        outcomes = list(controller.run_all([RunRequest(grace_s=0.1)] * 3))
        asked = controller.stop_signal

    assert [o.run.state for o in outcomes] == [State.CANCELED]
    assert asked == "SIGINT"


def test_checkpoints_last_from_attempt_to_attempt(trial):
    """What an attempt keeps is there for the next one, and gone once the node has succeeded."""
    ran = trial.run(Pipeline("p", [Resuming(retry=Retry(times=1, backoff_s=0.01))]))

    assert (ran.artifact("Resuming", "report").path / "seen").read_text() == "kept"
    assert not (trial.root / "p" / ".runs" / "1" / "Resuming.checkpoints").exists()


class Resuming(Component):
    def run(self, report: Output[Report], attempt: Attempt) -> None:
        kept = attempt.checkpoints / "kept"
        if not kept.exists():
            kept.write_text("kept")
            raise ValueError("again")
        (report.path / "seen").write_text(kept.read_text())
