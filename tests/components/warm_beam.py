"""Worker processes of Beam that are forked from one that has imported what they need, which takes seconds."""

import os
import shlex
import sys
from importlib import import_module
from types import SimpleNamespace

from tests import warm


def use_warm_workers(monkeypatch):
    """From now on Beam's mode `multi_processing` has warm workers; each is a process of its own (see `warm`)."""
    words = shlex.join(warm.command(reads_data=True))
    module = import_module("apache_beam.runners.portability.fn_api_runner.fn_runner")
    monkeypatch.setattr(module, "sys", SimpleNamespace(executable=words))  # the command of a worker begins with it
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
