"""A real Ceph in a directory of its own: one monitor, one OSD in memory, and a RADOS Gateway with S3, IAM and STS."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

from tests.free_ports import free_port
from tests.integration.cluster.conftest import eventually
from tests.system.egress.outside import (
    ADDRESS,
    CLIENTS,
    UNPACKED,
    Certificate,
    accepts,
    libraries,
    program,
    server,
    temporary,
)

TRUSTED = "/etc/ssl/certs/ca-certificates.crt"
"""What the gateway's HTTP client trusts; there is no setting for it."""
OPERATOR = Path(__file__).with_name("ceph_operator.py")
CONFIG = """
[global]
fsid = {cluster}
mon host = v2:{address}:{monitor}
public addr = {address}
cluster addr = {address}
ms bind msgr1 = false
keyring = {directory}/keyring
run dir = {directory}
log file = {directory}/$name.log
admin socket = {directory}/$name.asok
mon data = {directory}/mon
mon data avail warn = 1
mon data avail crit = 0
mon allow pool size one = true
osd data = {directory}/osd
osd objectstore = memstore
memstore device bytes = 1073741824
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
plugin dir = {libraries}/ceph
erasure code dir = {libraries}/ceph/erasure-code
osd class dir = {libraries}/rados-classes
rgw frontends = beast ssl_endpoint={address}:{gateway} ssl_certificate={chain} ssl_private_key={key}
rgw s3 auth use sts = true
rgw sts key = {sts_key}
rgw thread pool size = 16
"""
USERS = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "osd": "allow *"},
    "client.gateway": {"mon": "allow rwx", "osd": "allow rwx"},
    "osd.0": {"mon": "allow profile osd", "osd": "allow *"},
}


@dataclass(frozen=True)
class Ceph:
    """The S3 and STS endpoints of a Ceph.

    Attributes:
        url: URL of both.
        authority: file with the certificate of the CA that signed the server's certificate.
        access_key: access key of the operator, who may create providers, roles and buckets.
        secret_key: secret key of the operator.
        log: log file of the RADOS Gateway.
    """

    url: str
    authority: Path
    access_key: str
    secret_key: str
    log: Path

    def operate(self, **wishes: Any) -> Any:
        """Run :mod:`ceph_operator` with ``wishes``; return its answer."""
        told = {
            "url": self.url,
            "ca": str(self.authority),
            "address": ADDRESS,
            "keys": [self.access_key, self.secret_key],
            **wishes,
        }
        done = subprocess.run(
            [sys.executable, str(OPERATOR)],
            env=os.environ | {"PYTHONPATH": str(CLIENTS), "AWS_EC2_METADATA_DISABLED": "true"},
            input=json.dumps(told),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)


@contextlib.contextmanager
def ceph(authority: trustme.CA, name: str, gateway: int, trusts: Path) -> Iterator[Ceph]:
    """Run a Ceph whose S3 is ``name`` at port ``gateway``.

    Its HTTP client trusts the authorities in ``trusts``.
    """
    monitor, cluster = free_port(), str(uuid.uuid4())
    found = next(UNPACKED.glob("usr/lib/*-linux-gnu/rados-classes"), None)
    where = found.parent if found is not None else next(Path("/usr/lib").glob("*-linux-gnu/rados-classes")).parent
    with temporary("ceph") as directory:
        certificate = Certificate.issue(authority, directory, name)
        config = directory / "ceph.conf"
        config.write_text(
            CONFIG.format(
                cluster=cluster,
                address=ADDRESS,
                monitor=monitor,
                gateway=gateway,
                directory=directory,
                libraries=where,
                chain=certificate.chain,
                key=certificate.key,
                sts_key=secrets.token_hex(8),
            )
        )
        environment = {
            "LD_LIBRARY_PATH": libraries(),
            "PYTHONPATH": str(UNPACKED / "usr/lib/python3/dist-packages"),
            "PATH": "/usr/bin:/bin",
            "HOME": str(directory),
        }

        def run(*argv: str) -> str:
            command = [program(argv[0]), *argv[1:]]
            if argv[0] == "/usr/bin/ceph":
                command = ["/usr/bin/python3", *command]  # Debian's, for which its modules are built
            done = subprocess.run(
                command, env=environment, cwd=directory, capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == 0, (argv, done.stderr[-3000:])
            return done.stdout

        def daemon(path: str, *argv: str) -> list[str]:
            return [program(path), "-c", str(config), "-f", *argv]

        of_cluster = ("-c", str(config))
        for who, capabilities in USERS.items():
            create = () if (directory / "keyring").exists() else ("--create-keyring",)
            granted = [each for kind, what in capabilities.items() for each in ("--cap", kind, what)]
            run("/usr/bin/ceph-authtool", "keyring", *create, "--gen-key", "-n", who, *granted)
        place = f"[v2:{ADDRESS}:{monitor}]"
        run("/usr/bin/monmaptool", "--create", "--fsid", cluster, "--addv", "a", place, "monmap")
        run("/usr/bin/ceph-mon", *of_cluster, "--mkfs", "-i", "a", "--monmap", "monmap", "--keyring", "keyring")
        with contextlib.ExitStack() as running:
            log = directory / "out"
            running.enter_context(server(daemon("/usr/bin/ceph-mon", "-i", "a"), monitor, log))
            identity = str(uuid.uuid4())
            run("/usr/bin/ceph", *of_cluster, "osd", "new", identity)
            (directory / "osd").mkdir()
            run("/usr/bin/ceph-osd", *of_cluster, "-i", "0", "--mkfs", "--osd-uuid", identity)
            running.enter_context(server(daemon("/usr/bin/ceph-osd", "-i", "0"), monitor, log))

            def up() -> bool:
                return bool(json.loads(run("/usr/bin/ceph", *of_cluster, "osd", "stat", "-f", "json"))["num_up_osds"])

            eventually(up, "the OSD is up", 60)
            access, secret = secrets.token_hex(10).upper(), secrets.token_urlsafe(30)
            run(
                *("/usr/bin/radosgw-admin", *of_cluster, "user", "create", "--uid", "ops", "--display-name", "ops"),
                *("--access-key", access, "--secret-key", secret, "--caps", "oidc-provider=*;roles=*"),
            )
            trusted = {trusts: TRUSTED}
            running.enter_context(
                server(daemon("/usr/bin/radosgw", "-n", "client.gateway"), gateway, log, shown=trusted)
            )
            assert accepts(gateway)
            ca = directory / "ca.pem"
            authority.cert_pem.write_to_path(ca)
            yield Ceph(f"https://{name}:{gateway}", ca, access, secret, directory / "client.gateway.log")
