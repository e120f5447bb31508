import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spanwise.orchestrator import Examples, PushedModel, State
from spanwise.orchestrator.errors import StorageError
from spanwise.orchestrator.mlmd import open_store
from spanwise.orchestrator.verdict import Verdict, append
from spanwise.scheduler.alerts import alert, channel, outbox
from spanwise.scheduler.inspect import database_file, doctor
from spanwise.scheduler.inspect.doctor import HealthCheck
from spanwise.scheduler.project import root
from spanwise.scheduler.project.settings import AlertSettings, Settings
from spanwise.scheduler.run.models import decide
from tests.scheduler.client.test_client import serve
from tests.scheduler.past import Past
from tests.scheduler.records import DAY, NOON, begun, ended, examples, model, published


def settings(folder: Path) -> Settings:
    return Settings(root=folder / "root", metadata=str(folder / "root" / "metadata.db"))


def found(folder: Path) -> dict[str, HealthCheck]:
    return {check.name: check for check in doctor.run_checks(settings(folder))}


def test_an_installation_without_a_run_is_sound(tmp_path: Path) -> None:
    """Nothing fails, and looking makes nothing."""
    checks = found(tmp_path)

    assert {c.level for c in checks.values()} == {"ok"}
    assert checks["metadata"].found.endswith("metadata.db (created by the first run)")
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_is_missing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setattr(doctor, "LIBRARIES", ("no-such-library",))

    assert found(tmp_path)["no-such-library"] == HealthCheck(
        "no-such-library", "fail", "not installed", "pip install no-such-library"
    )


def test_little_room_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a run fails for want of it."""
    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 10**18)

    assert found(tmp_path)["free space"].level == "warn"


def test_a_database_that_does_not_open_fails(tmp_path: Path) -> None:
    """The rest is still looked at."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "metadata.db").write_text("something else, which is no database at all")

    checks = found(tmp_path)

    assert checks["metadata"].level == "fail"
    assert "is not a metadata database" in checks["metadata"].fix
    assert checks["root"].level == "ok"


def test_metadata_are_not_unavailable_where_artifacts_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the storage denies it, or the disk is full that the copies are on."""

    def deny(*_arguments: object, **_options: object) -> Iterator[object]:
        yield from ()
        raise StorageError("s3://lake/r/rides/1 could not be copied to /full: No space left on device.")

    with root.open_for_writing(settings(tmp_path)) as store:
        ended(store, begun(store))  # type: ignore[arg-type]
    monkeypatch.setattr(doctor, "check_artifacts", deny)

    checks = found(tmp_path)

    assert checks["metadata"].level == "ok"
    check = checks["artifacts of flights"]
    assert (check.level, check.found) == ("fail", "could not be checked")
    assert "No space left on device" in check.fix


def test_a_database_that_cannot_be_checked_now_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: whoever restored a backup for that would lose what was recorded since."""
    with root.open_for_writing(settings(tmp_path)):
        pass
    fault = "import sqlite3\nraise sqlite3.OperationalError('disk I/O error')"
    monkeypatch.setattr(database_file, "_CHECK", fault)

    check = found(tmp_path)["metadata"]

    assert (check.level, check.found) == ("fail", "could not open")
    assert "disk I/O error. Check its file, its folder and their disk: ls -ld" in check.fix
    assert "restore" not in check.fix


def test_a_root_of_another_store_fails(tmp_path: Path) -> None:
    """What every command would refuse, the doctor says too."""
    with root.open_for_writing(settings(tmp_path)):
        pass
    (tmp_path / "root" / root.NOTE).write_text("another\n")

    assert found(tmp_path)["root and metadata"].level == "fail"


