"""The demo, fed by a data service: the same models as without one, by way of its workers, and nothing is left running."""

import re
import subprocess
import sys

import numpy as np
import pytest

from tests.scenario.processes import Marked

DAYS = 2
SOON_S = 300.0
MORNING = re.compile(r"^(2013-01-\d\d) .* (\d+) +(0\.\d{3}) +(-|0\.\d{3}) +(yes|no)", re.MULTILINE)


def played(folder, *words):
    """What a demo has printed; it has ended well, and so has all that it started."""
    demo = Marked("spanwise.pipelines.flights_demo", "--folder", folder, "--days", DAYS, *words)
    try:
        printed, _ = demo.process.communicate(timeout=SOON_S)
        assert demo.process.returncode == 0, printed
        assert not demo.gone_within(SOON_S)
    finally:
        demo.end()
    return printed


def logged(folder):
    """What the last Trainer has logged."""
    return subprocess.run(
        [sys.executable, "-m", "spanwise", "logs", "flights", "Trainer"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def weights(folder):
    """Of the newest model that serves."""
    newest = max((folder / "serving").iterdir(), key=lambda version: version.name)
    import joblib

    return joblib.load(newest / "model.joblib").named_steps["logisticregression"].coef_


@pytest.mark.slow
def test_the_demo_is_fed_by_a_data_service(tmp_path):
    """It says so; trainers see as many flights, and learn the same from them but for the order of sums."""
    alone = played(tmp_path / "alone")
    served = played(tmp_path / "served", "--service")

    (address,) = re.findall(r"fed by the data service at (grpc://[\d.:]+); its workers: [\d.:]+, [\d.:]+\.", served)
    assert len(MORNING.findall(served)) == DAYS
    assert MORNING.findall(served) == MORNING.findall(alone)
    flights = re.search(r"training-started flights=\d+", logged(tmp_path / "alone"))[0]
    assert f"{flights} service={address}" in logged(tmp_path / "served")
    assert np.allclose(weights(tmp_path / "served"), weights(tmp_path / "alone"), atol=0.01)
