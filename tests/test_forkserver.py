"""The server that tests fork processes from has imported what these work with."""

import importlib.util
from pathlib import Path

import pytest

from tests.forkserver import PRELOAD

TESTS = Path(__file__).parent


@pytest.mark.parametrize("name", PRELOAD)
def test_each_preloaded_module_is_there(name):
    """The server passes over one that is not, and each process would import it for itself."""
    assert importlib.util.find_spec(name) is not None


def test_one_module_sets_the_list():
    """Of two lists the last one counts, and which that is depends on the order of imports."""
    setting = [path.name for path in TESTS.rglob("*.py") if "set_forkserver_" + "preload(" in path.read_text()]

    assert setting == ["forkserver.py"]
