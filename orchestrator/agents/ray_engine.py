"""Ray: agents are actors of a Ray cluster, which places them by what their nodes ask for.

An actor belongs to the job of its controller: when the controller ends, however it ends, Ray ends its actors, and each
agent ends with its actor. Another controller finds the actors by their names, and their processes by their mark.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from spanwise.orchestrator import process
from spanwise.orchestrator.agents.engine import AgentLost
from spanwise.orchestrator.agents.messages import Command, Ping, Prepare, Ready, Report
from spanwise.orchestrator.errors import NodeFailed, SettingsError
from spanwise.orchestrator.process import Identity
from spanwise.orchestrator.rendezvous import ADDRESS, is_loopback
from spanwise.orchestrator.resources import Resources

NAMESPACE = "spanwise"
_KNOCK_S = 10.0
_OUT_OF_REACH_S = 60.0
_PROOF_S = 30.0
_NODE_DEATH_S = 40.0
"""How long Ray may take to notice that a machine is gone: five missed health checks, and some time for a busy one."""


class RayEngine:
    """A Ray cluster. It is connected to when the first agent is launched: with Ray's threads, no process may fork."""

    def __init__(self, address: str = "auto") -> None:
        try:
            import ray  # noqa: F401  no use; the error belongs here
        except ImportError as error:
            raise SettingsError(
                "The executor 'ray' needs Ray, which is not installed: pip install 'spanwise[ray]'"
            ) from error
        self._address = address
        self._connected = False
        self._dashboard = ""
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"ray:{self._address}"

    def refuse(self, node: str, asked: Resources) -> None:
        """Every field means something to Ray: an image is its `image_uri`."""

    def launch(self, mark: int, number: int, asked: Resources) -> RayLine:
        self._open()
        return _launch(mark, number, asked, "SPREAD", self._dashboard)

    def reserve(self, mark: int, number: int, asked: Resources, count: int) -> RayReservation:
        ray = self._open()
        bundle = {"CPU": 1 if asked.cpus is None else asked.cpus, "GPU": asked.gpus, "memory": asked.memory_bytes}
        group = ray.util.placement_group(
            [{name: amount for name, amount in bundle.items() if amount}] * count,
            strategy="STRICT_SPREAD" if asked.spread else "PACK",
            name=f"gang-{mark}-{number}",
        )
        return RayReservation(group, mark, asked, self._dashboard)

    def end_all(self, mark: int) -> list[str]:
        ray = self._connect()
        prefix = f"agent-{mark}-"
        for each in ray.util.list_named_actors(all_namespaces=True):
            if each["namespace"] == NAMESPACE and each["name"].startswith(prefix):
                with contextlib.suppress(ValueError):  # it has ended meanwhile
                    ray.kill(ray.get_actor(each["name"], namespace=NAMESPACE))
        alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        return _kill_on(alive, mark)

    def close(self) -> None:
        if self._connected:
            import ray

            self._connected = False
            ray.shutdown()

    def _open(self) -> Any:
        try:
            return self._connect()
        except AgentLost as lost:
            raise AgentLost(
                f"{lost} Start one, or name another address: in spanwise.toml [executor] address = 'HOST:6379', or "
                f"--cluster HOST:6379"
            ) from lost

    def _connect(self) -> Any:
        import ray

        with self._lock:
            if not self._connected:
                os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
                self._knock()
                try:
                    context = ray.init(
                        address=self._address, namespace=NAMESPACE, logging_level="ERROR", log_to_driver=False
                    )
                except Exception as error:  # Ray raises many kinds, some of them of gRPC
                    raise self._silent(error) from error
                self._dashboard = context.dashboard_url or ""
                self._connected = True
        return ray

    def _knock(self) -> None:
        """Finds out whether anything listens at the address: Ray itself would try for a quarter of an hour."""
        host, _, port = self._address.rpartition(":")
        if not host or not port.isdigit():
            return
        deadline = time.monotonic() + _KNOCK_S
        while True:
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise self._silent(error) from error
                time.sleep(0.5)
            else:
                return

    def _silent(self, error: Exception) -> AgentLost:
        return AgentLost(f"No Ray cluster answers at {self._address}: {str(error).strip()[:300]}.")


