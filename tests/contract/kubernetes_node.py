"""Machines of Kubernetes on this one: the real kubelet and kube-proxy, with containerd, runc and a network of their own.

Each machine is a network namespace, behind a bridge of its cluster; its pods have addresses that this machine reaches as
well. Needs root, Debian's containerd, runc, containernetworking-plugins, iptables and conntrack, and the program `node`
that tests/contract/kubernetes.sh builds.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.contract.node_images import PAUSE, copy_images
from tests.servers import eventually

GROUPS = Path("/sys/fs/cgroup")
# The kernel's settings that a kubelet wants; it sees these instead of changing them for this machine.
TUNABLES = {
    "vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000,
}  # fmt: skip
CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "{folder}/run"
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
"""


def run(*command):
    """Runs a command, and shows what it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


class Network:
    """The network of a cluster, 10.N.0.0/16: this machine is 10.N.0.1, a node 10.N.0.2 and so on, their pods 10.N.2.0/24."""

    def __init__(self):
        taken = run("ip", "route")
        self.number = next(n for n in range(64, 250) if f"10.{n}." not in taken)
        self.bridge = f"spanwise{self.number}"
        self.address = f"10.{self.number}.0.1"
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self.address}/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        Path(f"/proc/sys/net/ipv4/conf/{self.bridge}/forwarding").write_text("1")  # between nodes, and no further

    def join(self, name, index):
        """Makes a network namespace with the address of a node; both are returned."""
        namespace, address = f"{self.bridge}-{name}", f"10.{self.number}.0.{index}"
        veth = f"s{self.number}n{index}"
        run("ip", "netns", "add", namespace)
        run("ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        run("ip", "link", "set", veth, "master", self.bridge, "up")
        for command in (
            ("link", "set", "lo", "up"), ("link", "set", "eth0", "up"), ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("route", "add", "default", "via", self.address),
        ):  # fmt: skip
            run("ip", "-n", namespace, *command)
        run("ip", "netns", "exec", namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        run("ip", "route", "add", f"10.{self.number}.{index}.0/24", "via", address)
        return namespace, address

    def close(self):
        subprocess.run(["ip", "link", "del", self.bridge], check=False)


class Node:
    """A machine: containerd, kubelet and kube-proxy in namespaces of their own. Its cgroups are below `name` of its network."""

    def __init__(self, cluster, name, index, labels):
        self.name, self._index, self._cluster = name, index, cluster
        self.folder = cluster.folder / name
        self.folder.mkdir()
        self._group = f"{cluster.network.bridge}-{name}"
        self._namespace, self.address = cluster.network.join(name, index)
        self._processes = {}
        self._program = Path(os.environ["SPANWISE_TEST_KUBERNETES"]).with_name("node")
        try:
            self._configure()
            self._start(labels)
        except BaseException:
            self.kill()
            raise

    def _configure(self):
        number = self._cluster.network.number
        for each in ("cni", "opt", "log", "sys", "kubelet"):
            (self.folder / each).mkdir()
        (self.folder / "containerd.toml").write_text(CONTAINERD.format(folder=self.folder, pause=PAUSE))
        bridge = {
            "type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True,
            "ipam": {
                "type": "host-local", "dataDir": f"{self.folder}/addresses", "routes": [{"dst": "0.0.0.0/0"}],
                "ranges": [[{"subnet": f"10.{number}.{self._index}.0/24"}]],
            },
        }  # fmt: skip
        network = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
        }
        (self.folder / "cni" / "pods.conflist").write_text(json.dumps(network))
        certificate, key = self._cluster.authority.certify(self.folder, self.name, self.address)
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "address": self.address,
            "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{self._group}", "failSwapOn": False, "failCgroupV1": False,
            "oomScoreAdj": 0, "featureGates": {"KubeletInUserNamespace": True}, "readOnlyPort": 0,
            "containerRuntimeEndpoint": f"unix://{self.folder}/containerd.sock",
            "tlsCertFile": str(certificate), "tlsPrivateKeyFile": str(key),
            "authentication": {"x509": {"clientCAFile": str(self._cluster.authority.file)}, "anonymous": {"enabled": False}},
            "imageGCHighThresholdPercent": 100, "evictionHard": {"memory.available": "200Mi"},
            "shutdownGracePeriod": "0s", "syncFrequency": "10s",
        }  # fmt: skip
        (self.folder / "kubelet.json").write_text(json.dumps(kubelet))
        for tunable, value in TUNABLES.items():
            file = self.folder / "sys" / tunable.replace("/", ".")
            file.write_text(f"{value}\n")

    def _start(self, labels):
        copy_images(self.folder / "containerd")
        for controller in self._controllers():
            (controller / self._group / "runtime").mkdir(parents=True)
        for controller in GROUPS.glob("cpuset"):  # empty in new groups, which then take no process
            for group in (controller / self._group, controller / self._group / "runtime"):
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (group / file).write_text((controller / file).read_text())
        binds = "".join(
            f"mount --bind {self.folder}/sys/{each.replace('/', '.')} /proc/sys/{each} && " for each in TUNABLES
        )
        self._run(
            "containerd", "nsenter", f"--net=/run/netns/{self._namespace}", "unshare", "--mount", "sh", "-c",
            f"mount --make-rshared / && mount --bind {self.folder}/log /var/log && {binds} exec "
            f"containerd --config={self.folder}/containerd.toml",
        )  # fmt: skip
        eventually(lambda: self._ctr("version").returncode == 0, 60.0, 0.2, "containerd does not start")
        self._run_inside(
            "kubelet", str(self._program), "kubelet", f"--config={self.folder}/kubelet.json",
            f"--root-dir={self.folder}/kubelet", f"--kubeconfig={self._cluster.kubeconfig}",
            f"--hostname-override={self.name}", f"--node-ip={self.address}", f"--cert-dir={self.folder}/kubelet",
            f"--node-labels={','.join(labels)}",
        )  # fmt: skip
        self._run_inside(
            "proxy", str(self._program), "kube-proxy", f"--kubeconfig={self._cluster.kubeconfig}", "--proxy-mode=iptables",
            f"--hostname-override={self.name}", f"--cluster-cidr=10.{self._cluster.network.number}.0.0/16",
            "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
        )  # fmt: skip

    def _ctr(self, *arguments):
        command = ["ctr", f"--address={self.folder}/containerd.sock", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def _run(self, name, *command):
        inside = " && ".join(f"echo $$ > {each}/{self._group}/runtime/cgroup.procs" for each in self._controllers())
        with (self._cluster.folder / f"{self.name}-{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                ["sh", "-c", f'{inside} && exec "$@"', "sh", *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True, cwd="/",
            )  # fmt: skip

    def _run_inside(self, name, *command):
        """Runs a program in the namespaces of containerd."""
        self._run(name, "nsenter", f"--target={self._processes['containerd'].pid}", "--mount", "--net", *command)

    @staticmethod
    def _controllers():
        """The roots of the hierarchies of cgroups."""
        if (GROUPS / "cgroup.controllers").exists():
            return [GROUPS]
        return [each for each in GROUPS.iterdir() if (each / "cgroup.procs").exists() and each.name != "unified"]

    def kill(self):
        """All its processes are gone at once; then its files."""
        deadline = time.monotonic() + 60
        while pids := self.pids():
            assert time.monotonic() < deadline, pids
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for each in self._processes.values():
                each.poll()
            time.sleep(0.05)
        for each in self._processes.values():
            each.wait()
        for controller in {*self._controllers(), GROUPS / "unified"}:  # where runc makes groups too, if it is there
            for folder, _, _ in os.walk(controller / self._group, topdown=False):
                eventually(lambda folder=folder: _removed(folder), 20.0, 0.1, f"{folder} stays")
        subprocess.run(["ip", "netns", "del", self._namespace], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def pids(self, *words):
        """Its processes, or those whose command line has all these words."""
        found = set()
        for controller in self._controllers():
            for folder, _, _ in os.walk(controller / self._group):  # which passes over what goes meanwhile
                with contextlib.suppress(OSError):
                    found.update(int(line) for line in Path(folder, "cgroup.procs").read_text().split())
        return {pid for pid in found if {*words} <= {*_command(pid)}}


def _removed(folder):
    try:
        Path(folder).rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _command(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return []
