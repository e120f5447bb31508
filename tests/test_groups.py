"""Tests of a group run in one process: they share what was made for all of them."""

import os

import pytest


@pytest.fixture(scope="module")
def shared():
    """Makes every test of this module one of its group (see `conftest`)."""


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="needs several processes")
def test_a_test_with_a_fixture_of_its_module_is_in_the_group_of_the_module(shared, request):
    """Or each process would make such fixtures again, which takes minutes; pytest-xdist names the group in the id."""
    if request.config.getoption("loadgroup", default=False):
        assert request.node.nodeid.endswith("@tests/test_groups.py")