class RayReservation:
    """A placement group: Ray removes it when its driver ends, which is the controller."""

    def __init__(self, group: Any, mark: int, asked: Resources, dashboard: str) -> None:
        self._group = group
        self._mark = mark
        self._asked = asked
        self._dashboard = dashboard

    def launch(self, rank: int, number: int) -> RayLine:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        there = PlacementGroupSchedulingStrategy(placement_group=self._group, placement_group_bundle_index=rank)
        return _launch(self._mark, number, self._asked, there, self._dashboard)

    def release(self) -> None:
        import ray

        with contextlib.suppress(Exception):  # the cluster is gone, and the places with it
            ray.util.remove_placement_group(self._group)


def _launch(mark: int, number: int, asked: Resources, where: Any, dashboard: str) -> RayLine:
    import ray

    options: dict[str, Any] = {"num_cpus": 1 if asked.cpus is None else asked.cpus, "num_gpus": asked.gpus}
    if asked.memory_bytes is not None:
        options["memory"] = asked.memory_bytes
    if asked.image:
        options["runtime_env"] = {"image_uri": asked.image}
    actor = ray.remote(AgentHost).options(
        name=f"agent-{mark}-{number}",
        namespace=NAMESPACE,
        max_restarts=0,
        max_concurrency=4,
        scheduling_strategy=where,
        **options,
    )
    return RayLine(actor.remote(), dashboard)


class RayLine:
    """The line to an agent in an actor."""

    def __init__(self, actor: Any, dashboard: str) -> None:
        self._actor = actor
        self._dashboard = dashboard
        self._machine = self._node = self._agent = ""
        self._started = actor.place.remote()
        self._sent = 0
        self._received = 0

    @property
    def place(self) -> str:
        return f"{self._machine} (Ray's node {self._node[:12]})"

    @property
    def agent(self) -> str:
        return self._agent

    @property
    def page_url(self) -> str:
        return f"http://{self._dashboard}/#/actors/{self.agent}" if self._dashboard else ""

    def wait_started(self, timeout_s: float) -> bool:
        import ray

        done, _ = ray.wait([self._started], timeout=timeout_s)
        if done:
            self._machine, self._node, self._agent = self._get(lambda: self._started)
        return bool(done)

    def send(self, message: Command | Prepare) -> None:
        self._sent += 1
        self._get(lambda: self._actor.send.remote(self._sent, message))

    def receive(self, timeout_s: float) -> list[Report]:
        found: list[tuple[int, Report]] = self._get(lambda: self._actor.receive.remote(self._received, timeout_s))
        if found:
            self._received = found[-1][0]
        return [report for _, report in found]

    def end(self, started: Ready | None) -> list[str]:
        import ray

        with contextlib.suppress(Exception):
            ray.kill(self._actor)
        return [] if started is None else _kill_on([self._node], started.mark, started.who)

    def _get(self, call: Any) -> Any:
        """The answer of the actor; asks again while Ray is not sure whether it is gone."""
        import ray

        deadline = time.monotonic() + _OUT_OF_REACH_S
        while True:
            try:
                return ray.get(call(), timeout=_OUT_OF_REACH_S)
            except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError) as error:
                if time.monotonic() > deadline:
                    raise AgentLost(f"The agent on {self._node} does not answer.", "preempted") from error
                time.sleep(0.5)
            except ray.exceptions.RayActorError as error:
                raise self._lost(error) from error

    def _lost(self, error: Exception) -> AgentLost:
        import ray

        text = str(error)
        if "OutOfMemory" in text or "memory pressure" in text or "OOM" in text:
            return AgentLost("Ray has killed it, since its machine ran out of memory.", "memory")
        if getattr(error, "preempted", False) or "node has died" in text or "node died" in text.lower():
            return AgentLost(f"Its machine is gone (Ray's node {self._node[:12]}).", "preempted")
        alive = {node["NodeID"]: node["Alive"] for node in ray.nodes()}
        if self._node and not alive.get(self._node, False):
            return AgentLost(f"Its machine is gone (Ray's node {self._node[:12]}).", "preempted")
        return AgentLost(f"Its agent was killed: {text.strip().splitlines()[0] if text.strip() else error!r}", "died")


