"""Jobs authenticate to a real Ceph (S3 and STS) and to a real Envoy that verifies tokens.

They can do so only as themselves.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import ssl
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
import trustme

from sluice.client.access import resolve_access
from sluice.client.spark_connect import local_roots
from sluice.core.home import Home
from sluice.gateway.authz import DEFAULT_POLICY
from tests.free_ports import free_port
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster
from tests.system.egress.ceph import Ceph, ceph
from tests.system.egress.outside import CLIENTS, fetched, name_service
from tests.system.egress.verifier import verifying_service

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(900)]

PIPELINE = Path(__file__).with_name("federated.py")
ROLES = ("s3-reports", "payroll")
"""Each role in S3 is for the audience of its name."""
NOBODY = "spiffe://sluice.local/job/00000000000000000000000000000000/driver"
CONFIG = """
[taskmanager]
count = 1
slots = 2
slot_memory_mb = 512

[spark]
driver_memory_mb = 512
executors = 1

[shuffle]
enabled = false

[gateway]
port = {port}
server_names = ["localhost"]

[pki]
token_algorithm = "RS256"
token_minutes = 1

[egress]
mode = "enforce"
nameservers = ["{nameserver}"]

[isolation]
read_only = ["{clients}"]
writable = ["{shared}"]
"""
POLICY = """
[[egress]]
to = ["s3.test:{s3}", "service.test:{service}"]
roles = ["admin"]
addresses = ["127.0.71.0/24"]

[[audiences]]
audience = ["s3-reports", "payroll", "unregistered", "api"]
roles = ["admin"]
"""


@dataclass
class World:
    """A cluster, and what is outside of it."""

    cluster: LocalCluster
    authority: trustme.CA
    s3: Ceph
    issuer: str
    gateway_authority: Path
    service_port: int

    def submit(self, which: str, *options: str) -> str:
        """Submit a job that waits until :meth:`tell` is called; return its id."""
        done = self.cluster.sluice("submit", str(PIPELINE), *options, "--", str(self.cluster.shared), which)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def tell(self) -> None:
        """Write the settings that jobs wait for."""
        shared = self.cluster.shared
        self.authority.cert_pem.write_to_path(shared / "ca.pem")
        (shared / "ca.pem").chmod(0o644)
        told = {
            "shared": str(shared), "packages": str(CLIENTS), "ca": str(shared / "ca.pem"), "bucket": "reports",
            "s3": self.s3.url, "service": f"https://service.test:{self.service_port}/", "other": NOBODY,
            "roles": {role: f"arn:aws:iam:::role/{role}" for role in ROLES}, "audiences": [*ROLES, "unregistered"],
        }  # fmt: skip
        staged = shared / "told.new"
        staged.write_text(json.dumps(told))
        staged.chmod(0o644)
        staged.rename(shared / "told")

    def results(self, job_id: str) -> dict[str, Any]:
        """Wait for the end of a job; return the result or error of each step."""
        job = self.cluster.wait_for_state(job_id, "FINISHED", "FAILED", "CANCELED", seconds=300)
        log = self.cluster.sluice("jobs", "logs", job_id, "--source", "driver.stdout").stdout
        assert job["state"] == "FINISHED", (job.get("failure"), log)
        lines = [json.loads(line.partition("STEP ")[2]) for line in log.splitlines() if "STEP [" in line]
        return {name: error or result for name, result, error in lines}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    fetched()
    home = tmp_path_factory.mktemp("federation") / "home"
    home.mkdir(mode=0o700)
    (home / "gateway").mkdir(mode=0o700)
    authority, s3_port, service_port = trustme.CA(), free_port(), free_port()
    policy = home / "gateway" / "policy.toml"
    policy.touch(0o600)
    policy.write_text(DEFAULT_POLICY.read_text() + POLICY.format(s3=s3_port, service=service_port))
    with contextlib.ExitStack() as running:
        nameserver = running.enter_context(name_service("s3.test", "service.test"))
        shared = LocalCluster(home).shared
        port = free_port("127.0.0.1")
        written = CONFIG.format(nameserver=nameserver, clients=CLIENTS, shared=shared, port=port)
        (home / "sluice.toml").write_text(written)
        cluster = start_cluster(home, "--port", str(port))
        running.callback(cluster.sluice, "down")
        access = resolve_access(Home.at(home))
        trusted = home.parent / "roots.pem"
        trusted.write_bytes(local_roots(Home.at(home)))
        s3 = running.enter_context(ceph(authority, "s3.test", s3_port, trusted))
        discovery, keys = published(access.url, trusted)
        s3.operate(
            issuer=discovery["issuer"], audiences=list(ROLES), bucket="reports",
            thumbprints=[hashlib.sha1(base64.b64decode(key["x5c"][0])).hexdigest() for key in keys],  # noqa: S324  Ceph's
        )  # fmt: skip
        yield World(cluster, authority, s3, discovery["issuer"], trusted, service_port)


def published(url: str, authority: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the discovery document, and the keys from its ``jwks_uri``."""
    context = ssl.create_default_context(cafile=authority)

    def get(address: str) -> Any:
        with urllib.request.urlopen(address, timeout=30, context=context) as reply:  # noqa: S310  https
            return json.loads(reply.read())

    discovery = get(f"{url}/.well-known/openid-configuration")
    return discovery, get(discovery["jwks_uri"])["keys"]


