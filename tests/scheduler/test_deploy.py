"""The files in docs/deploy: systemd, cron and Kubernetes read them, and their commands are commands of ours."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml  # type: ignore[import-untyped]
from croniter import croniter

from spanwise.pipelines.input.service.dispatcher.dispatcher import DispatchServer
from spanwise.pipelines.input.service.wire.security import Security
from spanwise.scheduler.cli import app
from spanwise.scheduler.data_service.service_metrics import families
from tests.forked import in_fork

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
UNITS = sorted(file.name for file in DEPLOY.glob("*.[st][ei][rm][ve]*"))
MANIFESTS = sorted(file.name for file in DEPLOY.glob("*.yaml"))


def manifests(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def pods(name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each manifest that makes pods, with what it says of them."""
    for manifest in manifests(name):
        if manifest["kind"] in {"CronJob", "Deployment", "StatefulSet"}:
            spec = manifest["spec"]
            yield manifest, dict(spec.get("template") or spec["jobTemplate"]["spec"]["template"])


def commands() -> Iterator[tuple[str, str]]:
    """Every command of ours in these files, with the file."""
    for name in UNITS:
        for line in re.findall(r"^ExecStart=(.*)$", (DEPLOY / name).read_text(), re.MULTILINE):
            yield name, line
    for line in re.findall(r"^[*\d].*?(\S*spanwise [^>|]*)", (DEPLOY / "crontab").read_text(), re.MULTILINE):
        yield "crontab", line
    for name in MANIFESTS:
        for _, template in pods(name):
            yield name, shlex.join(template["spec"]["containers"][0]["command"])


def test_nothing_in_the_folder_is_passed_over() -> None:
    """Each file is one that is looked at here."""
    assert sorted(file.name for file in DEPLOY.iterdir()) == sorted([*UNITS, *MANIFESTS, "chart", "crontab"])
    runs = {n for n in [*UNITS, *MANIFESTS, "crontab"] if not n.endswith(".timer")} - {"kubernetes-nodes.yaml"}
    assert {name for name, _ in commands()} == runs


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
def test_kubernetes_takes_the_manifests(name: str) -> None:
    """Each is valid by the schemas of Kubernetes' own, and has no key that these do not know."""
    for manifest in manifests(name):
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", MANIFESTS)
def test_what_a_manifest_names_is_there(name: str) -> None:
    """Selectors fit, volumes are mounted and defined, probes look at ports that are open."""
    for manifest, template in pods(name):
        spec = manifest["spec"]
        (container,) = template["spec"]["containers"]
        defined = [*template["spec"]["volumes"], *(each["metadata"] for each in spec.get("volumeClaimTemplates", []))]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in defined}
        ports = {port["name"] for port in container.get("ports", [])}
        assert {probe["tcpSocket"]["port"] for key, probe in container.items() if key.endswith("Probe")} <= ports
        if manifest["kind"] == "CronJob":
            assert croniter.is_valid(spec["schedule"])
            assert template["spec"]["restartPolicy"] == "Never"
        else:
            assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_the_chart_gives_the_rights_of_the_manifest() -> None:
    """No more and no less; engines are tested with those of the manifest."""
    (role,) = (each for each in manifests("kubernetes-nodes.yaml") if each["kind"] == "Role")
    chart = (DEPLOY / "chart" / "templates" / "nodes.yaml").read_text()
    (rules,) = re.findall(r"^rules:\n(?:  .*\n)+", chart, re.MULTILINE)

    assert yaml.safe_load(rules)["rules"] == role["rules"]


def list_metrics() -> set[str]:
    """What a dispatcher counts; in a fork, since it serves Flight."""
    with DispatchServer() as there:
        return {family.name for family in families("dispatcher", there.status())}


def test_the_data_service_is_of_one_piece() -> None:
    """Workers go to the dispatcher's name and port; both read what the settings of the service are called, and none of
    their secrets is in the file; they listen at the ports that they open.
    """
    by_kind = {manifest["kind"]: manifest for manifest in manifests("kubernetes-service.yaml")}
    (dispatcher, worker) = (
        by_kind[kind]["spec"]["template"]["spec"]["containers"][0] for kind in ("StatefulSet", "Deployment")
    )
    service, autoscaler = by_kind["Service"], by_kind["HorizontalPodAutoscaler"]["spec"]
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    (metric,) = autoscaler["metrics"]

    assert f"grpc+tls://{service['metadata']['name']}:{ports['grpc']}" in worker["command"]
    assert autoscaler["scaleTargetRef"]["name"] == by_kind["Deployment"]["metadata"]["name"]
    assert metric["external"]["metric"]["name"] in in_fork(list_metrics)
    assert by_kind["StatefulSet"]["spec"]["serviceName"] == service["metadata"]["name"]
    assert (
        service["spec"]["selector"].items() <= by_kind["StatefulSet"]["spec"]["template"]["metadata"]["labels"].items()
    )
    for container in (dispatcher, worker):
        command, environment = container["command"], {each["name"]: each.get("value") for each in container["env"]}
        assert int(command[command.index("--port") + 1]) in {each["containerPort"] for each in container["ports"]}
        (folder,) = (each["mountPath"] for each in container["volumeMounts"] if each["name"] == "certificates")
        security = Security.from_environment({**environment, "SPANWISE_SERVICE_TOKEN": "from the secret"})
        assert security.is_tls
        assert security.name
        assert {str(Path(pem or "").parent) for pem in (security.certificate, security.key, security.authority)} == {
            folder
        }
        assert environment["SPANWISE_SERVICE_TOKEN"] is None