class AgentHost:
    """The actor: it starts an agent in a process of its own, and carries messages between it and the controller."""

    def __init__(self) -> None:
        import ray

        self._place = str(ray.get_runtime_context().get_node_id())
        self._name = str(ray.get_runtime_context().get_actor_id())
        mine, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        command = [sys.executable, "-m", "spanwise.orchestrator.agents.agent", str(theirs.fileno()), self._place]
        address = ray.util.get_node_ip_address()
        known = {} if is_loopback(address) else {ADDRESS: address}
        self._agent = subprocess.Popen(
            [*command, str(os.getpid())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            env={**known, **os.environ},
        )  # fmt: skip
        theirs.close()
        self._line = Connection(mine.detach())
        self._reports: list[tuple[int, Report]] = []
        self._changed = threading.Condition()
        self._done = 0
        self._closed = False
        self._sending = threading.Lock()
        threading.Thread(target=self._listen, name="agent", daemon=True).start()

    def place(self) -> tuple[str, str, str]:
        """The machine that it is on, and what Ray calls that and the actor."""
        return socket.gethostname(), self._place, self._name

    def send(self, number: int, message: Command | Prepare) -> None:
        """Passes a message on, once, however often it is sent."""
        with self._sending:
            if number > self._done:
                self._done = number
                with contextlib.suppress(OSError):
                    self._line.send(message)

    def receive(self, after: int, timeout_s: float) -> list[tuple[int, Report]]:
        """The reports after the one with this number, which has arrived; waits for at most `timeout_s`."""
        with self._sending, contextlib.suppress(OSError):
            self._line.send(Ping())
        with self._changed:
            self._reports = [each for each in self._reports if each[0] > after]
            self._changed.wait_for(lambda: self._reports or self._closed, timeout_s)
            if not self._reports and self._closed:
                raise RuntimeError(f"the agent has ended with status {self._agent.poll()}")
            return list(self._reports)

    def _listen(self) -> None:
        number = 0
        with contextlib.suppress(EOFError, OSError):
            while True:
                report = self._line.recv()
                number += 1
                with self._changed:
                    self._reports.append((number, report))
                    self._changed.notify_all()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent.wait(_PROOF_S)
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _kill_on(nodes: list[str], mark: int, *others: Identity) -> list[str]:
    """Kills the processes with this mark on these machines, and returns what is left."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = {node: NodeAffinitySchedulingStrategy(node_id=node, soft=False) for node in nodes}
    kill = ray.remote(_kill)
    tasks = [
        kill.options(num_cpus=0, scheduling_strategy=each, max_retries=2).remote(mark, *others)
        for each in there.values()
    ]
    left: list[str] = []
    for node, task in zip(nodes, tasks, strict=True):
        try:
            left += [f"{each} on Ray's node {node[:12]}" for each in ray.get(task, timeout=_PROOF_S)]
        except ray.exceptions.GetTimeoutError as error:
            raise NodeFailed(f"Ray's node {node[:12]} does not say whether processes are left there.") from error
        except ray.exceptions.RayError as error:
            if any(each["NodeID"] == node and each["Alive"] for each in ray.nodes()):
                raise NodeFailed(f"Ray's node {node[:12]} cannot be asked what is left there: {error}") from error
    return left


def _kill(mark: int, *others: Identity) -> list[str]:
    return [str(each) for each in process.kill(mark, *others)]
