"""The demo on a cluster: the table is that of the demo, though things die, and nothing is on the scheduler's disk."""

import os
import re
from pathlib import Path

import pytest

from tests.scenario.processes import Marked

pytestmark = pytest.mark.skipif(
    not {"SPANWISE_TEST_RAY", "SPANWISE_TEST_BEAM_ENGINES"} <= {*os.environ}, reason="make test-engines"
)

DAYS = 3
SOON_S = 1800.0
MORNING = re.compile(r"^(2013-01-\d\d .* (?:yes|no)) +(\d{10}|-) +\d+\.\d$", re.MULTILINE)


def played(folder, module, *words):
    """What a demo has printed, and its mornings but for versions and seconds; all that it has started is gone."""
    said = folder.with_suffix(".txt")  # no pipe: servers that outlive the demo would keep it open
    with said.open("w") as out:
        demo = Marked(f"spanwise.pipelines.{module}", "--folder", folder, "--days", DAYS, *words, stdout=out)
        try:
            demo.process.wait(SOON_S)
            assert demo.process.returncode == 0, said.read_text()
            assert not demo.gone_within(SOON_S)
        finally:
            demo.end()
    printed = said.read_text()
    return printed, [(told, version != "-") for told, version in MORNING.findall(printed)]


def test_the_demo_on_a_cluster_shows_the_table_of_the_demo(tmp_path):
    """PostgreSQL, S3, Ray and Flink; the controller dies on the last morning but one, and both machines on the last."""
    _, expected = played(tmp_path / "alone", "flights_demo")

    gateway = Path(os.environ["SPANWISE_TEST_VERSITYGW"]).absolute()
    flink = Path(os.environ["SPANWISE_TEST_BEAM_ENGINES"], "flink-job-server.jar").absolute()
    printed, mornings = played(tmp_path / "cluster", "flights_cluster", "--gateway", gateway, "--flink", flink)

    assert len(expected) == DAYS
    assert mornings == expected, printed
    order = re.findall(r"^(2013-01-\d\d) |(controller was killed)|(machines were taken away)", printed, re.MULTILINE)
    killed, taken = ("", "controller was killed", ""), ("", "", "machines were taken away")
    days = [(f"2013-01-0{number}", "", "") for number in range(1, DAYS + 1)]
    assert order == [days[0], killed, days[1], taken, days[2]], printed
    log = (tmp_path / "cluster" / "log").read_text()
    assert re.findall(r"^Run flights/(\d+) of span (\S+): complete", log, re.MULTILINE) == [
        ("1", "2013-01-01"), ("3", "2013-01-02"), ("4", "2013-01-03"),
    ]  # fmt: skip
    on_flink = re.findall(r"^(\w+) \| .* beam-job-started runner=FlinkRunner", log, re.MULTILINE)
    assert {*on_flink} == {"ExampleGen", "StatisticsGen", "Transform", "Evaluator"}
    local = {path.relative_to(tmp_path / "cluster").parts[0] for path in (tmp_path / "cluster").rglob("*")}
    assert local - {"__pycache__"} == {"flights.py", "log", "spanwise.toml"}
    assert "of artifacts: 0 files." in printed
