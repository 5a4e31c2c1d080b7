"""A job logs in to a real OpenBao as itself, and reads what OpenBao's policy gives to its owner."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from sluice.client.access import resolve_access
from sluice.client.spark_connect import local_roots
from sluice.core.clock import utc_now
from sluice.core.home import Home
from sluice.gateway.authz import DEFAULT_POLICY
from sluice.gateway.service.discovery import documents_of
from sluice.pki.ca import TokenKeysAnswer
from sluice.pki.jwt import LocalJwtAuthority
from sluice.pki.spiffe_id import SpiffeId
from tests.free_ports import free_port
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster
from tests.system.egress.openbao import OpenBao, openbao
from tests.system.egress.outside import fetched, name_service
from tests.system.egress.test_federation import published

pytestmark = pytest.mark.timeout(600)

PIPELINE = Path(__file__).with_name("openbao_job.py")
CONFIG = """
[taskmanager]
count = 1
slots = 1
slot_memory_mb = 512

[spark]
driver_memory_mb = 512

[shuffle]
enabled = false

[gateway]
port = {port}
server_names = ["localhost"]

[pki]
token_minutes = 1

[egress]
mode = "enforce"
nameservers = ["{nameserver}"]

[isolation]
writable = ["{shared}"]
"""
POLICY = """
[[egress]]
to = ["bao.test:{bao}"]
roles = ["admin"]
protocol = "tls"
addresses = ["127.0.71.0/24"]

[[audiences]]
audience = ["openbao", "api"]
roles = ["admin"]
"""


@dataclass
class World:
    """A cluster, and an OpenBao outside of it that trusts its tokens."""

    cluster: LocalCluster
    bao: OpenBao
    url: str
    authority: trustme.CA

    def submit(self) -> str:
        """Submit a job that starts at once; return its id."""
        self.authority.cert_pem.write_to_path(self.cluster.shared / "ca.pem")
        (self.cluster.shared / "ca.pem").chmod(0o644)
        tokens = [each for name in ("openbao", "api") for each in ("--identity-token", f"{name}={name}")]
        done = self.cluster.sluice("submit", str(PIPELINE), *tokens, "--", str(self.cluster.shared), self.url)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    fetched()
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "gateway").mkdir(mode=0o700)
    authority, bao_port, port = trustme.CA(), free_port(), free_port("127.0.0.1")
    policy = home / "gateway" / "policy.toml"
    policy.touch(0o600)
    policy.write_text(DEFAULT_POLICY.read_text() + POLICY.format(bao=bao_port))
    with contextlib.ExitStack() as running:
        nameserver = running.enter_context(name_service("bao.test"))
        shared = LocalCluster(home).shared
        (home / "sluice.toml").write_text(CONFIG.format(nameserver=nameserver, shared=shared, port=port))
        cluster = start_cluster(home, "--port", str(port))
        running.callback(cluster.sluice, "down")
        trusted = tmp_path / "roots.pem"
        trusted.write_bytes(local_roots(Home.at(home)))
        bao = running.enter_context(openbao(authority, "bao.test", bao_port))
        issuer = published(resolve_access(Home.at(home)).url, trusted)[0]["issuer"]
        set_up(bao, issuer, trusted.read_text())
        yield World(cluster, bao, f"https://bao.test:{bao_port}", authority)


def set_up(bao: OpenBao, issuer: str, roots: str) -> None:
    """Configure OpenBao as docs/howto/federate-jobs-with-s3.md describes."""
    bao.do("POST", "sys/mounts/secret", {"type": "kv", "options": {"version": "2"}})
    for name in ("reports", "payroll"):
        bao.do("POST", f"secret/data/{name}", {"data": {"password": f"of {name}"}})
    rule = 'path "secret/data/reports" { capabilities = ["read"] }'
    bao.do("PUT", "sys/policies/acl/reports", {"policy": rule})
    bao.do("POST", "sys/auth/jwt", {"type": "jwt"})
    bao.do("POST", "auth/jwt/config", {
        "oidc_discovery_url": issuer, "oidc_discovery_ca_pem": roots, "bound_issuer": issuer,
        "jwt_supported_algs": ["ES256"],
    })  # fmt: skip
    for role, owner in (("reports", "tester"), ("payroll", "somebody else")):
        bao.do("POST", f"auth/jwt/role/{role}", {
            "role_type": "jwt", "bound_audiences": ["openbao"],
            "user_claim": "/sluice/owner", "user_claim_json_pointer": True,
            "bound_claims": {"/sluice/owner": [owner]},
            "expiration_leeway": -1, "clock_skew_leeway": -1,
            "token_policies": ["reports"], "token_ttl": "10m", "token_max_ttl": "1h",
        })  # fmt: skip


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[tuple[LocalJwtAuthority, str, trustme.CA]]:
    """Provide a token authority whose documents a server of the test publishes as the gateway does."""
    authority, port = trustme.CA(), free_port("127.0.0.1")
    url = f"https://localhost:{port}"
    signing = LocalJwtAuthority(tmp_path, "bao.test", utc_now, issuer=url)
    signing.refresh()
    documents = documents_of(TokenKeysAnswer(issuer=url, jwks=signing.jwks().decode()))

    class Documents(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(documents[self.path])

        def log_message(self, *_: object) -> None:
            """Discard log messages."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    authority.issue_cert("localhost").configure_cert(context)
    with ThreadingHTTPServer(("127.0.0.1", port), Documents) as serving:
        serving.socket = context.wrap_socket(serving.socket, server_side=True)
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield signing, url, authority
        serving.shutdown()
        thread.join()


