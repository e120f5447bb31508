from pathlib import Path

import pytest

from spanwise.scheduler.daemon import description
from tests.scheduler.daemon.test_description import FILE


def test_a_package_that_is_called_as_ours_does_not_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever Python was told to look for the user's own; and what the user's code starts is told only that."""
    decoy = tmp_path / "decoy"
    (decoy / "scheduler").mkdir(parents=True)
    (decoy / "scheduler" / "__init__.py").write_text("raise SystemExit(9)")
    monkeypatch.setenv("PYTHONPATH", str(decoy))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.py").write_text(f"{FILE}\nimport os\nassert os.environ['PYTHONPATH'] == {str(decoy)!r}\n")

    found = description.describe([str(tmp_path / "two.py")], None)

    assert [each.pipeline for each in found] == ["first", "second"]
