"""A stand-in for a kubelet and the scheduler: `python -m tests.contract.kubelet SERVER TOKEN FOLDER NAME CPUS`.

It takes the pods that fit on it, runs their container `agent` as processes of this machine, without images, in a cgroup
of their own, and says what becomes of them, as a kubelet does. FOLDER has ca.crt, server.crt and server.key.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import select
import shlex
import signal
import ssl
import struct
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import requests

GROUPS = Path("/sys/fs/cgroup")
VERSION_2 = (GROUPS / "cgroup.controllers").exists()
CLOSE, PING, PONG, BINARY = 8, 9, 10, 2
STDIN, STDOUT, STDERR, ERROR = range(4)


class Server:
    """The API server."""

    def __init__(self, address, token, authority):
        self._address = address
        self._session = requests.Session()
        self._session.headers["Authorization"] = f"Bearer {token}"
        self._session.verify = authority
        self._session.trust_env = False

    def call(self, method, path, body=None, *, kind="application/json", **query):
        """What it answers; None if there is no such object, or another one."""
        answer = self._session.request(
            method, self._address + path, params=query, headers={"Content-Type": kind},
            data=None if body is None else json.dumps(body), timeout=30,
        )  # fmt: skip
        if answer.status_code in (404, 409):
            return None
        assert answer.ok, (method, path, answer.text)
        return answer.json()

    def patch(self, path, body):
        return self.call("PATCH", path, body, kind="application/strategic-merge-patch+json")


def now():
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Container:
    """The processes of a container, in a cgroup of their own."""

    def __init__(self, uid, spec, environment, host_pid, empty=()):
        self.output = b""  # what `kubectl logs` shows
        self.listener = None  # the one who is attached
        self.lock = threading.Lock()
        limit = (spec.get("resources") or {}).get("limits", {}).get("memory")
        parent = GROUPS if VERSION_2 else GROUPS / "memory"
        self.group = parent / f"spanwise-test-{uid}"
        self.group.mkdir()
        if limit:
            self._limit(int(limit))
        command = [*spec["command"], *spec["args"]]
        hidden = [shlex.quote(each["mountPath"]) for each in spec.get("volumeMounts", []) if each["name"] in empty]
        mounts = "".join(f"mkdir -p {place} && mount -t tmpfs tmpfs {place} && " for place in hidden)
        apart = [] if host_pid else ["--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["unshare", "--mount", *apart, "sh", "-c", f'{mounts}exec "$@"', "sh", *command]
        self.process = subprocess.Popen(
            ["sh", "-c", f'echo $$ > {self.group}/cgroup.procs && exec "$@"', "sh", *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
            start_new_session=True, cwd="/",
        )  # fmt: skip
        self.host_pid = host_pid
        self.readers = [
            threading.Thread(target=self._read, args=(channel, stream), daemon=True)
            for channel, stream in ((STDOUT, self.process.stdout), (STDERR, self.process.stderr))
        ]
        for reader in self.readers:
            reader.start()

    def _limit(self, memory):
        names = ("memory.max", "memory.swap.max") if VERSION_2 else ("memory.limit_in_bytes",)
        if VERSION_2:
            with contextlib.suppress(OSError):
                (GROUPS / "cgroup.subtree_control").write_text("+memory")
            (self.group / "memory.oom.group").write_text("1")
        for name, value in zip(names, (memory, 0), strict=False):
            with contextlib.suppress(FileNotFoundError):
                (self.group / name).write_text(str(value))

    def _read(self, channel, stream):
        while text := os.read(stream.fileno(), 32 << 10):
            with self.lock:
                self.output += text
                if self.listener is not None:
                    self.listener.send(channel, text)

    def pids(self):
        return [int(line) for line in (self.group / "cgroup.procs").read_text().split()]

    def write(self, text):
        with contextlib.suppress(OSError):
            self.process.stdin.write(text)
            self.process.stdin.flush()

    def close_input(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def terminate(self):
        if self.host_pid:
            self.process.terminate()
            return
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGTERM)

    def kill(self):
        """Kills what is left of it, and waits for it."""
        while pids := self.pids():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()
            time.sleep(0.02)
        self.process.wait()

    def was_out_of_memory(self):
        file = self.group / ("memory.events" if VERSION_2 else "memory.oom_control")
        found = re.search(r"^oom_kill (\d+)", file.read_text(), re.MULTILINE)
        return bool(found and int(found[1]))

    def end(self):
        """Its exit status and why, once it has ended by itself; nothing of it is left then."""
        code = self.process.poll()
        if code is None and self.was_out_of_memory():
            self.kill()  # all of it, as kubelets ask of the kernel
            code = -signal.SIGKILL
        if code is None:
            return None
        self.kill()
        for reader in self.readers:
            reader.join(5)
        with self.lock:
            if self.listener is not None:
                self.listener.finish_attach()
        code = 128 - code if code < 0 else code
        reason = "OOMKilled" if code == 137 and self.was_out_of_memory() else "Error" if code else "Completed"
        with contextlib.suppress(OSError):
            self.group.rmdir()
        return code, reason


class Kubelet:
    """One machine."""

    def __init__(self, server, name, cpus, labels):
        self._server = server
        self._name = name
        self._labels = labels
        self._free = {"cpu": cpus, "nvidia.com/gpu": 1 if "gpu" in labels else 0}
        self.containers = {}  # by namespace and pod
        self._pods = {}
        self._kills = {}
        self._over = set()
        self.ended = {}  # the same of those that have ended: their logs stay

    def register(self, port):
        self._server.call("POST", "/api/v1/nodes", {"metadata": {"name": self._name, "labels": self._labels}})
        self._server.patch(
            f"/api/v1/nodes/{self._name}/status",
            {
                "status": {
                    "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                    "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
                    "capacity": {"cpu": str(self._free["cpu"]), "memory": "8Gi", "pods": "100"},
                    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                }
            },
        )

    def serve(self):
        while True:
            with contextlib.suppress(requests.ConnectionError):  # the API server may be down for a while
                self._bind()
                self._look()
            time.sleep(0.1)

    def _bind(self):
        pending = self._server.call("GET", "/api/v1/pods", fieldSelector="spec.nodeName=,status.phase=Pending")
        for pod in pending["items"]:
            meta, spec = pod["metadata"], pod["spec"]
            if meta.get("deletionTimestamp") or spec.get("schedulingGates"):
                continue
            if not (spec.get("nodeSelector") or {}).items() <= self._labels.items() or not self._has_room(spec):
                continue
            self._server.call(
                "POST", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding",
                {"metadata": {"name": meta["name"]}, "target": {"kind": "Node", "name": self._name}},
            )  # fmt: skip

    def _has_room(self, spec):
        used = [spec, *(self._pods[key]["spec"] for key in self.containers if key in self._pods)]
        return all(sum(asked(each, what) for each in used) <= free for what, free in self._free.items())

    def _look(self):
        mine = self._server.call("GET", "/api/v1/pods", fieldSelector=f"spec.nodeName={self._name}")["items"]
        self._pods = {(p["metadata"]["namespace"], p["metadata"]["name"]): p for p in mine}
        for key, pod in self._pods.items():
            if key not in self.containers and pod["metadata"]["uid"] not in self._over:
                self._start(key, pod)
            elif key in self.containers:
                self._follow(key, pod)
            elif pod["metadata"].get("deletionTimestamp"):
                self._forget(key, pod)
        for key in self.containers.keys() - self._pods.keys():  # deleted by force: it has to go all the same
            container = self.containers.pop(key)
            container.kill()
            container.end()

    def _start(self, key, pod):
        spec = next(each for each in pod["spec"]["containers"] if each["name"] == "agent")
        if spec["image"].startswith("missing/"):
            self._say_waiting(key, spec, "ImagePullBackOff", f'Back-off pulling image "{spec["image"]}"')
            return
        environment = {"PATH": os.environ["PATH"], "HOSTNAME": key[1], "LANG": "C.UTF-8"}
        for source in spec.get("envFrom", []):
            name = source["secretRef"]["name"]
            secret = self._server.call("GET", f"/api/v1/namespaces/{key[0]}/secrets/{name}")
            if secret is None:
                self._say_waiting(key, spec, "CreateContainerConfigError", f'secret "{name}" not found')
                return
            environment |= {k: base64.b64decode(v).decode() for k, v in secret["data"].items()}
        environment |= {each["name"]: each.get("value", "") for each in spec.get("env", [])}
        empty = {each["name"] for each in pod["spec"].get("volumes", []) if "emptyDir" in each}
        container = Container(pod["metadata"]["uid"], spec, environment, pod["spec"].get("hostPID", False), empty)
        self.containers[key] = container
        self._say(key, spec, "Running", {"running": {"startedAt": now()}})

    def _follow(self, key, pod):
        container = self.containers[key]
        if (ended := container.end()) is not None:
            code, reason = ended
            spec = next(each for each in pod["spec"]["containers"] if each["name"] == "agent")
            phase = "Failed" if code else "Succeeded"
            self._say(key, spec, phase, {"terminated": {"exitCode": code, "reason": reason, "finishedAt": now()}})
            self._over.add(pod["metadata"]["uid"])
            del self.containers[key]
            self.ended[key] = container
        elif pod["metadata"].get("deletionTimestamp"):
            grace = pod["metadata"].get("deletionGracePeriodSeconds", 0)
            if key not in self._kills:
                self._kills[key] = time.monotonic() + grace
                container.terminate()
            elif time.monotonic() > self._kills[key]:
                container.kill()

    def _forget(self, key, pod):
        """Deletes the object of a pod that was to go, and has."""
        self._kills.pop(key, None)
        uid = pod["metadata"]["uid"]
        self._over.add(uid)
        self._server.call(
            "DELETE", f"/api/v1/namespaces/{key[0]}/pods/{key[1]}",
            {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}},
        )  # fmt: skip

    def _say_waiting(self, key, spec, reason, message):
        self._say(key, spec, "Pending", {"waiting": {"reason": reason, "message": message}})
        if self._pods[key]["metadata"].get("deletionTimestamp"):
            self._forget(key, self._pods[key])

    def _say(self, key, spec, phase, state):
        status = {
            "phase": phase,
            "containerStatuses": [
                {
                    "name": spec["name"], "image": spec["image"], "imageID": "", "restartCount": 0, "state": state,
                    "ready": phase == "Running",
                }
            ],
        }  # fmt: skip
        self._server.patch(f"/api/v1/namespaces/{key[0]}/pods/{key[1]}/status", {"status": status})


def asked(spec, what):
    """How much of something a pod asks for."""
    total = 0.0
    for container in spec["containers"]:
        resources = container.get("resources") or {}
        text = str({**resources.get("limits", {}), **resources.get("requests", {})}.get(what, 0))
        total += float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
    return total


class Handler(BaseHTTPRequestHandler):
    """What the API server asks of a kubelet: logs, and the streams of a container."""

    protocol_version = "HTTP/1.1"
    kubelet: Kubelet

    def do_GET(self):
        place = urlparse(self.path)
        _, what, namespace, pod, _ = place.path.split("/")
        key = (namespace, pod)
        container = self.kubelet.containers.get(key) or self.kubelet.ended.get(key)
        if container is None:
            self.send_error(404)
        elif what == "containerLogs":
            lines = container.output.splitlines(keepends=True)
            tail = int(parse_qs(place.query).get("tailLines", [len(lines)])[0])
            body = b"".join(lines[len(lines) - min(tail, len(lines)) :])
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        elif what == "attach":
            self._attach(container)

    def _attach(self, container):
        accepted = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode())
        self.send_response(101)
        for name, value in (
            ("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Protocol", "v4.channel.k8s.io"),
            ("Sec-WebSocket-Accept", base64.b64encode(accepted.digest()).decode()),
        ):  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        self._lock = threading.Lock()  # for both ways: TLS connections of Python before 3.13 are not safe in threads
        self._read = b""
        with container.lock:
            container.listener = self
        try:
            while (text := self._receive()) is not None:
                if text[:1] == bytes([STDIN]):
                    container.write(text[1:])
        except (OSError, EOFError):
            pass
        finally:
            with container.lock:
                container.listener = None
            container.close_input()  # stdinOnce

    def _receive(self):
        """The data of the next frame; None once the other end says that it closes."""
        while True:
            first, second = self._exactly(2)
            size = second & 127
            if size > 125:
                size = struct.unpack(">H" if size == 126 else ">Q", self._exactly(2 if size == 126 else 8))[0]
            mask = self._exactly(4) if second & 128 else b"\0\0\0\0"
            data = self._exactly(size)
            whole = int.from_bytes(data, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")
            data, code = whole.to_bytes(size, "big"), first & 15
            if code == CLOSE:
                return None
            if code == PING:
                self._frame(PONG, data)
            elif code != PONG:
                return data

    def _exactly(self, size):
        while len(self._read) < size:
            if not self.connection.pending():
                select.select([self.connection], [], [])
            with self._lock, contextlib.suppress(TimeoutError):  # TLS has messages of its own
                self.connection.settimeout(0.1)
                read = self.connection.recv(1 << 16)
                if not read:
                    raise EOFError
                self._read += read
        data, self._read = self._read[:size], self._read[size:]
        return data

    def send(self, channel, text):
        with contextlib.suppress(OSError):
            self._frame(BINARY, bytes([channel]) + text)

    def finish_attach(self):
        with contextlib.suppress(OSError):
            self._frame(BINARY, bytes([ERROR]) + b'{"status":"Success"}')
            self._frame(CLOSE, struct.pack(">H", 1000))

    def _frame(self, code, data):
        size, first = len(data), 128 | code
        if size < 126:
            head = bytes([first, size])
        else:
            head = struct.pack(">BBH", first, 126, size) if size < 1 << 16 else struct.pack(">BBQ", first, 127, size)
        with self._lock:
            self.connection.settimeout(30)
            self.connection.sendall(head + data)

    def log_message(self, *_):
        pass


def main(server, token, folder, name, cpus, *labels):
    folder = Path(folder)
    kubelet = Kubelet(
        Server(server, token, str(folder / "ca.crt")), name, float(cpus), dict(each.split("=") for each in labels)
    )
    Handler.kubelet = kubelet
    endpoint = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    endpoint.socket = context.wrap_socket(endpoint.socket, server_side=True)
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    kubelet.register(endpoint.server_address[1])
    try:
        kubelet.serve()
    finally:
        for container in kubelet.containers.values():
            container.kill()
            container.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
