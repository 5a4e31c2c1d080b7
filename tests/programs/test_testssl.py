"""testssl.sh and the audit examine the same listeners, and agree on every point that both examine."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from sluice.audit.catalogue import CHECKS
from sluice.audit.model import (
    Kind,
    Listener,
    Outcome,
    Report,
)
from sluice.audit.runner import examine
from sluice.audit.subject import Options, Subject
from sluice.pki.spiffe_id import Role
from tests.free_ports import free_ports
from tests.hostile import TestPki
from tests.integration.cluster.conftest import LocalCluster, start_cluster
from tests.integration.programs.ports import is_open, running, tail, until
from tests.programs.conftest import program
from tests.system.audit.libssl import cache_no_sessions
from tests.weak_servers import http_answer, server_context, serving

pytestmark = pytest.mark.timeout(1200)

TESTSSL_SECONDS = 900
UNHURRIED = frozenset({"TLS-11", "TLS-12", "TLS-17"})
"""Limits of handshakes, which testssl.sh does not look at and nginx leaves to its timeouts."""
ALLOW_CLIENT_RENEGOTIATION = 1 << 8
"""SSL_OP_ALLOW_CLIENT_RENEGOTIATION, for which Python has no name."""
WEAK_CATEGORIES = ("NULL", "aNULL", "EXPORT", "LOW", "3DES_IDEA", "AVERAGE")
VERSIONS = {"SSLv3": "SSL 3.0", "TLS1": "TLS 1.0", "TLS1_1": "TLS 1.1", "TLS1_2": "TLS 1.2", "TLS1_3": "TLS 1.3"}
GROUPS = {"prime256v1": "secp256r1", "X25519": "x25519", "X448": "x448"}
"""Names that differ."""

NGINX = """\
daemon off;
master_process off;
pid {root}/pid;
error_log stderr info;
events {{}}
http {{
    access_log off;
    client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;
    ssl_certificate {identity}/chain.pem;
    ssl_certificate_key {identity}/key.pem;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_protocols {protocols};
        ssl_ciphers {ciphers};
        ssl_session_tickets {tickets};
        ssl_session_cache {cache};
        location / {{ return 200 "served"; }}
    }}
}}
"""


@dataclass(frozen=True)
class Points:
    """The findings of testssl.sh or of the audit about one listener, in a common form."""

    versions: frozenset[str]
    weak_suites: bool
    suites: frozenset[str]
    """Of TLS 1.3."""
    groups: frozenset[str]
    """Of TLS 1.3, without those that testssl.sh does not know."""
    resumption: bool
    secure_renegotiation: bool
    client_renegotiation: bool
    compression: bool
    fingerprint: str
    key_bits: int
    digest: str
    not_after: str
    chain: int
    in_order: bool


def by_testssl(found: dict[str, dict[str, str]]) -> Points:
    """Convert testssl.sh's JSON report, a mapping from ids to findings."""

    def says(name: str) -> str:
        return found[name]["finding"] if name in found else ""

    versions = frozenset(label for name, label in VERSIONS.items() if says(name).startswith("offered"))
    modern = "TLS 1.3" in versions
    suites = {suite for suite in says("PFS_ciphers").split() if suite.startswith("TLS_")}
    groups = {GROUPS.get(group, group) for group in says("PFS_ECDHE_curves").split()}
    return Points(
        versions=versions,
        weak_suites=any(says(f"cipherlist_{name}").startswith("offered") for name in WEAK_CATEGORIES),
        suites=frozenset(suites),
        groups=frozenset(groups) if modern else frozenset(),
        resumption=any(says(f"sessionresumption_{name}").startswith("supported") for name in ("ticket", "ID")),
        secure_renegotiation=found["secure_renego"]["severity"] == "OK",
        client_renegotiation=found["secure_client_renego"]["severity"] != "OK",
        compression=found["CRIME_TLS"]["severity"] != "OK",
        fingerprint=says("cert_fingerprintSHA256").replace(":", "").lower(),
        key_bits=_number(says("cert_keySize")),
        digest=_digest(says("cert_signatureAlgorithm")),
        not_after=says("cert_notAfter"),
        chain=int(says("certs_countServer")),
        in_order=says("certs_list_ordering_problem") == "no",
    )


