"""Runs: how the pipeline file of a run is written in commands."""

import pytest

from spanwise.orchestrator.run import quote_source


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("/lake/my flights.py:daily", "'/lake/my flights.py:daily'"),
        ("/lake/flights.py:daily", "/lake/flights.py:daily"),
        ("", "flights.py"),
        ("-flights.py", "./-flights.py"),
    ],
)
def test_a_printed_command_quotes_the_file_where_a_shell_would_split_it(source, written):
    """The command works when it is pasted, whatever the folder is called."""
    assert quote_source(source, "flights") == written
