"""The demo: what it prints at its end is typed where it was started."""

import os
import subprocess
import sys
from pathlib import Path

from spanwise.pipelines import flights_demo


def test_the_command_that_goes_on_works_where_the_demo_was_started(tmp_path, monkeypatch, capsys):
    """The mornings are run in the folder of the demo; the activation is named from the one that the user is in."""
    activate = tmp_path / "env" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text("echo activated\n")
    start = tmp_path / "checkout"
    start.mkdir()
    monkeypatch.chdir(start)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setattr(flights_demo.shutil, "which", lambda _name: None)
    monkeypatch.setattr(flights_demo, "prepare", lambda _folder, _days: None)
    monkeypatch.setattr(flights_demo, "mornings", lambda folder, _days: os.chdir(folder) or [])

    assert flights_demo.main(["--folder", "play"]) == 0

    command = next(line for line in capsys.readouterr().out.splitlines() if "Go on there:" in line).partition(":  ")[2]
    ran = subprocess.run(["bash", "-c", f"{command} && pwd"], cwd=start, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["activated", str(Path(start, "play").resolve())]
