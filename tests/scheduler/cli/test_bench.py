"""`spanwise bench`: how a breakdown is told, and that the command measures one."""

import json

import pytest
from typer.testing import CliRunner

from spanwise.components.training.elastic.breakdown import DOCUMENT_S, Breakdown, Form, Sizes
from spanwise.scheduler.cli import app
from spanwise.scheduler.cli import bench as commands

FIRST = {str(phase): spent / 1000 for phase, spent in DOCUMENT_S.items()}


def made(core_share):
    return Breakdown(
        sizes=Sizes(),
        core_share=core_share,
        forms=(
            Form(name="as it was", change="", step_s=sum(FIRST.values()), seconds=FIRST),
            Form(name="a process", change="overlap", step_s=0.0265, seconds=FIRST),
            Form(name="all together", change="all", step_s=0.0247, seconds=FIRST),
        ),
    )


def test_the_table_tells_forms_shares_and_what_was_missed():
    """In milliseconds, and how many times faster than the first each form is."""
    lines = commands.told(made(0.5)).splitlines()

    assert lines[0].split() == ["form", "of", "the", "loop", "ms", "a", "step", "times", *FIRST]
    assert lines[1].split() == ["as", "it", "was", "49.40", "1.00", "6.70", "17.90", "14.80", "5.00", "5.00"]
    assert lines[3].split()[:4] == ["all", "together", "24.70", "2.00"]
    assert "compute 30.0% (30.0%)" in lines[5]
    assert lines[-2].startswith("Shares and overlap are not judged")
    assert lines[-1] == "Missed: all together is 2.00 times faster, less than 2.14."


@pytest.mark.slow
def test_the_command_measures_every_form_and_its_exit_code_tells_what_was_missed():
    """One JSON document on stdout."""
    done = CliRunner().invoke(app, ["bench", "elastic", "--seconds", "0.02", "--json"])
    found = json.loads(done.stdout)

    assert done.exit_code == (1 if found["missed"] else 0)
    assert found["forms"][0]["name"] == "as it was"
    assert [form["change"] for form in found["forms"]].count("overlap") == 6
    assert sum(found["shares"].values()) == pytest.approx(1.0, abs=0.1)
