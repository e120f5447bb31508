"""Small Kubernetes clusters on this machine for tests: the real etcd, API server and controllers, and machines.

SPANWISE_TEST_KUBERNETES is the program that tests/contract/kubernetes.sh builds. Machines are stand-ins, which run pods as
processes without images, or with SPANWISE_TEST_KUBERNETES_NODES real ones (kubernetes_node.py). Needs root, for cgroups.
"""

import contextlib
import datetime as dt
import functools
import ipaddress
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import requests
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from tests.servers import end_process, eventually, free_ports

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
CONTROLLERS = (
    "garbage-collector-controller,job-controller,namespace-controller,pod-garbage-collector-controller,"
    "serviceaccount-controller,ttl-after-finished-controller"
)
REAL = "SPANWISE_TEST_KUBERNETES_NODES" in os.environ
TEMPLATE = """\
kind: Pod
spec:
  hostPID: {host_pid}  # the tests look for processes by their ids
  containers:
    - name: agent
      image: none
      command: [{python}]
      env:
        - {{name: HOME, value: "{home}"}}
"""

# Pods of real machines see the files of this one at the same places, as on a volume that all machines mount.
REAL_TEMPLATE = """\
kind: Pod
spec:
  hostPID: {host_pid}
  containers:
    - name: agent
      image: spanwise.test/rides:1
      imagePullPolicy: IfNotPresent
      volumeMounts:
        - {{name: files, mountPath: /tmp}}
  volumes:
    - name: files
      hostPath: {{path: /tmp}}
"""

_until = functools.partial(eventually, within_s=180.0, every_s=0.2, otherwise="Kubernetes did not start")


class KubernetesCluster:
    """A control plane, and machines of these names; KUBECONFIG is the file by which clients find it."""

    def __init__(self, *names):
        self.folder = Path(tempfile.mkdtemp(prefix="kubernetes-", dir="/tmp"))
        self._running = {}
        self.nodes = {}
        self._numbers = itertools.count(2)
        self._token = secrets.token_hex(16)
        self.kubeconfig = self.folder / "kubeconfig"
        self.network = None
        try:
            self._start()
            for name in names:
                self.add(name)
        except BaseException:
            self.close()
            raise

    def _start(self):
        self.authority = Authority(self.folder)
        etcd, peers, port, manager, scheduler = free_ports(5)
        host = "127.0.0.1"
        if REAL:
            from tests.contract.kubernetes_node import Network

            self.network = Network()
            host = self.network.address
        self.authority.certify(self.folder, "server", host, "127.0.0.1", "localhost", "10.0.0.1")
        self.authority.certify(self.folder, "client")
        self.address = f"https://{host}:{port}"
        database, folder = f"http://127.0.0.1:{etcd}", self.folder
        (folder / "tokens").write_text(f'{self._token},admin,admin,"system:masters"\n')
        self.write_kubeconfig(self.kubeconfig, self._token)
        self._run(
            "etcd", "etcd", f"--data-dir={folder}/etcd", f"--listen-client-urls={database}",
            f"--advertise-client-urls={database}", f"--listen-peer-urls=http://127.0.0.1:{peers}",
            "--log-level=error",
        )  # fmt: skip
        program = os.environ["SPANWISE_TEST_KUBERNETES"]
        self._run(
            "apiserver", program, "kube-apiserver", f"--etcd-servers={database}", f"--bind-address={host}",
            f"--secure-port={port}", f"--tls-cert-file={folder}/server.crt", f"--tls-private-key-file={folder}/server.key",
            f"--kubelet-certificate-authority={folder}/ca.crt", f"--kubelet-client-certificate={folder}/client.crt",
            f"--kubelet-client-key={folder}/client.key", "--kubelet-preferred-address-types=InternalIP",
            f"--token-auth-file={folder}/tokens",
            "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
            f"--endpoint-reconciler-type={'lease' if REAL else 'none'}",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={folder}/server.key",
            f"--service-account-signing-key-file={folder}/server.key", "--profiling=false",
        )  # fmt: skip
        _until(self._is_ready)
        self._run(
            "controllers", program, "kube-controller-manager", f"--kubeconfig={self.kubeconfig}",
            f"--controllers={'*' if REAL else CONTROLLERS}", "--leader-elect=false", "--bind-address=127.0.0.1",
            f"--secure-port={manager}", f"--cert-dir={folder}/controllers", f"--root-ca-file={folder}/ca.crt",
        )  # fmt: skip
        if REAL:
            self._run(
                "scheduler", str(Path(program).with_name("node")), "kube-scheduler", f"--kubeconfig={self.kubeconfig}",
                "--leader-elect=false", "--bind-address=127.0.0.1", f"--secure-port={scheduler}",
            )  # fmt: skip
        _until(lambda: self.call("GET", "/api/v1/namespaces/default/serviceaccounts/default").get("kind") != "Status")

    def _is_ready(self):
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{self.address}/readyz", verify=self.authority.file, timeout=5).ok
        return False

    def write_kubeconfig(self, file, token, namespace="default"):
        """A configuration of a client with this token."""
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "test", "cluster": {"server": self.address, "certificate-authority": f"{self.folder}/ca.crt"}}
            ],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user", "namespace": namespace}}],
            "current-context": "test",
        }
        file.write_text(json.dumps(configuration))

    def apply(self, manifests, namespace="default"):
        """Creates what manifests say."""
        for manifest in manifests:
            answer = self.call("POST", path_of(manifest, namespace), manifest)
            assert answer["kind"] == manifest["kind"] or answer["reason"] == "AlreadyExists", answer

    def limited_kubeconfig(self, namespace="default"):
        """The configuration of a controller that may do what docs/deploy/kubernetes-nodes.yaml says."""
        self.apply(yaml.safe_load_all((DEPLOY / "kubernetes-nodes.yaml").read_text()), namespace)
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/spanwise/token"
        token = self.call("POST", account, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        file = self.folder / f"limited-{namespace}"
        self.write_kubeconfig(file, token, namespace)
        return file

    def write_template(self, host_pid=True):
        """A template whose pods run in this Python, without an image."""
        file = self.folder / f"pod-{host_pid}.yaml"
        template = REAL_TEMPLATE if REAL else TEMPLATE
        file.write_text(template.format(host_pid=str(host_pid).lower(), python=sys.executable, home=Path.home()))
        return file

    def add(self, name, cpus=4, *labels):
        """Starts a machine; a real one has the processors of this machine."""
        if REAL:
            from tests.contract.kubernetes_node import Node

            self.nodes[name] = Node(self, name, next(self._numbers), labels)
            _until(lambda: self.is_ready(name))
            return
        self._run(
            name, sys.executable, "-m", "tests.contract.kubelet", self.address, self._token, str(self.folder), name,
            str(cpus), *labels,
        )  # fmt: skip
        _until(lambda: "capacity" in self.call("GET", f"/api/v1/nodes/{name}").get("status", {}))

    def is_ready(self, name):
        """Whether a machine takes pods."""
        found = self.call("GET", f"/api/v1/nodes/{name}")
        conditions = found["status"].get("conditions", []) if found["kind"] == "Node" else []
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def kill(self, name):
        """What becomes of a machine that is taken away: all its processes are gone at once, and then its object."""
        if REAL:
            self.nodes.pop(name).kill()
            self.call("DELETE", f"/api/v1/nodes/{name}")
            return
        machine = self._running.pop(name)
        pods = self.call("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}")["items"]
        machine.kill()
        machine.wait()
        for pod in pods:
            end_group(pod["metadata"]["uid"])
        self.call("DELETE", f"/api/v1/nodes/{name}")

    def call(self, method, path, body=None):
        """What the API server answers, also if it is an error."""
        answer = requests.request(
            method, self.address + path, json=body, verify=self.authority.file, timeout=30,
            headers={"Authorization": f"Bearer {self._token}"},
        )  # fmt: skip
        return answer.json()

    def stop(self, name):
        """Kills a server; `restart` starts it again."""
        running = self._running[name]
        running.kill()
        running.wait()

    def restart(self, name):
        """Starts a server that was stopped."""
        self._run(name, *self._running[name].args)
        _until(self._is_ready)

    def close(self):
        with contextlib.ExitStack() as stack:  # whatever fails, the rest goes too
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            if self.network is not None:
                stack.callback(self.network.close)
            for name in self._running:
                stack.callback(end_process, self._running[name])
            for node in self.nodes.values():
                stack.callback(node.kill)
        self._running.clear()

    def _run(self, name, *command):
        with (self.folder / f"{name}.out").open("ab") as out:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                cwd=Path(__file__).parents[2],
            )  # fmt: skip


