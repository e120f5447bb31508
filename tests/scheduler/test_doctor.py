import os
from pathlib import Path

import pytest

from orchestrator import State
from scheduler import doctor, root
from scheduler.doctor import Check
from scheduler.settings import Settings
from tests.scheduler.records import begun, ended, examples, published


def settings(folder: Path) -> Settings:
    return Settings(root=folder / "root", metadata=str(folder / "root" / "metadata.db"))


def found(folder: Path) -> dict[str, Check]:
    return {check.name: check for check in doctor.checks(settings(folder))}


def test_an_installation_without_a_run_is_sound(tmp_path: Path) -> None:
    """Nothing fails, and looking makes nothing."""
    checks = found(tmp_path)

    assert {c.level for c in checks.values()} == {"ok"}
    assert checks["metadata"].found.endswith("metadata.db (made by the first run)")
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_is_missing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setattr(doctor, "LIBRARIES", ("no-such-library",))

    assert found(tmp_path)["no-such-library"] == Check(
        "no-such-library", "fail", "is not installed", "pip install no-such-library"
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
    assert "is no metadata database" in checks["metadata"].todo
    assert checks["root"].level == "ok"


def test_a_root_of_another_store_fails(tmp_path: Path) -> None:
    """What every command would refuse, the doctor says too."""
    with root.opened(settings(tmp_path)):
        pass
    (tmp_path / "root" / root.NOTE).write_text("another\n")

    assert found(tmp_path)["root and metadata"].level == "fail"


def test_what_dead_runs_left_is_a_warning(tmp_path: Path) -> None:
    """An open run without a controller, and outputs that were never published; what was published is left alone."""
    with root.opened(settings(tmp_path)) as store:
        run = begun(store, pid=os.getpid())  # type: ignore[arg-type]
        execution = published(store, run, "ExampleGen", outputs={"examples": examples(1)})  # type: ignore[arg-type]
        ended(store, run)  # type: ignore[arg-type]
        begun(store)  # type: ignore[arg-type]
    kept, left = (tmp_path / "root" / "flights" / "ExampleGen" / "examples" / str(n) for n in (execution.id, 99))
    kept.mkdir(parents=True)
    left.mkdir()

    checks = found(tmp_path)

    assert execution.state is State.COMPLETE
    assert checks["run flights/2"].todo == "spanwise stop flights/2"
    assert "run flights/1" not in checks
    assert checks["leftovers"].found.startswith("1 output folders")
    assert str(left) in checks["leftovers"].todo


def test_a_check_is_a_line_and_what_to_type() -> None:
    """The second is below the first."""
    assert doctor.told(Check("x", "warn", "is odd", "mend it")) == "warn  x: is odd\n      -> mend it"
    assert doctor.told(Check("x", "ok", "is well")) == "ok    x: is well"
