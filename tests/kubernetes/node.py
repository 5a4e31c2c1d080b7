"""A real node: a kubelet and containerd that run the pods of a real API server.

Both run in mount, process, network, cgroup, host name and IPC namespaces of their own, below one
directory; all of this goes away with them. The node's network has no way out: the API server is reached
through a relay that listens inside and connects outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.kubernetes.api_server import NODE, ApiServer, write_kubeconfig

ADDRESS = "10.88.0.1"
"""Of the node, in its own network; pods are in the same /16."""
API_ADDRESS = "10.254.0.1"
"""Of Service ``kubernetes``, which pods find in their environment; the node has it too."""
PAUSE = "sluice.test/pause:1"
START_SECONDS = 120.0
CLONE_NEWNET = 0x40000000
CGROUPS = Path("/sys/fs/cgroup")
Object = dict[str, Any]
Made = TypeVar("Made")

CONTAINERD = """
version = 2
root = "{root}/containerd"
state = "{root}/state"
oom_score = 0
disabled_plugins = [
    "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]

[grpc]
address = "{root}/c.sock"

[plugins."io.containerd.internal.v1.opt"]
path = "{root}/opt"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
disable_hugetlb_controller = true
netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{programs}/cni"
conf_dir = "{root}/network"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{programs}/runc"
SystemdCgroup = false
"""
NETWORK = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.0.0/16"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}
KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "cgroupDriver": "cgroupfs",
    "clusterDNS": [ADDRESS],
    "clusterDomain": "cluster.local",
    "evictionHard": {"memory.available": "10Mi"},
    "imageGCHighThresholdPercent": 100,
    "failSwapOn": False,
    "makeIPTablesUtilChains": False,
    "nodeStatusUpdateFrequency": "2s",
    "oomScoreAdj": 0,
    "protectKernelDefaults": True,
    "readOnlyPort": 0,
    "resolvConf": "",
    "syncFrequency": "5s",
}


@dataclass
class Node:
    """A running node, and how tests look into it."""

    server: ApiServer
    root: Path
    programs: Path
    process: subprocess.Popen[bytes]
    inside: int
    """The id, out here, of the first process of its namespaces."""

    def relay(self, address: tuple[str, int], target: tuple[str, int], stack: contextlib.ExitStack) -> None:
        """Forward connections to ``address`` in the node's network to ``target`` outside."""
        listener = self.in_network(lambda: socket.create_server(address))
        stack.callback(listener.close)
        stack.callback(listener.shutdown, socket.SHUT_RDWR)

        def connect() -> socket.socket:
            return socket.create_connection(target)

        threading.Thread(target=_accept, args=(listener, connect), daemon=True).start()

    def in_network(self, make: Callable[[], Made]) -> Made:
        """Call ``make`` in the node's network, and return its result.

        The call is made in a thread of its own; a socket stays in the network where it was made.
        """

        def enter() -> Made:
            with Path(f"/proc/{self.inside}/ns/net").open("rb") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            return make()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(enter).result()

    def publish(self, port: int, target: Callable[[], tuple[str, int]], stack: contextlib.ExitStack) -> None:
        """Forward connections to ``port`` on loopback outside to ``target`` in the node's network."""
        listener = socket.create_server(("127.0.0.1", port))
        stack.callback(listener.close)
        stack.callback(listener.shutdown, socket.SHUT_RDWR)

        def connect() -> socket.socket:
            return self.in_network(lambda: socket.create_connection(target()))

        threading.Thread(target=_accept, args=(listener, connect), daemon=True).start()

    def inside_of(self, pod: Object, *command: str) -> str:
        """Run a command in the first container of a pod, and return its output."""
        (container, *_) = pod["status"]["containerStatuses"]
        identifier = container["containerID"].removeprefix("containerd://")
        ctr = self.programs / "node" / "ctr"
        enter = ["nsenter", f"--target={self.inside}", "--all", str(ctr), f"--address={self.root}/c.sock"]
        run = ["--namespace=k8s.io", "tasks", "exec", f"--exec-id=x{time.monotonic_ns()}", identifier, *command]
        done = subprocess.run([*enter, *run], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ready(self) -> bool:
        """Whether the API server considers the node ready."""
        status, found = self.server.call("GET", "/api/v1/nodes/here")
        conditions = found["status"].get("conditions", ()) if status == 200 else ()
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def log(self, pod: Object, container: str) -> str:
        """The output of a container of a pod."""
        metadata = pod["metadata"]
        directory = self.root / "log" / "pods" / f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        files = sorted(directory.glob(f"{container}/*.log"))
        lines = [line for each in files for line in each.read_text(errors="replace").splitlines()]
        return "\n".join(line.split(" ", 3)[3] for line in lines)


def write_image(archive: Path, name: str, files: Mapping[str, Path], configuration: Object) -> None:
    """Write an image of one layer, as ``docker save`` does, with programs that need nothing else."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as made:
        for path, source in files.items():
            entry = tarfile.TarInfo(path)
            entry.mode, entry.size = 0o755, source.stat().st_size
            with source.open("rb") as content:
                made.addfile(entry, content)
    digest = f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"
    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": configuration,
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as made:
        for path, data in (
            ("config.json", json.dumps(described).encode()),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            made.addfile(entry, io.BytesIO(data))


@contextlib.contextmanager
def node(programs: Path, server: ApiServer, *images: Path) -> Iterator[Node]:
    """Run a node of ``server`` within the block; it is ready, and has these images."""
    with contextlib.ExitStack() as stack:
        root = Path(tempfile.mkdtemp(prefix="kn"))  # paths of sockets are short
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        _configure(root, programs / "node", server)
        for each in images:
            (root / "images" / each.name).symlink_to(each)
        groups = _make_groups(f"sluice-{root.name}")
        stack.callback(_remove_groups, groups)
        enter = "".join(f"echo $$ >{each}/cgroup.procs; " for each in groups)
        command = [
            "unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
            "--net", "--uts", "--ipc", "--cgroup",
            str(Path(__file__).with_suffix(".sh")), str(root), str(programs / "node"), ADDRESS, API_ADDRESS,
        ]  # fmt: skip
        with (root / "node.log").open("wb") as output:
            process = subprocess.Popen(
                ["sh", "-euc", f'{enter}exec "$@"', "sh", *command],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            )  # fmt: skip

        def stop() -> None:
            process.kill()
            process.wait()

        stack.callback(stop)
        found = Node(server, root, programs, process, 0)
        _until(lambda: _has_network(found), found)
        port = int(server.url.rpartition(":")[2])
        found.relay(("127.0.0.1", port), ("127.0.0.1", port), stack)
        _until(found.ready, found)
        yield found


def _configure(root: Path, programs: Path, server: ApiServer) -> None:
    for name in ("images", "network"):
        (root / name).mkdir()
    (root / "containerd.toml").write_text(CONTAINERD.format(root=root, programs=programs, pause=PAUSE))
    (root / "network" / "pods.conflist").write_text(json.dumps(NETWORK))
    (root / "kubelet.json").write_text(json.dumps(KUBELET))
    write_kubeconfig(root / "kubeconfig.json", server, NODE)
    pause = {"Entrypoint": ["/catatonit", "-P"], "User": "65535:65535"}
    write_image(root / "images" / "pause.tar", PAUSE, {"catatonit": programs / "catatonit"}, pause)


def _make_groups(name: str) -> list[Path]:
    """Make a cgroup below this process's own in each hierarchy; with only one hierarchy, below its root."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    found = [
        CGROUPS / controllers / own.strip("/") / name
        for _, controllers, own in lines
        if controllers and not controllers.startswith("name=")
    ]
    groups = found or [CGROUPS / name]
    for group in groups:
        group.mkdir()
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if found and (group / setting).exists():
                (group / setting).write_text((group.parent / setting).read_text())
    return groups


def _remove_groups(groups: list[Path]) -> None:
    for group in groups:
        for each, _, _ in os.walk(group, topdown=False):
            for _ in range(50):  # until the last process has gone
                with contextlib.suppress(OSError):
                    Path(each).rmdir()
                    break
                time.sleep(0.1)


def _has_network(found: Node) -> bool:
    children = Path(f"/proc/{found.process.pid}/task/{found.process.pid}/children").read_text().split()
    if not children:
        return False
    found.inside = int(children[0])
    try:
        found.in_network(lambda: socket.create_server((ADDRESS, 0))).close()
    except OSError:
        return False
    return True


def _until(ready: Callable[[], bool], found: Node) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and found.process.poll() is None:
        if ready():
            return
        time.sleep(0.2)
    logs = "\n".join(each.read_text(errors="replace")[-3000:] for each in sorted(found.root.glob("*.log")))
    raise AssertionError(f"the node is not ready: {logs}")


def _accept(listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return  # it was closed
        threading.Thread(target=_carry, args=(near, connect), daemon=True).start()


def _carry(near: socket.socket, connect: Callable[[], socket.socket]) -> None:
    with near, contextlib.suppress(OSError), connect() as far:
        back = threading.Thread(target=_copy, args=(far, near), daemon=True)
        back.start()
        _copy(near, far)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
