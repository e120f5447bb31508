"""An engine whose machines are hosts of a bridge (see `hosts`): each agent is on the next of them in turn."""

import contextlib
import itertools
import os
import shlex
import subprocess
import sys

from spanwise.orchestrator import process
from spanwise.orchestrator.agents.engine import AgentLost
from spanwise.orchestrator.agents.messages import Ping
from spanwise.orchestrator.agents.piped_line import PipedLine


class HostsEngine:
    """`places`: the network namespace of each host, and the variable that marks its processes.

    No host sees the folder `hidden`.
    """

    name = "hosts:"

    def __init__(self, places, hidden=None):
        self._places = itertools.cycle(places)
        self._hidden = hidden

    def refuse(self, node, asked):
        pass

    def launch(self, mark, number, asked):
        return HostLine(*next(self._places), self._hidden)

    def end_all(self, mark):
        return list(map(str, process.kill(mark)))  # the processes of hosts are seen from here

    def close(self):
        pass


class HostLine:
    """The line to an agent, over its standard streams."""

    agent = page_url = ""

    def __init__(self, name, variable, hidden):
        self.place = name
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        apart = ["unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        hide = f"mount -t tmpfs none {shlex.quote(str(hidden))} && " if hidden else ""
        named = ["sh", "-c", f'hostname "$0"; {hide}"$@"; exit $?', name]
        key, _, value = variable.partition("=")
        self._agent = subprocess.Popen(
            ["ip", "netns", "exec", name, *apart, *named, sys.executable, "-m", "spanwise.orchestrator.agents.piped_agent"],
            stdin=theirs_in, stdout=theirs_out, start_new_session=True,
            env={**os.environ, key: value, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._line = PipedLine(ours_in, ours_out)

    def wait_started(self, timeout_s):
        if not self._line.poll(timeout_s):
            return False
        self._line.recv()
        return True

    def send(self, message):
        try:
            self._line.send(message)
        except OSError as error:
            raise AgentLost(f"The agent on {self.place} was killed.", "died") from error

    def receive(self, timeout_s):
        self.send(Ping())
        found = []
        try:
            while self._line.poll(0.0 if found else timeout_s):
                found.append(self._line.recv())
        except (EOFError, OSError) as error:
            if not found:
                raise AgentLost(f"The agent on {self.place} was killed.", "died") from error
        return found

    def end(self, started):
        self._line.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent.wait(30)
        self._agent.kill()
        self._agent.wait()
        self._line.close_all()
        return [] if started is None else list(map(str, process.kill(started.mark)))
