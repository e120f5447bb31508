"""A backup is consistent whenever it is made, and a restored root goes on where the backup was made."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.scenario.cli import call, lay_out
from tests.scenario.deaths import InlineDeaths
from tests.scenario.inline import run_inline
from tests.scenario.test_system import Bench

KILLED_WRITER = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("UPDATE ContextProperty SET string_value = 'invented' WHERE string_value = 'complete'")
database.commit()
os._exit(9)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A project after 2 runs; each test has a copy of its own."""
    folder = lay_out(tmp_path_factory.mktemp("built") / "project", spans=4)
    for span in "12":
        call(folder, "run", "rides.py", "--span", span)
    return folder


@pytest.fixture
def project(tmp_path, built):
    return Path(shutil.copytree(built, tmp_path / "project", symlinks=True))


def test_what_was_restored_is_whole_and_goes_on(tmp_path, project):
    """After the loss of root and metadata, a restore brings both back: all bytes are verified, and the next run runs."""
    call(project, "backup", str(tmp_path / "backup"))
    shutil.rmtree(project / ".spanwise")

    said = call(project, "restore", str(tmp_path / "backup"))

    assert "spanwise doctor --deep" in said
    assert "artifacts of rides: 6 of 6 verified" in call(project, "doctor", "--deep")
    call(project, "run", "rides.py", "--span", "3")
    assert "rides/3" in call(project, "runs", "rides")


def test_what_serves_after_a_restore_is_said_until_a_recorded_push_replaces_it(tmp_path, project):
    """A model that was pushed after the backup serves, and the restored metadata do not know it."""
    call(project, "run", "rides.py", "--span", "3")
    call(project, "backup", str(tmp_path / "backup"))
    call(project, "run", "rides.py", "--span", "4")
    forgotten = max((project / "serving").glob("[0-9]*"), key=lambda version: int(version.name))
    shutil.rmtree(project / ".spanwise")
    call(project, "restore", str(tmp_path / "backup"))

    said = call(project, "doctor")

    assert f"warn  what serves of rides: {forgotten} serves, which is newer than the last recorded push" in said
    assert "-> spanwise push rides/Trainer/model/3 --because TEXT" in said
    (project / "serving" / ".spanwise" / "fences.json").unlink()
    call(project, "push", "rides/Trainer/model/3", "--because", "the backup")
    assert "what serves" not in call(project, "doctor")


def test_a_run_does_not_take_the_push_of_a_forgotten_run_of_its_number_for_its_own(tmp_path, monkeypatch, capsys):
    """The forgotten run had pushed the same model under the same name, and then an older model was pushed again."""
    monkeypatch.chdir(tmp_path)
    store, bench = run_inline(monkeypatch), Bench(tmp_path)
    bench.deaths = InlineDeaths(tmp_path, store, monkeypatch)
    bench.arrive(1, 1, 1)
    bench.spanwise("run", "system.py", "--span", "1", "--param", "code=1")
    bench.deaths.back_up()
    bench.spanwise("run", "system.py", "--span", "1", "--param", "code=2")
    bench.spanwise("push", "system/Learn/model/1", "--because", "2 is wrong for refunds")
    bench.deaths.restore()
    (tmp_path / "serving" / ".spanwise" / "fences.json").unlink()

    bench.spanwise("run", "system.py", "--span", "1", "--param", "code=2")

    assert bench.serves() == bench.learned()
    assert "Blessed; pushed to" in capsys.readouterr().out.splitlines()[-2]


def test_the_command_for_a_damaged_file_is_that_of_the_project(tmp_path, project):
    """A backup of a root with a damaged file prints a command that works where the backup was made; so does `doctor`."""
    damage = next((project / ".spanwise/rides/ExampleGen/examples").glob("*/*/*.parquet"))
    damage.chmod(0o644)
    damage.write_bytes(b"")
    elsewhere = (project / ".spanwise").rename(project / "elsewhere")
    options = ("--root", str(elsewhere))

    said = call(project, "backup", "../backup", *options, code=1)
    found = call(project, "doctor", *options, code=1)

    span = 1 if "--span 1" in said else 2
    again = f"spanwise run rides.py --span {span} --to ExampleGen --no-cache --root {elsewhere}"
    assert again in said
    assert again in found
    call(project, *again.split()[1:])


