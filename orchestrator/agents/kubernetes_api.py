"""Kubernetes' API as an engine uses it: objects as plain JSON, and the streams of a container.

The client's generated models are not used: each version of them refuses what a newer server says.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from spanwise.orchestrator.agents.pod_manifest import Manifest
from spanwise.orchestrator.errors import NodeFailed, SettingsError

_CALL_S: Final = 30.0
_OUT_OF_REACH_S: Final = 60.0
_PART_S: Final = 0.1
_PIECE_BYTES: Final = 64 << 10
_IN_CLUSTER_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_STDIN, _STDOUT, _STDERR = range(3)
_PROTOCOL: Final = "v4.channel.k8s.io"  # what kubelets speak themselves: the API server only passes bytes on


class KubernetesApi:
    """One cluster, as KUBECONFIG names it, or the one in which this process runs. Safe in threads."""

    def __init__(self) -> None:
        """Raises SettingsError if there is no configuration."""
        from kubernetes import client, config

        self._configuration = client.Configuration()
        self.namespace = "default"
        file = os.environ.get("KUBECONFIG", "~/.kube/config")  # the library reads it only once, when it is imported
        try:
            try:
                config.load_kube_config(file, client_configuration=self._configuration)
                _, active = config.list_kube_config_contexts(file)
                self.namespace = active["context"].get("namespace") or "default"
            except config.ConfigException:
                config.load_incluster_config(client_configuration=self._configuration)
                with contextlib.suppress(OSError):
                    self.namespace = _IN_CLUSTER_NAMESPACE.read_text(encoding="ascii").strip()
        except config.ConfigException as error:
            raise SettingsError(
                "The executor 'kubernetes' needs to know a cluster, and there is neither a file that KUBECONFIG "
                f"names, nor ~/.kube/config, nor is this a pod: {error}"
            ) from error
        self._configuration.retries = 0  # whoever calls tries again
        self._client = client.ApiClient(self._configuration)
        self._core = client.CoreV1Api(self._client)
        self._batch = client.BatchV1Api(self._client)

    @property
    def server(self) -> str:
        return str(self._configuration.host)

    def close(self) -> None:
        self._client.close()
        self._client.rest_client.pool_manager.clear()

    def identify(self, namespace: str) -> str:
        """What no other namespace of any cluster has. Raises NodeFailed."""
        return str(_json(lambda: self._core.read_namespace(namespace, **_RAW))["metadata"]["uid"])

    def create_job(self, namespace: str, manifest: Manifest) -> None:
        """Creates a Job, also if the server answers only after a while. Raises NodeFailed."""
        deadline = time.monotonic() + _OUT_OF_REACH_S
        while True:
            try:
                _json(lambda: self._batch.create_namespaced_job(namespace, manifest, **_RAW))
            except _Exists:
                return  # by the call before this one, of which the answer was lost
            except _Unanswered:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)
            else:
                return

    def delete_job(self, namespace: str, name: str) -> None:
        """Deletes a Job and its pods; nothing if there is none. Raises NodeFailed."""
        with contextlib.suppress(_Missing):
            _json(lambda: self._batch.delete_namespaced_job(name, namespace, propagation_policy="Background", **_RAW))

    def list_jobs(self, namespace: str, labels: str) -> list[Manifest]:
        """Raises NodeFailed."""
        return list(_json(lambda: self._batch.list_namespaced_job(namespace, label_selector=labels, **_RAW))["items"])

    def list_pods(self, namespace: str, labels: str) -> list[Manifest]:
        """Raises NodeFailed."""
        return list(_json(lambda: self._core.list_namespaced_pod(namespace, label_selector=labels, **_RAW))["items"])

    def list_events(self, namespace: str, kind: str, name: str) -> list[Manifest]:
        """What the cluster says about an object, oldest first. Raises NodeFailed."""
        fields = f"involvedObject.kind={kind},involvedObject.name={name}"
        return list(_json(lambda: self._core.list_namespaced_event(namespace, field_selector=fields, **_RAW))["items"])

    def read_log(self, namespace: str, pod: str, container: str, *, lines: int) -> str:
        """The last lines of what a container has printed. Raises NodeFailed."""
        return _call(
            lambda: self._core.read_namespaced_pod_log(
                pod, namespace, container=container, tail_lines=lines, limit_bytes=1 << 20, **_RAW
            )
        ).decode(errors="replace")

    def attach(self, namespace: str, pod: str, container: str) -> ContainerStreams:
        """The streams of a container that runs. Raises NodeFailed."""
        from kubernetes.stream.ws_client import create_websocket, get_websocket_url

        auth = self._configuration.auth_settings().get("BearerToken", {}).get("value")
        headers = {"sec-websocket-protocol": _PROTOCOL} | ({"authorization": auth} if auth else {})
        path = f"{self._configuration.host}/api/v1/namespaces/{namespace}/pods/{pod}/attach"
        asked = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
        try:
            return ContainerStreams(create_websocket(self._configuration, get_websocket_url(path, asked), headers))
        except Exception as error:  # the library raises many kinds
            raise NodeFailed(f"Kubernetes does not attach to the pod {pod}: {error}") from error


class ContainerStreams:
    """The standard streams of a container. One thread reads, any may write."""

    def __init__(self, websocket: Any) -> None:
        self._websocket = websocket
        self._lock = threading.Lock()  # for both ways: TLS connections of Python before 3.13 are not safe in threads
        self.stderr = b""  #: the end of what it has printed there
        with contextlib.suppress(AttributeError, OSError):  # Linux only
            # A peer that is silent for so long is gone; otherwise the kernel tries for a quarter of an hour.
            websocket.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
            websocket.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            websocket.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
            websocket.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)

    def write(self, text: bytes) -> None:
        """Raises OSError once they are closed."""
        try:
            for begin in range(0, len(text), _PIECE_BYTES):
                with self._lock:
                    self._websocket.settimeout(_CALL_S)
                    self._websocket.send_binary(bytes([_STDIN]) + text[begin : begin + _PIECE_BYTES])
        except Exception as error:
            raise BrokenPipeError(str(error)) from error

    def read(self, timeout_s: float) -> bytes:
        """What the container has printed; waits for at most `timeout_s`. Raises EOFError once they are closed."""
        from websocket import ABNF

        found = b""
        try:
            while self._is_readable(0.0 if found else timeout_s):
                code, frame = self._receive()
                if frame is None:
                    return found
                if code == ABNF.OPCODE_CLOSE:
                    break
                channel, text = frame.data[:1], frame.data[1:]
                if channel == bytes([_STDOUT]):
                    found += text
                elif channel == bytes([_STDERR]):
                    self.stderr = (self.stderr + text)[-4096:]
            else:
                return found
        except Exception as error:
            if not found:
                raise EOFError(str(error)) from error
        if not found:
            raise EOFError
        return found

    def close(self) -> None:
        with contextlib.suppress(Exception), self._lock:
            self._websocket.shutdown()

    def _receive(self) -> tuple[int, Any]:
        """The next frame; None if what has come is no whole one yet, of which the library keeps the beginning."""
        from websocket import WebSocketTimeoutException

        with self._lock:
            self._websocket.settimeout(_PART_S)
            try:
                return self._websocket.recv_data_frame(True)  # type: ignore[no-any-return]
            except WebSocketTimeoutException:
                return 0, None

    def _is_readable(self, timeout_s: float) -> bool:
        pending = getattr(self._websocket.sock, "pending", None)  # TLS decrypts more than was asked for
        if pending is not None and pending():
            return True
        poll = select.poll()
        poll.register(self._websocket.sock, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))


class _Missing(NodeFailed):
    """There is no such object."""


class _Exists(NodeFailed):
    """There is one of this name."""


class _Unanswered(NodeFailed):
    """The server is not there, or has too much to do."""


_RAW: Final[dict[str, Any]] = {"_preload_content": False, "_request_timeout": _CALL_S}


def _json(call: Callable[[], Any]) -> Manifest:
    found: Manifest = json.loads(_call(call))
    return found


def _call(call: Callable[[], Any]) -> bytes:
    """What the server answers. Raises NodeFailed."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        answer = call()
        status, body = answer.status, bytes(answer.data)
    except ApiException as error:
        status, body = error.status or 0, str(error.body or error.reason).encode()
    except (HTTPError, OSError) as error:
        raise _Unanswered(f"Kubernetes does not answer: {error}") from error
    if status < 400:  # noqa: PLR2004  of HTTP
        return body
    said = body.decode(errors="replace")
    with contextlib.suppress(ValueError):
        said = json.loads(said).get("message", said)
    kinds = {404: _Missing, 409: _Exists, 429: _Unanswered, 500: _Unanswered, 503: _Unanswered, 504: _Unanswered}
    raise kinds.get(status, NodeFailed)(f"Kubernetes answers {status}: {said.strip()}")
