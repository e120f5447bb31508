"""The store among processes: races have one winner, and a killed writer leaves whole records or none."""

import random
import signal
import time
from collections import Counter

import pytest

from spanwise.orchestrator.run import State
from spanwise.orchestrator.store import Address
from tests.contract import racers
from tests.contract.conftest import REAL, fresh_url
from tests.contract.records import MODELS

pytestmark = pytest.mark.slow


def test_of_many_processes_one_gets_the_claim(real):
    """Eight processes that claim one name at one moment: exactly one gets it, in each of forty rounds."""
    real.open()

    won = racers.race(8, racers.claim_each, real.url, 40)

    assert Counter(number for wins in won for number in wins) == dict.fromkeys(range(40), 1)


@pytest.mark.parametrize("kind", REAL)
def test_many_processes_may_make_the_database_at_one_moment(kind, tmp_path):
    """Twenty processes open one that is not there: all get a store, and their runs have different numbers."""
    urls = [fresh_url(kind, tmp_path) for _ in range(10)]

    written = racers.race(20, racers.open_each, urls)

    for numbers in zip(*written, strict=True):
        assert sorted(numbers) == list(range(1, 21))


def test_writers_at_one_address_share_its_numbers(real):
    """Artifacts that several processes publish at one address and for one span are numbered without gap or double."""
    store = real.open()

    names = [name for found in racers.race(3, racers.publish_each, real.url, 12) for name in found]

    spans = "flights/ExampleGen/examples/7"
    assert sorted(names) == sorted(f"{place}/{n}" for place in (str(MODELS), spans) for n in range(1, 37))
    assert [a.name for a in store.newest(MODELS)] == [f"{MODELS}/{n}" for n in range(36, 0, -1)]
    assert len({r.number for r in store.runs("flights")}) == 72


def test_a_killed_writer_leaves_whole_publications(real):
    """After each of thirty kills every publication is there with all it made and claimed, or with nothing of it."""
    store = real.open()
    seed = random.Random(7)

    for _ in range(30):
        writer = racers.start(racers.publish_until_killed, real.url)
        _wait_for_a_run(store, beyond=_newest_run(store))
        began = time.monotonic()
        _wait_for_a_run(store, beyond=_newest_run(store))
        time.sleep(seed.uniform(0, 2) * (time.monotonic() - began))  # as long as it takes for up to two
        writer.kill()
        writer.join()
        assert writer.exitcode == -signal.SIGKILL

    published = []
    for run in store.runs("flights"):
        for execution in store.executions(run):
            whole = execution.state is State.COMPLETE
            assert [len(row) for row in execution.outputs.values()] == ([3, 1] if whole else [])
            assert (store.find_claim("made", str(run.number)) is not None) == whole
            assert (store.find_cached(f"key {run.number}") is not None) == whole
            published += [run.number] * whole
    assert len(published) >= 10
    assert len(list(store.newest(MODELS))) == 3 * len(published)
    assert list(store.spans(Address("flights", "Trainer", "examples"))) == published


def _newest_run(store):
    return next((run.number for run in store.runs("flights")), 0)


def _wait_for_a_run(store, beyond):
    given_up = time.monotonic() + 300
    while _newest_run(store) == beyond:
        assert time.monotonic() < given_up
        time.sleep(0.002)
