"""The README's pipeline, run as it stands there."""

import re
from pathlib import Path

import pytest

from tests import warm

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the README's pipeline and four days of rides."""
    folder = tmp_path_factory.mktemp("readme")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (folder / "tips.py").write_text("".join(blocks), encoding="utf-8")
    for day in range(1, 5):
        block = folder / "data" / f"2024-01-{day:02}" / "v1"
        block.mkdir(parents=True)
        rides = [f"{i % 17 + day},{i % 4 + 1},{(i % 17 + day) * 0.2 + i % 3}" for i in range(200)]
        (block / "rides.csv").write_text("\n".join(["distance,passengers,tip", *rides]) + "\n")
    return folder


def spanwise(folder, *arguments):
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return warm.run(*arguments, reads_data=True, cwd=folder, env=env, timeout_s=120)


def test_the_pipeline_trains_day_after_day_and_pushes(project):
    """The README's pipeline ingests a day, trains, and pushes its first model."""
    for day in (1, 2):
        done = spanwise(project, "run", "tips.py", "--span", f"2024-01-0{day}")

        assert done.returncode == 0, done.stdout + done.stderr
    assert len([v for v in (project / "serving").iterdir() if v.name.isdigit()]) >= 1


def test_the_other_commands_do_what_the_readme_says(project):
    """After a run, the README's commands answer."""
    spanwise(project, "run", "tips.py", "--span", "2024-01-01")

    for arguments in (["runs"], ["show", "tips"], ["window", "tips.py"], ["run", "tips.py", "--from", "Trainer"]):
        done = spanwise(project, *arguments)

        assert done.returncode == 0, done.stdout + done.stderr
        assert "tips" in done.stdout or "2024-01-01" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["schedule", "next", "tips.py"], 0, "03:00"),
        (["schedule", "missed"], 0, ""),
        (["backfill", "tips.py", "--missed"], 0, "tips needs no backfill"),
        (["backfill", "tips.py", "--span", "2024-01-01", "--train-once"], 0, "1 of 1 spans done, trained"),
        (["tainted", "--span", "2024-01-01", "--version", "1"], 1, "tips"),
        (["why", "tips/1", "Trainer"], 0, "Trainer"),
        (
            ["schedule", "simulate", "tips.py", "--from", "2026-03-01", "--to", "2026-04-01",
             "--duration", "normal(2h,30m)"], 0, "",
        ),
    ],
)  # fmt: skip
def test_the_commands_of_a_schedule_do_what_the_readme_says(project, arguments, code, says):
    """What mends, traces and foresees answers in the README's project."""
    spanwise(project, "run", "tips.py", "--span", "2024-01-01")

    done = spanwise(project, *arguments)

    assert (done.returncode, done.stderr) == (code, "")
    assert says in done.stdout
