"""Commands on a folder in which a module's models were trained."""

import shutil
from pathlib import Path

import pytest

from tests.scheduler.conftest import Command


@pytest.fixture
def rides(trained: Path, spanwise: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The models, as they were, and where they were: the last push has recorded its destination."""
    folder = trained.with_name("rides")
    shutil.rmtree(folder)
    monkeypatch.chdir(shutil.copytree(trained, folder, symlinks=True))
    return spanwise
