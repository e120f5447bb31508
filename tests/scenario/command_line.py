"""A folder with a pipeline file and the command line, both in this process, with the metadata in memory."""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from spanwise.scheduler.main import main
from tests.scenario.inline import run_inline


class CommandLine:
    """Types commands in the folder of `flow.py`, which is loaded anew for each, as it is by a real one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.chdir(folder)
        self.folder, self.file = folder, folder / "flow.py"
        self.store = run_inline(monkeypatch)
        self.file.write_text(text)
        (folder / "lake").mkdir()

    def arrive(self, span: int, text: str, version: int = 1) -> None:
        """A file for `random_life.Ingest`."""
        (self.folder / "lake" / str(span)).write_text(f"{version} {text}")

    def __call__(self, *words: str) -> int:
        for name in [n for n, module in sys.modules.items() if getattr(module, "__file__", None) == str(self.file)]:
            del sys.modules[name]
        return main(list(words))

    def ask(self, *words: str) -> Any:
        """What a command says to programs."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            self(*words, "--json")
        return json.loads(said.getvalue())