def test_jobs_take_only_the_roles_that_their_identity_tokens_allow(world: World) -> None:
    files = [f"{name}={name}" for name in ("s3-reports", "payroll", "unregistered", "api")]
    tokens = [each for file in files for each in ("--identity-token", file)]
    job_id = world.submit("owner", *tokens, "--aws-role-arn", "arn:aws:iam:::role/s3-reports")
    subject = f"spiffe://sluice.local/job/{job_id}/driver"
    with verifying_service(
        world.authority, "service.test", world.service_port,
        issuer=world.issuer, trusts=world.gateway_authority, audience="api", subject=subject,
    ):  # fmt: skip
        world.tell()
        results = world.results(job_id)
        others = world.results(world.submit("other", *tokens))

    # S3 takes the job's tokens: of the driver and of executors, for boto3 and for pyarrow.
    assert results["by_boto3"] == "written by a job"
    assert results["by_boto3_in_executors"] == "0,1,2,3"
    assert results["by_pyarrow"] == str(sum(range(300_000)))
    # A token takes the role of its audience and no other; an audience that S3 does not know takes none.
    assert json.loads(results["roles"]) == {
        "s3-reports s3-reports": "taken",
        "s3-reports payroll": "refused with 403",
        "payroll s3-reports": "refused with 403",
        "payroll payroll": "taken",
        "unregistered s3-reports": "refused with 403",
        "unregistered payroll": "refused with 403",
    }
    # The socket gives tokens of this process alone, for audiences of the policy alone.
    api = json.loads(results["workload_api"])
    assert api["own"] == subject
    assert api["audience"].startswith("refused: ")
    assert api["subject"].startswith("refused: ")
    # Envoy verifies them by itself; another job's token for the same audience is good, and of another subject.
    answers = {
        "own": "200 verified",
        "audience": "403 Audiences in Jwt are not allowed",
        "forged": "401 Jwt verification fails",
        "none": "401 Jwt is missing",
    }
    assert json.loads(results["service"]) == answers
    assert json.loads(others["service"]) == {**answers, "own": "403 RBAC: access denied"}

    # A stolen token was good as long as the job ran, and ends with it within its minute.
    assert results["stolen"] == "taken"
    token = (world.cluster.shared / "stolen").read_text()
    wish = {"role": "arn:aws:iam:::role/s3-reports", "token": token}
    eventually(
        lambda: world.s3.operate(assume=wish) == "refused with 403", "the token of the job that ended is refused", 120
    )
    claims = jwt.decode(token, options={"verify_signature": False})
    assert (claims["sub"], claims["aud"]) == (subject, ["s3-reports"])
    assert claims["sluice"] == {"job": job_id, "owner": "tester"}


def test_a_job_that_asks_for_an_identity_token_outside_the_policy_fails(world: World) -> None:
    job_id = world.submit("other", "--identity-token", "not-in-policy=x")
    job = world.cluster.wait_for_state(job_id, "FAILED", "FINISHED", seconds=200)
    assert job["state"] == "FAILED"
    assert "no token for 'not-in-policy'" in json.dumps(job["failure"])
