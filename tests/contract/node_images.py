"""Images of containers for machines of Kubernetes in tests, built by podman from Debian's packages and this tree.

No registry is asked: what the documentation takes from one, `python:3.11-slim`, is Debian's Python, with what spanwise
depends on in it already, so that an image of a changed tree is built within a minute.
"""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.servers import end_process, eventually

TREE = Path(__file__).parents[2]
BASE = "docker.io/library/python:3.11-slim"
DEBIAN = "spanwise.test/debian:1"
PAUSE = "spanwise.test/pause:1"
IMAGE = "spanwise.test/rides:1"
PAGE = "docs/how-to/run-nodes-on-kubernetes.md"
PROJECT = "tests/contract/kubernetes/project"
DEPENDENCIES = """\
FROM spanwise.test/debian:1
RUN ln -s python3 /usr/bin/python && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
RUN pip install --upgrade pip
RUN pip install 'spanwise[demo,kubernetes,postgresql,storage,sql]' && pip uninstall --yes spanwise
"""
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
SOURCES = (
    "pyproject.toml", "constraints.txt", "orchestrator", "components", "resolvers", "scheduler", "pipelines",
    "src/spanwise/__init__.py", PAGE, PROJECT, "tests/contract/node_images.py",
)  # fmt: skip
CONTAINERD = """\
version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri"]
root = "{root}"
state = "{folder}/state"
[grpc]
address = "{folder}/socket"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
"""


def copy_images(folder):
    """Makes the root of a containerd that has the images, which are made if they are missing or older than this tree.

    Layers are links to the same files, which containers never change; databases are copies.
    """
    root = _prepared()
    same = root.stat().st_dev == folder.parent.stat().st_dev
    subprocess.run(["cp", "-al" if same else "-a", root, folder], check=True)
    for file in root.rglob("*.db"):
        copy = folder / file.relative_to(root)
        copy.unlink()
        shutil.copy(file, copy)


@functools.cache
def _prepared():
    """The root of a containerd with the images of this tree; the last one is kept."""
    place = Path(os.environ["SPANWISE_TEST_KUBERNETES"]).absolute().parent / "images"
    place.mkdir(exist_ok=True)
    tree = hashlib.sha256()
    for path in SOURCES:
        for file in sorted([TREE / path, *(TREE / path).rglob("*")]):
            if file.is_file() and "__pycache__" not in file.parts:
                tree.update(f"{file.relative_to(TREE)}\n".encode() + file.read_bytes())
    root = place / f"containerd-{tree.hexdigest()[:16]}"
    if not root.exists():
        for old in place.glob("containerd-*"):
            shutil.rmtree(old)
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            builder = Builder(place, Path(folder))
            builder.build_pause()
            builder.build_rides()
            builder.fill(place / "part")
        (place / "part").rename(root)
    return root


class Builder:
    """Builds the images; podman keeps what they have in common below `place`."""

    def __init__(self, place, folder):
        self._place, self._folder = place, folder

    def build_pause(self):
        """What holds the namespaces of a pod; its source is in Kubernetes' module."""
        if self._has(PAUSE):
            return
        modules = subprocess.run(["go", "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip()
        source = next(Path(modules).glob("k8s.io/kubernetes@*/build/pause/linux/pause.c"))
        program = self._folder / "pause"
        subprocess.run(["cc", "-static", "-O2", "-DVERSION=test", "-o", program, source], check=True)
        subprocess.run(["tar", "-C", self._folder, "-cf", f"{program}.tar", "pause"], check=True)
        self._podman("import", "--change", 'ENTRYPOINT ["/pause"]', f"{program}.tar", PAUSE)

    def build_rides(self):
        """The image of the documentation, with the demo's pipeline and its settings in it."""
        wheels, project = self._folder / "wheels", self._folder / "project"
        command = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--wheel-dir", wheels, TREE]
        subprocess.run(command, check=True)
        (wheel,) = wheels.glob("spanwise-*.whl")
        constraints = (TREE / "constraints.txt").read_text()
        (wheels / "constraints.txt").write_text(f"{constraints}\nspanwise @ file:///wheels/{wheel.name}\n")
        self._podman("tag", self._dependencies(constraints), BASE)
        (dockerfile,) = re.findall(r"```dockerfile\n(.*?)```", (TREE / PAGE).read_text(), re.DOTALL)
        shutil.copytree(TREE / PROJECT, project)
        shutil.copy(TREE / "pipelines" / "flights.py", project)
        self._build(IMAGE, project, dockerfile)

    def _dependencies(self, constraints):
        """The name of an image with Python and what spanwise depends on."""
        wanted = (TREE / "pyproject.toml").read_text() + constraints + DEPENDENCIES
        name = f"spanwise.test/dependencies:{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
        if not self._has(DEBIAN):
            root = self._folder / "debian.tar"
            packages = "--include=python3,python3-pip,ca-certificates"
            subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", root], check=True)
            self._podman("import", str(root), DEBIAN)
        if not self._has(name):
            (self._folder / "dependencies").mkdir()
            self._build(name, self._folder / "dependencies", DEPENDENCIES)
        return name

    def _build(self, name, context, dockerfile):
        """As `podman build` does it, from the wheel of this tree and with the versions of constraints.txt."""
        (context / "Dockerfile").write_text(dockerfile)
        cache = self._place / "pip"
        cache.mkdir(exist_ok=True)
        self._podman(
            "build", "--isolation=chroot", "--network=host", "--pull=never", "--no-cache", f"--tag={name}",
            f"--volume={self._folder}/wheels:/wheels:ro", f"--volume={cache}:/root/.cache/pip",
            f"--volume={AUTHORITIES}:{AUTHORITIES}:ro", f"--env=PIP_CERT={AUTHORITIES}",
            "--env=PIP_CONSTRAINT=/wheels/constraints.txt", "--env=PIP_ROOT_USER_ACTION=ignore", str(context),
        )  # fmt: skip

    def fill(self, root):
        """Makes the root of a containerd with both images."""
        shutil.rmtree(root, ignore_errors=True)
        configuration = self._folder / "containerd.toml"
        configuration.write_text(CONTAINERD.format(root=root, folder=self._folder))
        with (self._folder / "containerd.out").open("wb") as out:
            running = subprocess.Popen(["containerd", f"--config={configuration}"], stdout=out, stderr=out)
        with contextlib.ExitStack() as ended:
            ended.callback(end_process, running)
            control = ["ctr", f"--address={self._folder}/socket", "--namespace=k8s.io"]
            eventually(lambda: not subprocess.run([*control, "version"], capture_output=True, check=False).returncode)
            for number, name in enumerate((PAUSE, IMAGE)):
                archive = f"{self._folder}/{number}.tar"
                self._podman("save", "--quiet", "--format=docker-archive", f"--output={archive}", name)
                subprocess.run([*control, "images", "import", archive], check=True, capture_output=True)

    def _has(self, name):
        return name in self._podman("images", "--format", "{{.Repository}}:{{.Tag}}").split()

    def _podman(self, *arguments):
        command = [
            "podman", f"--root={self._place}/storage", f"--runroot={self._place}/run", "--storage-driver=overlay",
            "--cgroup-manager=cgroupfs", "--runtime=runc", *arguments,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout
