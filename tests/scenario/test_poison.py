"""An element that kills the process that produces it: the consumer learns where it lies, and no more workers die."""

import os
import re
import signal
import threading

import pytest

from spanwise.orchestrator.errors import ServiceError
from spanwise.pipelines import input as inputs
from tests.scenario.served import Servers

DEADLY = 700


def produce(number):
    if number == DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


class Supervised(Servers):
    """Workers that are started again whenever they have ended, as by systemd or Kubernetes."""

    def __enter__(self):
        self.deaths = 0
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch)
        self._watching.start()
        return super().__enter__()

    def _watch(self):
        while not self._over.wait(0.02):
            for name in ("left", "right"):
                if self.processes[name].exitcode is not None:
                    self.deaths += 1
                    self.start(name)

    def __exit__(self, *error):
        self._over.set()
        self._watching.join()
        super().__exit__(*error)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "dynamic", "exactly_once"])
def test_an_element_that_kills_workers_ends_the_pass_with_its_place(tmp_path, mode):
    """After a few workers, with what the last one has said; also in a mode whose passes would go on for ever."""
    dataset = inputs.range(1000).map(produce)
    if mode == "dynamic":  # where a split is tried once in each repetition
        dataset = dataset.repeat()
    with Supervised(tmp_path / "service") as servers:
        with (
            pytest.raises(ServiceError, match=r"workers.*ended while they produced.*last word") as caught,
            dataset.distribute(servers.target, mode).iterator() as elements,
        ):
            for _ in elements:
                pass
        deaths = servers.deaths

    text = str(caught.value)
    if mode == "off":
        (place,) = map(int, re.findall(r"produced element (\d+)", text))
        assert place <= DEADLY
    else:
        ((first, last),) = re.findall(r"elements (\d+) to (\d+) of Range", text)
        assert int(first) <= DEADLY <= int(last)
    assert deaths <= 8, text
