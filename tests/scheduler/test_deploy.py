"""The files in docs/deploy: systemd, cron and Kubernetes read them, and their commands are commands of ours."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml  # type: ignore[import-untyped]
from croniter import croniter

from scheduler.cli import app

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
UNITS = sorted(file.name for file in DEPLOY.glob("*.[st][ei][rm][ve]*"))
MANIFESTS = sorted(file.name for file in DEPLOY.glob("*.yaml"))


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    spec = manifest["spec"]
    template = spec["template"] if manifest["kind"] == "Deployment" else spec["jobTemplate"]["spec"]["template"]
    return dict(template["spec"])


def commands() -> Iterator[tuple[str, str]]:
    """Every command of ours in these files, with the file."""
    for name in UNITS:
        for line in re.findall(r"^ExecStart=(.*)$", (DEPLOY / name).read_text(), re.MULTILINE):
            yield name, line
    for line in re.findall(r"^[*\d].*?(\S*spanwise [^>|]*)", (DEPLOY / "crontab").read_text(), re.MULTILINE):
        yield "crontab", line
    for name in MANIFESTS:
        for manifest in manifests(name):
            yield name, shlex.join(pod(manifest)["containers"][0]["command"])


def test_nothing_in_the_folder_is_passed_over() -> None:
    """Each file is one that is looked at here."""
    assert sorted(file.name for file in DEPLOY.iterdir()) == sorted([*UNITS, *MANIFESTS, "crontab"])
    assert {name for name, _ in commands()} == {n for n in [*UNITS, *MANIFESTS, "crontab"] if not n.endswith(".timer")}


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_is_understood(name: str, command: str) -> None:
    """The command line takes the words as they stand in the file."""
    program, words = typer.main.get_command(app), shlex.split(command)

    assert Path(words.pop(0)).name == "spanwise"
    while hasattr(program, "commands"):
        program = program.commands[words.pop(0)]
    program.make_context("spanwise", words)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say, given that the program and the user are there."""
    for name in UNITS:
        text = (DEPLOY / name).read_text()
        there = text.replace("/srv/rides/.venv/bin/spanwise", shutil.which("true") or "").replace("/srv/rides", "/tmp")
        (tmp_path / name).write_text(there.replace("User=spanwise", "User=root"))

    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in UNITS)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert "Failed to" not in said.stderr or "initialize manager" not in said.stderr, said.stderr
    assert [line for line in said.stderr.splitlines() if str(tmp_path) in line or "spanwise" in line] == []


@pytest.mark.parametrize("name", [name for name in UNITS if name.endswith(".timer")])
def test_a_timer_has_its_service(name: str) -> None:
    """By name, as systemd looks for it."""
    assert name.replace(".timer", ".service") in UNITS


def test_the_crontab_is_one() -> None:
    """Five fields that croniter reads, and no bare percent sign, which cron takes for the end of the line."""
    lines = [
        line for line in (DEPLOY / "crontab").read_text().splitlines() if line and not line.startswith(("#", "MAILTO"))
    ]

    assert len(lines) == 2
    for line in lines:
        assert croniter.is_valid(" ".join(line.split()[:5]))
        assert not re.search(r"(?<!\\)%", line)


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_what_kubernetes_wants(name: str) -> None:
    """Kind and version that belong together, selectors that fit, volumes that are mounted and defined."""
    versions = {"Deployment": "apps/v1", "CronJob": "batch/v1"}
    for manifest in manifests(name):
        spec = manifest["spec"]
        assert manifest["apiVersion"] == versions[manifest["kind"]]
        (container,) = pod(manifest)["containers"]
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod(manifest)["volumes"]}
        if manifest["kind"] == "Deployment":
            assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
        else:
            assert croniter.is_valid(spec["schedule"])
            assert pod(manifest)["restartPolicy"] == "Never"
