"""A data service whose journal is in object storage: dispatchers as processes, of which one leads, and workers."""

import os
import subprocess
import time
import uuid

from spanwise.orchestrator.storage import parse_url
from spanwise.pipelines.input.service.wire.leader import read_leader
from spanwise.scheduler.main import main
from tests.forkserver import FORKS
from tests.servers import eventually

TAKEOVER_S = 4
SOON_S = 300.0


class Member:
    """A process of `spanwise service`, and what it has printed."""

    def __init__(self, folder, *words, host=None, env=None):
        self.log = folder / f"{words[0]}-{uuid.uuid4().hex[:6]}.log"
        if host is None:
            self.log.touch()
            self.process = Fork(self.log, words)
            return
        with self.log.open("w") as log:
            options = {"stdout": log, "stderr": log, "stdin": subprocess.DEVNULL}
            self.process = host.start("spanwise", "service", *words, env=env, **options)

    def says(self, word):
        return word in self.log.read_text()

    def await_word(self, word):
        eventually(lambda: self.says(word) or self.process.poll() is not None, SOON_S)
        assert self.says(word), self.log.read_text()

    def end(self):
        self.process.kill()
        self.process.wait()


class Fork:
    """`spanwise service` in a fork of a process that has imported it; it is used as `subprocess.Popen` is."""

    def __init__(self, log, words):
        self._process = FORKS.Process(target=_serve, args=(log, words, dict(os.environ)), daemon=True)
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout_s=None):
        self._process.join(timeout_s)
        return self._process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self._process.kill()


def _serve(log, words, variables):
    os.environ.clear()  # those of the server of forks are older
    os.environ.update(variables)
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os._exit(main(["service", *words]))


class LedService:
    """Dispatchers with one journal, and workers that know its URL."""

    def __init__(self, folder, home, *options):
        self.folder, self.options = folder, options
        self.url = f"{home}/{uuid.uuid4().hex}"
        self.members = []

    def start(self, *words, **where):
        self.members.append(Member(self.folder, *words, **where))
        return self.members[-1]

    def add_dispatcher(self, *words, **where):
        words = words or ("--port", "0")
        takeover = ["--takeover-after", str(TAKEOVER_S)]
        return self.start("dispatcher", *words, "--work-dir", self.url, *takeover, *self.options, **where)

    def add_worker(self, *words, **where):
        return self.start("worker", self.url, *words, **where)

    def leader(self):
        found = read_leader(parse_url(self.url))
        return None if found is None else found[0]

    def await_leader(self, token):
        """Waits until the dispatcher with this token listens; its record."""

        def leads():
            record = self.leader()
            return record is not None and record.token >= token and record.address

        eventually(leads, SOON_S)
        return self.leader()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.end()


def slow(number):
    time.sleep(0.002)
    return number