def test_a_backup_that_is_made_while_runs_and_collections_go_on_is_whole(tmp_path, project):
    """Whatever happens meanwhile, every artifact that the copied metadata know was copied, or was collected."""

    def work() -> None:
        for span in (3, 4):
            call(project, "run", "rides.py", "--span", str(span))
            options = ("--keep-last", "1", "--keep-younger", "0s", "--keep-marked", "none")
            call(project, "gc", "rides", *options)

    thread = threading.Thread(target=work)
    thread.start()
    made = []
    while thread.is_alive() and len(made) < 3:
        made.append(tmp_path / f"backup-{len(made)}")
        call(project, "backup", str(made[-1]))
    thread.join()

    for number, backup in enumerate(made):
        elsewhere = lay_out(tmp_path / f"elsewhere-{number}", spans=0)
        call(elsewhere, "restore", str(backup))
        said = call(elsewhere, "doctor", "--deep")
        assert "fail" not in said


NAMED_LIKE_WORK = """
from spanwise import Component, Output, Pipeline, Report


class Make(Component):
    def run(self, report: Output[Report]) -> None:
        for name in ("model.checkpoints", ".collected-1-days", "data.scratch"):
            (report.path / name).mkdir()
            (report.path / name / "file").write_text(name)
        (report.path / "file.scratch").write_text("file")


p = Pipeline("p.scratch", [Make(name="Make.checkpoints")])
"""


def test_files_of_artifacts_are_copied_however_they_are_called(tmp_path):
    """Also those called like what only a running run needs: they were left out, without a word where `--files-only`."""
    project = lay_out(tmp_path / "project", spans=0)
    (project / "p.py").write_text(NAMED_LIKE_WORK)
    call(project, "run", "p.py")
    outputs = project / ".spanwise" / "p.scratch" / "Make.checkpoints"

    call(project, "backup", str(tmp_path / "backup"))
    call(project, "backup", str(tmp_path / "files"), "--files-only")

    wanted = sorted(path.relative_to(outputs) for path in outputs.rglob("*"))
    for copied in ("backup", "files"):
        copy = tmp_path / copied / "root" / "p.scratch" / "Make.checkpoints"
        assert sorted(path.relative_to(copy) for path in copy.rglob("*")) == wanted


LINKED = """
from spanwise import Component, Output, Pipeline, Report


class Make(Component):
    def run(self, report: Output[Report]) -> None:
        (report.path / "file").write_text("file")
        (report.path / "link").symlink_to("file")


p = Pipeline("p", [Make()])
"""


@pytest.mark.parametrize("moved", [".spanwise", ".spanwise/p", ".spanwise/p/Make/report"])
def test_a_backup_holds_what_links_out_of_the_root_lead_to(tmp_path, moved):
    """As when a folder has moved to a larger disk; a link within an artifact stays one."""
    project = lay_out(tmp_path / "project", spans=0)
    (project / "p.py").write_text(LINKED)
    call(project, "run", "p.py")
    disk = (project / moved).rename(tmp_path / "disk")
    (project / moved).symlink_to(disk)

    call(project, "backup", str(tmp_path / "backup"))
    disk.rename(tmp_path / "lost")
    (project / ".spanwise").rename(tmp_path / "old")
    call(project, "restore", str(tmp_path / "backup"))

    assert "artifacts of p: 1 of 1 verified" in call(project, "doctor", "--deep")
    assert [path.name for path in (project / ".spanwise").rglob("*") if path.is_symlink()] == ["link"]


def test_nobody_may_read_a_copy_who_may_not_read_the_original(tmp_path, project):
    """Neither in the backup nor in what is restored; the folder of a backup is its owner's alone."""
    root, backup = project / ".spanwise", tmp_path / "backup"
    wanted = {".": 0o700, "rides": 0o750, "metadata.db": 0o640}
    for name, mode in wanted.items():
        (root / name).chmod(mode)

    call(project, "backup", str(backup))
    shutil.rmtree(root)
    call(project, "restore", str(backup))

    assert _modes(backup, [".", "root", "root/rides", "metadata.db"]) == [0o700, 0o700, 0o750, 0o640]
    assert _modes(root, wanted) == [*wanted.values()]


def _modes(folder, names):
    return [stat.S_IMODE((folder / name).stat().st_mode) for name in names]


def test_a_backup_is_not_made_where_a_link_of_the_root_leads_to(tmp_path, project):
    """It would be copied into itself."""
    disk = (project / ".spanwise" / "rides").rename(tmp_path / "disk")
    (project / ".spanwise" / "rides").symlink_to(disk)

    said = call(project, "backup", str(disk / "backup"), code=2)

    assert f"{disk / 'backup' / 'root'} lies in {disk}, which {project / '.spanwise' / 'rides'} leads to." in said


