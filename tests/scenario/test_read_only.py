"""A root on a disk that may only be read, such as a backup or another team's."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from spanwise.orchestrator.testing import Lake

PIPELINE = """
from spanwise import ExampleGen, Pipeline, RollingWindow

def daily(pattern: str) -> Pipeline:
    ingest = ExampleGen(pattern=pattern)
    return Pipeline("daily", [ingest, RollingWindow(ingest["examples"], size=1)])
"""
IN_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A pipeline that has run once."""
    if subprocess.run([*IN_NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    folder = tmp_path_factory.mktemp("project")
    (folder / "daily.py").write_text(PIPELINE)
    lake = Lake(folder / "lake")
    lake.arrive(span=1)
    (folder / "spanwise.toml").write_text(f"[params.daily]\npattern = '{lake.pattern}'\n")
    subprocess.run([sys.executable, "-m", "spanwise", "run", "daily.py"], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("runs", "daily/1"),
        ("show daily", "ExampleGen: complete"),
        ("artifacts daily", "daily/ExampleGen/examples/1/1"),
        ("lineage daily/ExampleGen/examples/1/1", "daily/ExampleGen/examples/1/1"),
        ("logs daily ExampleGen", "span-ingested rows="),
        ("window daily.py", "v1"),
        ("graph daily.py", "ExampleGen"),
        ("gc daily --keep-younger 0s --dry-run", "would be removed"),
    ],
)
def test_commands_that_read_work_on_a_read_only_root(project, arguments, says):
    """SQLite would write beside the database, so a copy of it is read; nothing on the disk changes."""
    before = sorted(str(path) for path in project.rglob("*"))
    script = (
        "mount --bind . . && mount -o remount,ro,bind . && cd . && "
        f"cd {project} && PYTHONDONTWRITEBYTECODE=1 {sys.executable} -m spanwise {arguments}"
    )

    shown = subprocess.run(
        [*IN_NAMESPACE, "bash", "-euc", script], cwd=project, capture_output=True, text=True, check=False
    )

    assert shown.returncode == 0, shown.stderr
    assert says in shown.stdout
    assert sorted(str(path) for path in project.rglob("*")) == before


def test_a_root_that_may_only_be_read_is_backed_up_and_not_called_damaged(project, tmp_path):
    """The database is copied and checked as a copy; what is wrong is that nothing can be written there."""
    spanwise = f"{sys.executable} -m spanwise"
    script = (
        "mount --bind . . && mount -o remount,ro,bind . && cd . && export PYTHONDONTWRITEBYTECODE=1 && "
        f"cd {project} && {spanwise} backup {tmp_path / 'backup'} && ! {spanwise} doctor"
    )

    shown = subprocess.run(
        [*IN_NAMESPACE, "bash", "-euc", script], cwd=project, capture_output=True, text=True, check=False
    )

    assert shown.returncode == 0, shown.stderr
    assert "1 artifacts" in shown.stdout
    assert "fail  root:" in shown.stdout
    assert "damaged" not in shown.stdout


def test_a_run_there_is_refused_before_it_begins(project):
    """With the reason, and nothing begun."""
    script = (
        f"mount --bind . . && mount -o remount,ro,bind . && cd {project} && {sys.executable} -m spanwise run daily.py"
    )

    shown = subprocess.run(
        [*IN_NAMESPACE, "bash", "-euc", script], cwd=project, capture_output=True, text=True, check=False
    )

    assert shown.returncode == 1
    assert "is not writable" in shown.stderr


def test_what_a_person_says_is_not_lost_in_a_copy(project):
    """A pin, a pause, a blessing, a verdict on a span, a collection, a stop: they are recorded, or refused."""
    says = "metadata.* is in a read-only folder, so nothing can be recorded there"
    commands = (
        "pin daily/ExampleGen/examples/1/1",
        "schedule pause daily --because disks",
        "bless daily/ExampleGen/examples/1/1 --because good",
        "accept daily.py --span 1 --because holiday",
        "gc daily --keep-younger 0s",
        "stop daily",
    )
    typed = " ; ".join(f"! {sys.executable} -m spanwise {words}" for words in commands)
    script = f"mount --bind . . && mount -o remount,ro,bind . && cd {project} && {typed}"

    shown = subprocess.run(
        [*IN_NAMESPACE, "bash", "-euc", script], cwd=project, capture_output=True, text=True, check=False
    )

    assert shown.returncode == 0, shown.stderr
    assert len(re.findall(says, shown.stderr)) == len(commands), shown.stderr