def test_a_root_is_not_called_another_one_where_storage_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can say then whether root and metadata belong together."""

    def deny(*_arguments: object) -> None:
        raise StorageError("s3://lake/root: access was denied.")

    with root.open_for_writing(settings(tmp_path)):
        pass
    monkeypatch.setattr(doctor, "check_root", deny)

    check = found(tmp_path)["root and metadata"]

    assert (check.level, check.found, check.fix) == (
        "fail",
        "could not be checked",
        "s3://lake/root: access was denied.",
    )


def test_nothing_is_to_be_removed_from_the_root_of_another_store(tmp_path: Path) -> None:
    """The store knows none of its artifacts, which would all look as if they had never been published."""
    with root.open_for_writing(settings(tmp_path)) as store:
        run = begun(store)  # type: ignore[arg-type]
        execution = published(store, run, "ExampleGen", outputs={"examples": examples(1)})  # type: ignore[arg-type]
    (tmp_path / "root" / "flights" / "ExampleGen" / "examples" / str(execution.id)).mkdir(parents=True)
    (tmp_path / "root" / "metadata.db").write_bytes(b"")

    checks = found(tmp_path)

    assert checks["root and metadata"].level == "fail"
    assert not [check for check in checks.values() if "rm -r" in check.fix]


def test_a_folder_in_the_place_of_the_database_fails(tmp_path: Path) -> None:
    """It is said like any other fault."""
    (tmp_path / "root" / "metadata.db").mkdir(parents=True)

    assert found(tmp_path)["metadata"].level == "fail"


def test_artifacts_are_not_looked_for_in_the_root_of_another_store(tmp_path: Path) -> None:
    """Each would be missing there, and the command that recreates it would be refused."""
    with root.open_for_writing(settings(tmp_path)) as store:
        run = begun(store)  # type: ignore[arg-type]
        published(store, run, "ExampleGen", outputs={"examples": examples(1)})  # type: ignore[arg-type]
        ended(store, run)  # type: ignore[arg-type]
    before = found(tmp_path)
    (tmp_path / "root" / root.NOTE).write_text("another\n")

    after = found(tmp_path)

    assert any(name.startswith("artifact ") for name in before)
    assert not any(name.startswith("artifact") for name in after)


def test_files_that_are_gone_are_listed_until_they_are_made_again_or_given_up(tmp_path: Path) -> None:
    """A span by the command that is printed; a model, which nothing makes again, when its blessing is taken back."""
    again = tmp_path / "again"
    again.mkdir()
    (again / "rows").write_text("x")
    with root.open_for_writing(settings(tmp_path)) as store:
        run = begun(store)  # type: ignore[arg-type]
        published(store, run, "ExampleGen", outputs={"examples": examples(1)})  # type: ignore[arg-type]
        (lost,) = published(store, run, "Trainer", outputs={"model": model()}).outputs["model"]  # type: ignore[arg-type]
        ended(store, run)  # type: ignore[arg-type]
        before = found(tmp_path)
        run = begun(store)  # type: ignore[arg-type]
        made = Examples(str(again), size_bytes=1, properties=examples(1).properties)
        published(store, run, "ExampleGen", outputs={"examples": made})  # type: ignore[arg-type]
        ended(store, run)  # type: ignore[arg-type]
        decide(store, lost, given=False, because="damaged")
    after = found(tmp_path)

    fixes = [check.fix for name, check in before.items() if name.startswith("artifact ")]
    assert any("create it again: spanwise run flights.py --span 1970-01-02 --to ExampleGen" in fix for fix in fixes)
    assert any(fix.endswith(f"give it up: spanwise unbless {lost.name} --because damaged") for fix in fixes)
    assert not any(name.startswith("artifact ") for name in after)
    assert after["artifacts of flights"].found == "1 of 1 from recent runs on disk"


def test_what_dead_runs_left_is_a_warning(tmp_path: Path) -> None:
    """An open run without a controller, and outputs that were never published; what was published is left alone."""
    with root.open_for_writing(settings(tmp_path)) as store:
        run = begun(store, pid=os.getpid())  # type: ignore[arg-type]
        execution = published(store, run, "ExampleGen", outputs={"examples": examples(1)})  # type: ignore[arg-type]
        failed = published(store, run, "Trainer", State.FAILED)  # type: ignore[arg-type]
        ended(store, run)  # type: ignore[arg-type]
        begun(store)  # type: ignore[arg-type]
    left = tmp_path / "root" / "flights" / "Trainer" / "model" / str(failed.id)
    left.mkdir(parents=True)
    (tmp_path / "root" / "flights" / "ExampleGen" / "examples" / str(execution.id)).mkdir(parents=True)

    checks = found(tmp_path)

    assert execution.state is State.COMPLETE
    assert checks["run flights/2"].fix == "spanwise stop flights/2"
    assert "run flights/1" not in checks
    assert checks["leftovers"].found.startswith("1 output folders")
    assert checks["leftovers"].fix == f"rm -r {left}"


def test_only_what_an_execution_left_is_to_be_removed(tmp_path: Path) -> None:
    """Raw data, served models and whatever else lies in the root is not: no record says that a node has written it."""
    with root.open_for_writing(settings(tmp_path)) as store:
        run = begun(store)  # type: ignore[arg-type]
        failed = published(store, run, "Trainer", State.FAILED)  # type: ignore[arg-type]
        ended(store, run, State.FAILED)  # type: ignore[arg-type]
    for other in (
        "data/2024/05/10",
        "serving/europe/flights/1717200000",
        "flights/Trainer/model/99",
        f"flights/Copy/model/{failed.id}",
        f"taxi/Trainer/model/{failed.id}",
    ):
        (tmp_path / "root" / other).mkdir(parents=True)

    assert found(tmp_path)["leftovers"] == HealthCheck("leftovers", "ok", "none")


def test_what_is_printed_to_be_removed_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """Pasted as often as it is printed: also below a folder with a space in its name, beside one that it begins with."""
    folder = tmp_path / "my flights"
    (tmp_path / "my").mkdir()
    with root.open_for_writing(settings(folder)) as store:
        run = begun(store)  # type: ignore[arg-type]
        failed = [published(store, run, f"Trainer{n}", State.FAILED) for n in range(7)]  # type: ignore[arg-type]
    for execution in failed:
        (folder / "root" / "flights" / execution.node / "model" / str(execution.id)).mkdir(parents=True)

    first = found(folder)["leftovers"]
    subprocess.run(first.fix, shell=True, check=True)
    subprocess.run(found(folder)["leftovers"].fix, shell=True, check=True)

    assert first.found == "7 output folders that nothing reads; remove 5 of them, then check again"
    assert found(folder)["leftovers"].level == "ok"
    assert (tmp_path / "my").is_dir()


def test_commands_are_for_the_root_that_was_checked(tmp_path: Path) -> None:
    """With --root and --config as they were typed."""
    with root.open_for_writing(settings(tmp_path)) as store:
        begun(store)  # type: ignore[arg-type]

    checks = {check.name: check for check in doctor.run_checks(settings(tmp_path), elsewhere=["--root", "my root"])}

    assert checks["run flights/1"].fix == "spanwise stop flights/1 --root 'my root'"


def test_a_check_is_a_line_and_what_to_type() -> None:
    """The second is below the first."""
    assert doctor.format_check(HealthCheck("x", "warn", "is odd", "mend it")) == "warn  x: is odd\n      -> mend it"
    assert doctor.format_check(HealthCheck("x", "ok", "is well")) == "ok    x: is well"


def test_channels_for_alerts_are_looked_at(tmp_path: Path) -> None:
    """One that Apprise cannot use fails before an alert does; where none is set, that is said."""
    known = settings(tmp_path)
    wrong = replace(known, alerts=AlertSettings(urls=("json://127.0.0.1/hook", "slak://hunter2")))

    none = {check.name: check for check in doctor.run_checks(known)}
    found = {check.name: check for check in doctor.run_checks(wrong)}

    assert none["alerts"] == HealthCheck("alerts", "ok", "not configured: [alerts] in spanwise.toml has no urls")
    assert found["alerts"].level == "fail"
    assert found["alerts"].fix.startswith("alerts.urls[1] (slak): Apprise supports no such service.")


def test_a_channel_is_tried_when_it_is_asked_for(tmp_path: Path) -> None:
    """A message goes to each; what waits in the outbox is told with the reason."""
    with socket.socket() as free:  # bound, and nobody listens
        free.bind(("127.0.0.1", 0))
        known = replace(settings(tmp_path), alerts=AlertSettings(urls=(f"json://127.0.0.1:{free.getsockname()[1]}/",)))
        site = alert.Site(host="train-1", folder=tmp_path)
        outbox.put(known.root, alert.failure_alert("flights", at=NOON, site=site, error="as asked for"))
        outbox.deliver(known.root, channel.read_routes(known.alerts), NOON)

        checks = {check.name: check for check in doctor.run_checks(known, alert=True)}

    name = "alerts.urls[0] (json)"
    assert checks["alerts"] == HealthCheck("alerts", "ok", f"sent to {name}")
    assert checks["outbox"].found.startswith("1 not sent yet, the oldest since 2013-01-08")
    assert checks["outbox"].found.endswith(f"; {name}: the connection was refused")
    assert checks[f"message to {name}"] == HealthCheck(f"message to {name}", "fail", "the connection was refused")


def test_the_push_that_replaces_a_forgotten_version_is_of_a_model_that_may_be_pushed(tmp_path: Path) -> None:
    """The one that was pushed last was taken back since, so a push of it is refused; one that is unknown has none."""
    known = settings(tmp_path)
    known.root.mkdir()
    store = open_store(known.metadata, root=known.root)
    past = Past(tmp_path, store)
    first, second = (past.train([past.ingest(day)]) for day in (DAY, DAY + 1))
    for version, pushed in enumerate((first, second)):
        serve(past, past.push(pushed, version))
    append(store, [Verdict(mark="blessed", artifact=second.name, given=False, by="ann@host", because="wrong")])
    (past.serving / "8").mkdir()
    store.close()
    check = found(tmp_path)["what serves of flights"]
    assert (check.level, check.fix) == ("warn", f"spanwise push {first.name} --because TEXT")

    store = past.store = open_store(known.metadata, root=known.root)
    away = {"pushed": 1, "model": "elsewhere", "pushed_destination": str(past.serving / "7")}
    past.do("Pusher", pushed_model=[past.draft(PushedModel, **away)])
    store.close()

    check = found(tmp_path)["what serves of flights"]
    assert (check.level, check.fix) == ("warn", "")


def test_a_forgotten_version_is_found_after_any_number_of_models_that_were_not_pushed(tmp_path: Path) -> None:
    """The last push counts, however many runs have pushed nothing since."""
    known = settings(tmp_path)
    known.root.mkdir()
    store = open_store(known.metadata, root=known.root)
    past = Past(tmp_path, store)
    model = past.train([past.ingest(DAY)])
    serve(past, past.push(model, 7))
    (past.serving / "8").mkdir()
    for _ in range(25):
        past.do("Pusher", pushed_model=[past.draft(PushedModel, pushed=0, model=model.name)])
    store.close()

    check = found(tmp_path)["what serves of flights"]

    assert (check.level, check.fix) == ("warn", f"spanwise push {model.name} --because TEXT")
