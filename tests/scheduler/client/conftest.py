"""A root with a past in it, as a client finds it."""

import pytest

import spanwise
from spanwise.orchestrator.mlmd import open_store
from tests.scheduler.past import Past

FIRST = 15_706  # 2013-01-01


@pytest.fixture
def past(folder):
    """Runs of flights, recorded by hand, in the root of the current folder."""
    root = folder / ".spanwise"
    root.mkdir()
    store = open_store(str(root / "metadata.db"), root=root)
    yield Past(folder, store)
    store.close()


@pytest.fixture
def client(folder):
    with spanwise.connect() as connected:
        yield connected