def by_audit(report: Report) -> Points:
    """Convert a report of our audit."""
    results = {result.check: result for result in report.results}

    def found(check: str) -> bool:
        return results[check].outcome is Outcome.FINDING

    (listener,) = report.listeners
    shown = listener.negotiated
    assert shown is not None
    leaf = shown.chain[0]
    versions = {label for label in VERSIONS.values() if found("TLS-03") and label in results["TLS-03"].seen}
    versions |= {"TLS 1.2"} if found("TLS-04") or "TLS 1.2: taken" in results["TLS-02"].seen else set()
    versions |= {"TLS 1.3"} if not found("TLS-02") else set()
    known = {group for group in shown.groups if not group.startswith("ffdhe")} - set(shown.post_quantum_groups)
    return Points(
        versions=frozenset(versions),
        weak_suites=found("TLS-05") or found("TLS-19"),
        suites=frozenset(shown.suites),
        groups=frozenset(known),
        resumption=found("TLS-09"),
        secure_renegotiation=not found("TLS-08"),
        client_renegotiation=found("TLS-18"),
        compression=found("TLS-07"),
        fingerprint=leaf.sha256.replace(":", "").lower(),
        key_bits=_number(leaf.key),
        digest=_digest(leaf.signature),
        not_after=leaf.not_after.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M"),
        chain=len(shown.chain),
        in_order=not found("CRT-06"),
    )


def _number(text: str) -> int:
    found = re.search(r"\d{3,}", text)
    assert found is not None, text
    return int(found.group())


def _digest(algorithm: str) -> str:
    found = re.search(r"sha\d+", algorithm.lower().replace("-", ""))
    assert found is not None, algorithm
    return found.group()


def run_testssl(address: tuple[str, int], output: Path) -> dict[str, dict[str, str]]:
    """Run testssl.sh on ``address``; return its findings by id."""
    host, port = address
    data = program("testssl/etc").absolute() / "testssl"
    done = subprocess.run(
        [
            *("bash", program("testssl/usr/bin/testssl").absolute(), "--quiet", "--color", "0", "--warnings", "batch"),
            *("--fast", "--nodns", "none", "-p", "-s", "-f", "-S", "-R", "-C"),
            *("--jsonfile", output, f"{host}:{port}"),
        ],
        env={"PATH": os.environ["PATH"], "HOME": str(output.parent), "TESTSSL_INSTALL_DIR": str(data), "TZ": "UTC"},
        cwd=output.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TESTSSL_SECONDS,
        check=False,
    )
    assert output.exists(), done.stdout + done.stderr
    return {each["id"]: each for each in json.loads(output.read_text())}


