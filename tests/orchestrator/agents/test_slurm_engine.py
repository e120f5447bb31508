"""What of Slurm's engine needs no cluster; `make test-engines` runs the rest on a real one."""

import os
import threading

import pytest

from spanwise.orchestrator import PipelineError, Resources, SettingsError
from spanwise.orchestrator.agents.engines import open_engine
from spanwise.orchestrator.agents.messages import Ping, Printed
from spanwise.orchestrator.agents.piped_line import PipedLine
from spanwise.orchestrator.agents.slurm_engine import SlurmEngine


@pytest.fixture
def ends():
    """Both ends of a line."""
    (here_in, there_out), (there_in, here_out) = os.pipe(), os.pipe()
    here, there = PipedLine(here_in, here_out), PipedLine(there_in, there_out)
    yield here, there
    here.close_all()
    there.close_all()


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """A machine where jobs can be submitted."""
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_without_slurm_the_way_out_is_said(tmp_path, monkeypatch):
    """The settings name Slurm on a machine that has none of its commands."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SettingsError, match=r"there is no srun on the PATH\. Start this where jobs are submitted"):
        open_engine("slurm:gpu")


def test_an_image_is_refused_before_anything_runs(commands):
    """A job has no image, and a node that asks for one must not run in another environment."""
    with pytest.raises(PipelineError, match=r"Trainer asks for the image 'repo/train:3'.* Leave image= out\."):
        SlurmEngine().refuse("Trainer", Resources(image="repo/train:3"))


def test_an_engine_is_opened_again_by_its_name(commands):
    """So the lease names it, for the one who comes after a dead controller."""
    assert open_engine(SlurmEngine("gpu").name).name == "slurm:gpu"


def test_messages_come_whole_and_in_order_whatever_their_bytes(ends):
    """Line breaks, NULs, and more than a pipe holds."""
    here, there = ends
    sent = [Ping(), Printed(1, b"a\nb\0\xff\n"), Printed(2, os.urandom(3 << 20)), Ping()]
    sender = threading.Thread(target=lambda: [here.send(each) for each in sent])
    sender.start()

    came = [there.recv() for _ in sent]

    sender.join()
    assert came == sent
    assert not there.poll(0.0)


def test_an_end_that_is_closed_is_told_to_the_other_after_what_came_before(ends):
    here, there = ends
    here.send(Ping())
    here.close()

    assert there.recv() == Ping()
    with pytest.raises(EOFError):
        there.recv()
    with pytest.raises(BrokenPipeError):
        here.send(Ping())
