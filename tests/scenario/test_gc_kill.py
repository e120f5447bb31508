"""A garbage collection killed at any moment harms nobody, and the next one finishes it; beside runs it takes nothing."""

import os
import random
import shutil
import signal
import sys
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context

import pytest

from spanwise.orchestrator import Model, State, fingerprint, lease
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.store import Address
from spanwise.orchestrator.testing import Trial
from spanwise.scheduler.inspect.disk_inventory import ASIDE
from spanwise.scheduler.storage import gc
from tests.scheduler.storage.test_gc import learning
from tests.scheduler.yard import NOTHING, Yard

KILLS = int(os.environ.get("SPANWISE_TEST_KILLS", "8"))  # the full form: 1000, which is every moment
DAYS = 12
RUNS = 8
SEEN = {"os.rename", "os.rmdir", "os.remove", "os.scandir", "os.mkdir", "open"}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("with_servers")]


class Moments:
    """Counts the moments of this process at which the disk or the metadata is touched, and ends it at one of them."""

    def __init__(self, last: int) -> None:
        self._left = last
        self.count = 0

    def __call__(self, what: str, _arguments: object) -> None:
        if what in SEEN:
            self.pass_one()

    def pass_one(self) -> None:
        self.count += 1
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, store: object, verb: str) -> None:
        """Has each call of a verb of the store be two moments: before the transaction, and after it."""
        written = getattr(store, verb)

        def call(*arguments: object) -> object:
            self.pass_one()
            answer = written(*arguments)
            self.pass_one()
            return answer

        setattr(store, verb, call)


def collection(root, now, last, said):
    """One collection in a process of its own, killed at its moment `last`; says how many moments it had."""
    yard = Yard(root)
    yard.now = now
    moments = Moments(last)
    for verb in ("claim", "amend"):
        moments.around(yard.store, verb)
    sys.addaudithook(moments)
    yard.collect()
    said.send(moments.count)


def collected(yard, *, last=0):
    """Runs a collection, and returns how many moments it had; None when it was killed."""
    yard.store.close()
    here, there = get_context("fork").Pipe(duplex=False)
    child = get_context("fork").Process(target=collection, args=(yard.root, yard.now, last, there))
    child.start()
    there.close()
    child.join(timeout=300)
    assert child.exitcode in (0, -signal.SIGKILL)
    count = here.recv() if child.exitcode == 0 else None
    here.close()
    yard.store = open_store(str(yard.root / "metadata.db"), clock=lambda: yard.now)
    return count


def prepared(root):
    """A root from which most can go: artifacts of many runs, what failed runs left, logs, and a stranger."""
    yard = Yard(root)
    for span in range(1, DAYS + 1):
        (yard.day(span).path / "more").write_text("more")
    yard.do(yard.run(), "Trainer", state=State.FAILED, model=Model(""))
    logs = root / "flights" / ".runs" / "1" / "logs"
    logs.mkdir(parents=True)
    (logs / "Trainer.1.log").write_text("said")
    (root / "flights" / "notes").write_text("mine")
    yard.now += timedelta(days=200)
    return yard


def state(yard):
    """What is on the disk and what is marked."""
    files = sorted(str(path.relative_to(yard.root)) for path in (yard.root / "flights").rglob("*"))
    models = yard.store.newest(Address("flights", "Trainer", "model"))
    artifacts = [*models, *spans(yard.store, "flights/ExampleGen/examples", DAYS)]
    marked = {a.name for a in artifacts if yard.store.find_claim("collected", a.name)}
    return files, marked, artifacts


def check(yard, contents, what):
    """Holds that what is not marked is whole, and that nothing that has its own name is half there."""
    _, marked, artifacts = state(yard)
    for artifact in artifacts:
        there = artifact.path.exists()
        assert there or artifact.name in marked, f"{artifact.name} after {what}"
        assert not there or fingerprint.of_tree(artifact.path).digest == contents[artifact.name], f"{artifact} {what}"
    assert (yard.root / "flights" / "notes").exists()


def spans(store, node, last):
    """Everything that was published of the spans to `last`."""
    return [a for span in range(1, last + 1) for a in store.of_span(Address(*node.split("/")), span)]


def collecting(root, ready, stop):
    """Collections, one after the other, until told to stop; they keep nothing for its own sake."""
    store = open_store(str(root / "metadata.db"))
    context = gc.CollectionContext(store=store, root=root, retention=NOTHING, now=datetime.now(UTC) + timedelta(days=1))
    ready.set()
    while not stop.is_set():
        if "p" in store.pipelines():
            done = gc.collect(context, gc.plan_collection(context, "p"))
            assert done.failures == ()
    store.close()


def test_a_collection_killed_at_any_moment_is_finished_by_the_next(tmp_path):
    """What stays is whole after every kill, and after the next collection all is as if none had been killed."""
    dice = random.Random(os.environ.get("SPANWISE_TEST_SEED", "spanwise"))
    root, template = tmp_path / "root", tmp_path / "template"
    root.mkdir()
    (tmp_path / "imports").mkdir()
    prepared(tmp_path / "imports").collect()  # what is imported late would give the first child more moments
    yard = prepared(root)
    yard.store.close()
    shutil.copytree(root, template)
    yard.store = open_store(str(root / "metadata.db"), clock=lambda: yard.now)
    contents = {a.name: fingerprint.of_tree(a.path).digest for a in state(yard)[2]}
    moments = collected(yard)
    files, marks, _ = state(yard)
    assert len(marks) == 2 * DAYS - 3  # the last model, and its window of two
    killed = half = 0

    for moment in sorted(dice.sample(range(1, moments + 1), min(KILLS, moments))):
        yard.store.close()
        shutil.rmtree(root)
        shutil.copytree(template, root)
        what = f"killed at {moment} of {moments}"
        killed += collected(yard, last=moment) is None
        check(yard, contents, what)
        half += len(state(yard)[1]) > 0 and any(ASIDE in path for path in state(yard)[0])
        if dice.random() < 0.3:
            again = dice.randrange(1, moments)
            collected(yard, last=again)
            check(yard, contents, f"{what}, then at {again}")
        assert collected(yard) is not None
        assert state(yard)[:2] == (files, marks), what
        assert lease.current(yard.store, "flights").released, what
    yard.store.close()

    assert killed == min(KILLS, moments)
    assert half > 0, "no kill fell between the mark and the removal"


def test_runs_go_through_while_all_that_can_go_is_collected(tmp_path):
    """Collections one after the other, that keep nothing for its own sake, and runs over a window of three beside them:
    each run has all that it reads, and none is refused.
    """
    ready, stop = get_context("fork").Event(), get_context("fork").Event()
    child = get_context("fork").Process(target=collecting, args=(tmp_path, ready, stop))
    child.start()
    assert ready.wait(300)
    store = open_store(str(tmp_path / "metadata.db"))
    trial = Trial(tmp_path, store)
    try:
        learned = []
        for span in range(1, RUNS + 1):
            ran = trial.run(learning(3), span=span)
            assert ran.run.state.succeeded, ran["Learn"].error
            learned.append((ran.artifact("Learn", "report").path / "learned").read_text())
    finally:
        stop.set()
        child.join(timeout=300)
    gone = [a for a in spans(store, "p/Ingest/examples", RUNS) if not a.path.exists()]
    store.close()

    assert child.exitcode == 0
    assert learned == [" ".join(f"rows of {s}" for s in range(max(1, n - 2), n + 1)) for n in range(1, RUNS + 1)]
    assert len(gone) >= RUNS - 4, "the collections came too late to take anything"
