"""Tests of a group run in one process: they share what was made for all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def shared():
    """Makes every test of this module one of its group (see `conftest`)."""


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="needs several processes")
def test_a_test_with_a_fixture_of_its_module_is_in_the_group_of_the_module(shared, request):
    """Or each process would make such fixtures again, which takes minutes; pytest-xdist names the group in the id."""
    if request.config.getoption("loadgroup", default=False):
        assert request.node.nodeid.endswith("@tests/test_groups.py")


def test_only_the_tests_that_failed_are_run_again(tmp_path):
    """Tests of groups among them, though the second time one process runs them all."""
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['tests.plain_ids']\n")
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.xdist_group('shared')\n"
        "@pytest.mark.parametrize('name', ['a@b', 'good'])\n"
        "def test_it(name): assert name == 'good'\n"
    )

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tmp_path), *options]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment["PYTHONPATH"] = str(Path(__file__).parents[1])
        done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        return done.stdout.splitlines()[-1].split(" in ")[0]

    assert run("-n", "2", "--dist", "loadgroup") == "1 failed, 1 passed"
    assert run("--last-failed", "--last-failed-no-failures=none") == "1 failed"


def test_folders_keep_their_fixtures_in_whatever_order_they_are_named():
    """Also where another folder is named between two that are in one."""
    named = ["tests/scheduler/run/test_edited.py", "tests/test_groups.py", "tests/scheduler/client/test_client.py"]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--setup-plan", *named]

    planned = subprocess.run(command, check=False, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True)

    assert planned.returncode == 0, planned.stdout[-2000:]