def path_of(manifest, namespace):
    """Where objects of its kind are."""
    version, kind = manifest["apiVersion"], manifest["kind"].lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/{namespace}/{plural}"


def end_group(uid):
    """Ends all that runs in the cgroup of a pod."""
    for folder in Path("/sys/fs/cgroup").glob(f"**/spanwise-test-{uid}"):
        while pids := (folder / "cgroup.procs").read_text().split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.02)
        folder.rmdir()


class Authority:
    """Certifies servers, and clients that are administrators."""

    def __init__(self, folder):
        self.file = folder / "ca.crt"
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        usage = {each: each == "key_cert_sign" for each in (
            "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
            "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
        )}  # fmt: skip
        extensions = (
            x509.BasicConstraints(ca=True, path_length=None), x509.KeyUsage(**usage),
            x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()),
        )  # fmt: skip
        self.file.write_bytes(self._sign(_named("authority"), self._key.public_key(), *extensions))

    def certify(self, folder, name, *addresses):
        """The files of a certificate for these addresses and names, and of its key."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        names = []
        for each in addresses:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(each)))
            except ValueError:
                names.append(x509.DNSName(each))
        extensions = [x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())]
        extensions += [x509.SubjectAlternativeName(names)] * bool(names)
        certificate, private = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self._sign(_named(name, "system:masters"), key.public_key(), *extensions))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            )
        )
        return certificate, private

    def _sign(self, subject, public, *extensions):
        today = dt.datetime.now(dt.UTC)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(_named("authority")).public_key(public)
        made = made.serial_number(x509.random_serial_number()).not_valid_before(today - dt.timedelta(days=1))
        made = made.not_valid_after(today + dt.timedelta(days=7))
        for extension in extensions:
            made = made.add_extension(extension, critical=False)
        return made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _named(name, group=None):
    attributes = {NameOID.COMMON_NAME: name} | ({NameOID.ORGANIZATION_NAME: group} if group else {})
    return x509.Name([x509.NameAttribute(what, value) for what, value in attributes.items()])