def test_openbao_verifies_tokens_with_the_published_documents(
    issuer: tuple[LocalJwtAuthority, str, trustme.CA],
) -> None:
    fetched()
    signing, url, authority = issuer
    driver, port = SpiffeId.driver("bao.test", "a" * 32), free_port()

    def token(audience: str = "openbao", owner: str = "tester", seconds: int = 60) -> str:
        claims = {"sluice": {"job": "a" * 32, "owner": owner}}
        return signing.sign(driver, [audience], dt.timedelta(seconds=seconds), claims)

    with openbao(trustme.CA(), "bao.test", port) as bao:
        set_up(bao, url, authority.cert_pem.bytes().decode())

        def login(jwt: str, role: str = "reports") -> int:
            return bao.call("POST", "auth/jwt/login", {"role": role, "jwt": jwt})[0]

        answer = bao.do("POST", "auth/jwt/login", {"role": "reports", "jwt": token()})
        assert answer["auth"]["policies"] == ["default", "reports"]
        as_job = OpenBao(bao.url, bao.context, answer["auth"]["client_token"])
        assert as_job.do("GET", "secret/data/reports")["data"]["data"] == {"password": "of reports"}
        assert as_job.call("GET", "secret/data/payroll")[0] == 403

        head, payload, signature = token().split(".")
        assert login(f"{head}.{payload}.{signature[:-8]}{'A' * 8}") == 400
        assert login(token(audience="api")) == 400
        assert login(token(owner="somebody else")) == 400
        assert login(token(), role="payroll") == 400
        assert login(token(owner="somebody else"), role="payroll") == 200
        short = token(seconds=1)
        eventually(lambda: login(short) == 400, "the token has expired", 30)


@pytest.mark.cluster
def test_a_job_logs_in_as_itself_and_reads_what_its_owner_may_read(world: World) -> None:
    job_id = world.submit()
    job = world.cluster.wait_for_state(job_id, "FINISHED", "FAILED", seconds=300)
    log = world.cluster.sluice("jobs", "logs", job_id, "--source", "driver.stdout").stdout
    assert job["state"] == "FINISHED", (job.get("failure"), log)
    (line,) = (line for line in log.splitlines() if line.startswith("TOLD "))
    assert json.loads(line.removeprefix("TOLD ")) == {
        "login": 200,
        "policies": ["default", "reports"],
        "reports": {"password": "of reports"},
        "payroll": 403,
        "role of others": 400,
        "other audience": 400,
        "forged": 400,
    }
    # OpenBao was reached through the gateway, which knows whose job it was.
    hosts = {each["host"]: each["verdict"] for each in world.cluster.json("jobs", "connections", job_id)["egress"]}
    assert hosts == {"bao.test": "allowed"}

    # A stolen token ends with its job, within its minute.
    stolen = {"role": "reports", "jwt": (world.cluster.shared / "stolen").read_text()}
    eventually(lambda: world.bao.call("POST", "auth/jwt/login", stolen)[0] == 400, "the stolen token has expired", 120)
