"""A real Kubernetes API server over etcd, without nodes: enough for elections and submissions."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.free_ports import free_ports
from tests.outside import OutsideAuthority

START_SECONDS = 90.0
STOP_SECONDS = 25.0
ADMINISTRATOR = "administrator"
"""A token that may do everything."""
LEADER = "leader"
"""The token of a user to whom a test gives what docs/howto/high-availability.md says that a JobManager needs."""
SUBMITTER = "submitter"
"""The token of a user to whom a test gives what docs/howto/deployment.md says that a submitter needs."""
NODE = "node"
"""The token of the kubelet of node ``here``."""
NAMESPACE = "sluice"


@dataclass
class ApiServer:
    """A running API server: its address, and how tests look into it."""

    url: str
    ca_file: Path
    process: subprocess.Popen[bytes]
    audit: Path
    """Its audit log: one JSON object a line for each request that was answered."""

    def call(
        self, method: str, path: str, content: object = None, *, token: str = ADMINISTRATOR, kind: str = "json"
    ) -> tuple[int, dict[str, Any]]:
        """Send one request; returns the status and the body of the answer."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        connection = http.client.HTTPSConnection(self.url.removeprefix("https://"), context=context, timeout=30)
        try:
            headers = {"authorization": f"Bearer {token}", "content-type": f"application/{kind}"}
            connection.request(method, path, None if content is None else json.dumps(content), headers)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(data) if data.startswith(b"{") else {}

    def objects(self, kind: str, name: str) -> str:
        """The path of a Lease or a ConfigMap in the namespace."""
        group = "/apis/coordination.k8s.io/v1" if kind == "leases" else "/api/v1"
        return f"{group}/namespaces/{NAMESPACE}/{kind}/{name}"

    def allow(self, name: str, user: str, rules: list[dict[str, list[str]]]) -> None:
        """Give ``user`` a role of these rules in the namespace."""
        group = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        made, _ = self.call("POST", f"{group}/roles", {"metadata": {"name": name}, "rules": rules})
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
        bound, _ = self.call("POST", f"{group}/rolebindings", binding)
        assert {made, bound} <= {201, 409}, (made, bound)

    def account(self, directory: Path, token: str) -> Path:
        """Write a directory like the one that Kubernetes mounts for a service account."""
        directory.mkdir()
        (directory / "token").write_text(token)
        (directory / "namespace").write_text(NAMESPACE)
        (directory / "ca.crt").write_bytes(self.ca_file.read_bytes())
        return directory

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Suspend the server within the block: it accepts connections, but does not answer."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def api_server(
    programs: Path, root: Path, *names: str, accounts: bool = False, controlled: bool = False
) -> Iterator[ApiServer]:
    """Run a server within the block, with a namespace; only the administrator has rights in it.

    Other users can only read versions.

    Args:
        names: further names in its certificate.
        accounts: pods get the token of their service account where Kubernetes mounts it.
        controlled: also run the controllers and the scheduler.
    """
    etcd_port, peer_port, port = free_ports(3)
    tls = OutsideAuthority(root / "tls").issue("127.0.0.1", *names)
    (root / "service-accounts.key").write_bytes(
        rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    (root / "tokens.csv").write_text(
        f"{ADMINISTRATOR},{ADMINISTRATOR},1,system:masters\n{LEADER},{LEADER},2\n{SUBMITTER},{SUBMITTER},3\n"
        f"{NODE},system:node:here,4,system:nodes\n"
    )
    (root / "audit.yaml").write_text(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n"
        "- {level: Request, verbs: [create, update], resources: [{group: '', resources: [configmaps]}]}\n"
        "- {level: Metadata}\n"
    )
    client, peer = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
    etcd = [
        str(programs / "etcd"), "--data-dir", str(root / "etcd"), "--listen-client-urls", client,
        "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
    ]  # fmt: skip
    server = [
        str(programs / "kube-apiserver"), f"--etcd-servers={client}", "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1", f"--secure-port={port}", f"--tls-cert-file={tls / 'chain.pem'}",
        f"--tls-private-key-file={tls / 'key.pem'}", f"--client-ca-file={tls / 'ca.pem'}",
        f"--token-auth-file={root / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC", "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={root / 'service-accounts.key'}",
        f"--service-account-signing-key-file={root / 'service-accounts.key'}",
        "--service-cluster-ip-range=10.254.0.0/16", "--endpoint-reconciler-type=none",
        # Spark's Services say which family of addresses they have; 1.20 knows this by the second one.
        "--feature-gates=BoundServiceAccountTokenVolume=true,IPv6DualStack=true"
        if accounts else "--disable-admission-plugins=ServiceAccount",
        f"--audit-policy-file={root / 'audit.yaml'}",
        f"--audit-log-path={root / 'audit.log'}", "--audit-log-mode=blocking",
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        _start(stack, etcd, root / "etcd.log")
        process = _start(stack, server, root / "kube-apiserver.log")
        found = ApiServer(f"https://127.0.0.1:{port}", tls / "ca.pem", process, root / "audit.log")
        _until_ready(found, root)
        status, _ = found.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        assert status == 201, status
        if controlled:
            _start_controllers(stack, programs, root, found)
        yield found


def write_kubeconfig(file: Path, server: ApiServer, token: str, namespace: str = "default") -> None:
    """Write a kubeconfig for a user with this token, who works in this namespace."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority": str(server.ca_file)}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
        "current-context": "x",
    }
    file.write_text(json.dumps(content))


def _start_controllers(stack: contextlib.ExitStack, programs: Path, root: Path, server: ApiServer) -> None:
    write_kubeconfig(root / "kubeconfig.json", server, ADMINISTRATOR)
    for name, *options in (
        (
            "kube-controller-manager", f"--root-ca-file={server.ca_file}",
            f"--service-account-private-key-file={root / 'service-accounts.key'}",
        ),
        ("kube-scheduler",),
    ):  # fmt: skip
        (port,) = free_ports(1)
        command = [
            str(programs / name), f"--kubeconfig={root / 'kubeconfig.json'}", "--leader-elect=false", "--port=0",
            "--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={root / 'certificates'}", *options,
        ]  # fmt: skip
        _start(stack, command, root / f"{name}.log")


def _start(stack: contextlib.ExitStack, command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={"PATH": os.environ["PATH"]}, start_new_session=True
        )

    def stop() -> None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(stop)
    return process


def _until_ready(server: ApiServer, root: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.process.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if server.call("GET", "/readyz")[0] == 200:
                return
        time.sleep(0.2)
    end = (root / "kube-apiserver.log").read_text(errors="replace")[-2000:]
    raise AssertionError(f"the API server is not ready: {end}")