def test_links_that_lead_in_a_circle_are_copied_as_links(tmp_path, project):
    """So that a backup ends."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / ".spanwise" / "outside").symlink_to(outside)
    (outside / "root").symlink_to(project / ".spanwise")
    (outside / "itself").symlink_to("itself")

    call(project, "backup", str(tmp_path / "backup"))

    copied = tmp_path / "backup" / "root" / "outside"
    assert [(path.name, path.is_symlink()) for path in sorted(copied.iterdir())] == [("itself", True), ("root", True)]


def test_a_restore_never_mixes_two_histories(tmp_path, project):
    """A root or a database that is there already is left alone, and the message says how to move it aside."""
    call(project, "backup", str(tmp_path / "backup"))

    said = call(project, "restore", str(tmp_path / "backup"), code=2)

    assert f"mv {project / '.spanwise'} {project / '.spanwise'}.old" in said
    assert "artifacts of rides: 6 of 6 verified" in call(project, "doctor", "--deep")


def test_a_restored_database_has_nothing_of_the_one_before(tmp_path, project):
    """What a killed writer has left beside it, SQLite would add to the restored one: the refusal moves that aside too."""
    database = tmp_path / "my metadata" / "all.db"
    database.parent.mkdir()
    shutil.copy(project / ".spanwise" / "metadata.db", database)
    (project / "spanwise.toml").write_text(f'metadata = "{database}"\n')
    call(project, "backup", str(tmp_path / "backup"))
    subprocess.run([sys.executable, "-c", KILLED_WRITER, str(database)], check=False)
    shutil.rmtree(project / ".spanwise")

    said = call(project, "restore", str(tmp_path / "backup"), code=2)
    subprocess.run("\n".join(line for line in said.splitlines() if "  mv " in line), shell=True, check=True)
    call(project, "restore", str(tmp_path / "backup"))

    assert sorted(path.name for path in database.parent.iterdir() if ".old" in path.name) == [
        "all.db.old",
        "all.db.old-shm",
        "all.db.old-wal",
    ]
    assert "fail" not in call(project, "doctor", "--deep")
    assert "invented" not in call(project, "runs", "rides")


@pytest.mark.parametrize("destination", ["backup", "project/.spanwise/backup"])
def test_a_backup_is_made_in_a_new_folder_outside_of_the_root(tmp_path, project, destination):
    """Another backup is not overwritten, and the root is no place for its own backup."""
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "other").touch()

    assert str(tmp_path / destination) in call(project, "backup", str(tmp_path / destination), code=2)
    assert not (tmp_path / destination / "root").exists()


def test_a_folder_that_is_no_finished_backup_is_not_restored(tmp_path, project):
    """A backup that was killed lacks its record."""
    call(project, "backup", str(tmp_path / "backup"))
    (tmp_path / "backup" / "backup.json").unlink()
    shutil.rmtree(project / ".spanwise")

    assert "is not a finished backup" in call(project, "restore", str(tmp_path / "backup"), code=2)
    assert not (project / ".spanwise").exists()


def test_the_metadata_of_a_server_are_dumped_by_its_own_tools(tmp_path, project):
    """The refusal prints the dump and the copy of the files."""
    (project / "spanwise.toml").write_text('metadata = "postgresql://user:secret@db.example:5432/meta"\n')

    said = call(project, "backup", str(tmp_path / "backup"), code=2)

    assert "pg_dump --password --host=db.example --port=5432 --username=user meta > metadata.sql" in said
    assert f"spanwise backup {tmp_path / 'backup'} --files-only" in said
    assert "secret" not in said


def test_logs_and_outputs_of_two_histories_never_mix(tmp_path, project):
    """The metadata are restored alone, so run 3 and its executions come twice: both have files of their own."""
    database = project / ".spanwise" / "metadata.db"
    call(project, "backup", str(tmp_path / "backup"))
    call(project, "run", "rides.py", "--span", "3")
    logs = project / ".spanwise" / "rides" / ".runs" / "3" / "logs"
    first = {file.name: file.read_text() for file in logs.iterdir()}
    models = project / ".spanwise" / "rides" / "Trainer" / "model"
    (forgotten,) = set(models.iterdir()) - {models / "3", models / "7"}
    content = (forgotten / "model.json").read_text()
    for suffix in ("", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    shutil.copyfile(tmp_path / "backup" / "metadata.db", database)

    call(project, "run", "rides.py", "--span", "3")

    second = {file.name: file.read_text() for file in logs.iterdir()}
    kept = {file.name: file.read_text() for file in (logs.parents[1] / "3~1" / "logs").iterdir()}
    assert kept == first
    assert not any(second[name] != text and text in second[name] for name, text in first.items() if text)  # appended
    assert (forgotten.with_name(f"{forgotten.name}~1") / "model.json").read_text() == content
    assert (forgotten / "model.json").is_file()