def audited(address: tuple[str, int], kind: Kind) -> Report:
    """Audit the listener at ``address``."""
    listener = Listener(name="examined", kind=kind, host=address[0], port=address[1])
    checks = [check for check in CHECKS if check.id not in UNHURRIED]
    return examine("beside testssl.sh", [Subject(listener, Options(timeout=30.0))], checks=checks)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Provide a real cluster with one TaskManager."""
    running_cluster = start_cluster(tmp_path_factory.mktemp("cluster") / "home", "--taskmanagers", "1")
    yield running_cluster
    running_cluster.sluice("down")


@contextlib.contextmanager
def nginx(
    root: Path, identity: Path, *, protocols: str, ciphers: str, tickets: str = "off", cache: str = "off"
) -> Iterator[tuple[str, int]]:
    """nginx with these settings."""
    root.mkdir()
    (port,) = free_ports(1)
    configuration = root / "nginx.conf"
    settings = {"protocols": protocols, "ciphers": ciphers, "tickets": tickets, "cache": cache}
    configuration.write_text(NGINX.format(root=root, identity=identity, port=port, **settings))
    argv: list[str | Path] = [program("nginx/usr/sbin/nginx").absolute(), "-c", configuration]
    with running(argv, root / "log"):
        until(lambda: is_open(port), lambda: tail(root / "log"))
        yield "127.0.0.1", port


def renegotiating(identity: Path) -> ssl.SSLContext:
    """Return a TLS 1.2 server context that lets clients renegotiate."""
    tls12 = ssl.TLSVersion.TLSv1_2
    context = server_context(identity, client=ssl.CERT_NONE, minimum=tls12, maximum=tls12)
    context.set_ciphers("ECDHE+AESGCM")
    context.options &= ~ssl.OP_NO_RENEGOTIATION
    context.options |= ALLOW_CLIENT_RENEGOTIATION
    cache_no_sessions(context)  # whether they can be taken up again would depend on how connections end
    return context


Seen = dict[str, tuple[Points, Points]]
LISTENERS = ("rpc", "blob", "edge", "nginx of today", "nginx of old", "renegotiating")


@pytest.fixture(scope="module")
def seen(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Provide the findings of both programs for each listener.

    testssl.sh waits most of the time, so all runs are concurrent.
    """
    root = tmp_path_factory.mktemp("testssl")
    identity = TestPki(root / "pki").process(Role.GATEWAY).directory
    published = {
        name: json.loads((cluster.home / "run" / "endpoints" / f"{name}.json").read_text())
        for name in ("jobmanager", "envoy")
    }
    with ExitStack() as stack:
        today = nginx(
            root / "today",
            identity,
            protocols="TLSv1.2 TLSv1.3",
            ciphers="ECDHE+AESGCM",
            tickets="on",
            cache="shared:today:1m",
        )
        old = nginx(root / "old", identity, protocols="TLSv1 TLSv1.1 TLSv1.2", ciphers="ALL:@SECLEVEL=0")
        places: dict[str, tuple[tuple[str, int], Kind]] = {
            "rpc": (tuple(published["jobmanager"]["rpc"]), Kind.MUTUAL),
            "blob": (tuple(published["jobmanager"]["blob"]), Kind.MUTUAL),
            "edge": ((published["envoy"]["host"], published["envoy"]["port"]), Kind.SERVER),
            "nginx of today": (stack.enter_context(today), Kind.SERVER),
            "nginx of old": (stack.enter_context(old), Kind.SERVER),
            "renegotiating": (
                stack.enter_context(serving(http_answer("200 OK", body="served"), renegotiating(identity))),
                Kind.SERVER,
            ),
        }
        assert tuple(places) == LISTENERS
        with ThreadPoolExecutor(len(places)) as pool:
            theirs: dict[str, Future[dict[str, dict[str, str]]]] = {
                name: pool.submit(run_testssl, address, root / f"{name.replace(' ', '-')}.json")
                for name, (address, _) in places.items()
            }
            ours = {name: audited(address, kind) for name, (address, kind) in places.items()}
        yield {name: (by_testssl(theirs[name].result()), by_audit(ours[name])) for name in places}


@pytest.mark.parametrize("name", LISTENERS)
def test_testssl_and_the_audit_report_the_same_about_a_listener(name: str, seen: Seen) -> None:
    theirs, ours = seen[name]
    assert asdict(ours) == asdict(theirs)


def test_the_compared_listeners_differ_from_each_other(seen: Seen) -> None:
    """Without this, two programs that see nothing at all would agree as well."""
    points = {name: ours for name, (_, ours) in seen.items()}
    assert points["rpc"].versions == points["edge"].versions == {"TLS 1.3"}
    assert points["nginx of today"].versions == {"TLS 1.2", "TLS 1.3"}
    assert points["nginx of today"].resumption
    assert {"TLS 1.0", "TLS 1.1"} < points["nginx of old"].versions
    assert points["nginx of old"].weak_suites
    assert points["renegotiating"].client_renegotiation
    assert not points["rpc"].client_renegotiation
    assert points["rpc"].groups > points["edge"].groups
