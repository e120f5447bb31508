"""Reports name a test without its group, which pytest-xdist appends: `--last-failed` would find none, and run all."""

import os
import re

import pytest

if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker has to know its tests by the names that it has sent

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(report):
        """Takes `@group` from the id; what is in brackets, the parameters, stays."""
        report.nodeid = re.sub(r"@[^\]]*$", "", report.nodeid)
