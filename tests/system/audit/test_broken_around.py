"""A real gateway, auth service, home or executor with one weakness: the audit finds it, and nothing else."""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sluice.audit.catalogue import CHECKS
from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl import sign_crl
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind
from tests.system.audit.broken_cluster import BrokenCluster, poll

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

Findings = set[tuple[str, str]]
DOMAIN = "sluice.local"


@pytest.mark.parametrize(
    ("member", "weakness", "expected"),
    [
        ("auth", "edge: TLS 1.2", {("edge", "TLS-04")}),
        ("auth", "edge: TLS 1.2 only", {("edge", "TLS-02")}),
        ("auth", "edge: CBC", {("edge", "TLS-04"), ("edge", "TLS-05")}),
        ("auth", "edge: resumable", {("edge", "TLS-09")}),
        ("auth", "edge: open route", {("edge", "EDG-05")}),
        ("auth", "edge: telling header", {("edge", "EDG-06")}),
        ("auth", "edge: cookie without flags", {("edge", "EDG-08")}),
        ("auth", "every token", {("edge", "EDG-02")}),
        ("auth", "every right", {("edge", "EDG-03")}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_weakness_around_the_jobmanager_gives_exactly_its_own_finding(
    member: str, weakness: str, expected: Findings, broken: BrokenCluster
) -> None:
    broken.break_only(**{member: weakness})
    assert broken.findings() == expected


def test_a_gateway_without_authentication_is_found_although_rest_still_refuses(broken: BrokenCluster) -> None:
    broken.break_only(auth="edge: nobody is asked")
    assert broken.findings() == {("edge", "EDG-03"), ("home", "HOM-04")}  # nobody is granted anything


def test_a_gateway_without_authentication_before_a_trusting_rest_gives_all_edge_findings(broken: BrokenCluster) -> None:
    broken.break_only(auth="edge: nobody is asked", jobmanager="REST believes everybody")
    asked = {("edge", f"EDG-0{number}") for number in (1, 2, 3, 4, 5)}
    assert broken.findings() == asked | {("home", "HOM-04")}


def test_a_gateway_that_fails_open_is_found_by_its_configuration(broken: BrokenCluster) -> None:
    broken.break_only(auth="edge: fails open")
    assert broken.findings() == {("home", "HOM-04")}


def test_a_gateway_that_fails_open_is_found_when_its_auth_service_is_taken_away(broken: BrokenCluster) -> None:
    broken.break_only(auth="edge: fails open alone", jobmanager="REST believes everybody")
    assert broken.findings(intrusive=True) == {("home", "HOM-04"), ("edge", "EDG-10")}


def test_an_edge_without_a_handshake_timeout_is_found(broken: BrokenCluster) -> None:
    broken.break_only(auth="edge: endless handshake")
    assert broken.findings(CHECKS) == {("edge", "TLS-11")}


@contextlib.contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    """Change the permissions of ``path`` within the block."""
    before = path.stat().st_mode & 0o7777
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(before)


def key_for_everybody(home: Home) -> AbstractContextManager[None]:
    """A key that everybody may read."""
    return mode(home.identity(Role.TASKMANAGER, "taskmanager-1") / "key.pem", 0o644)


@contextlib.contextmanager
def token_for_everybody(home: Home) -> Iterator[None]:
    """An API token that everybody may read."""
    path = home.root / "token"
    path.write_text("slc_made_up")
    path.chmod(0o644)
    yield
    path.unlink()


def home_for_everybody(home: Home) -> AbstractContextManager[None]:
    """A home that everybody may look into."""
    return mode(home.root, 0o755)


@contextlib.contextmanager
def rest_for_everybody(home: Home) -> Iterator[None]:
    """REST, which authenticates nobody, can be reached past the gateway."""
    with mode(home.sockets, 0o711), mode(home.sockets / "rest.sock", 0o666):
        yield


@contextlib.contextmanager
def stale_list(home: Home) -> Iterator[None]:
    """A revocation list that nobody has renewed for days."""
    path = home.identity(Role.TASKMANAGER, "taskmanager-1") / "crl.pem"
    before = path.read_bytes()
    authority = AuthorityStore(home.pki).load(AuthorityKind.INTERNAL)
    signed_at = dt.datetime.now(dt.UTC) - dt.timedelta(days=3)
    path.write_bytes(sign_crl(authority, [], number=1, now=signed_at, lifetime=dt.timedelta(days=1)))
    yield
    path.write_bytes(before)


@contextlib.contextmanager
def long_lived(home: Home) -> Iterator[None]:
    """An identity for a quarter of a year."""
    issuer = LocalIssuer(home, PkiConfig(trust_domain=DOMAIN))
    directory = home.identity(Role.JOBMANAGER, "jobmanager-1")
    identity = SpiffeId.process(DOMAIN, Role.JOBMANAGER, "jobmanager-1")
    dns, ips = ["localhost"], ["127.0.0.1"]
    issuer.issue_to(directory, identity, dns=dns, ips=ips, lifetime=dt.timedelta(days=90))
    yield
    issuer.issue_to(directory, identity, dns=dns, ips=ips)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (key_for_everybody, {("home", "HOM-01")}),
        (token_for_everybody, {("home", "HOM-01")}),
        (home_for_everybody, {("home", "HOM-06")}),
        (rest_for_everybody, {("rest", "LSN-04"), ("home", "HOM-06")}),
        (stale_list, {("home", "HOM-03")}),
        (long_lived, {("rpc", "CRT-03"), ("blob", "CRT-03"), ("home", "HOM-02")}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_fault_in_the_files_of_a_home_is_found(
    spoil: Callable[[Home], AbstractContextManager[None]], expected: Findings, broken: BrokenCluster
) -> None:
    broken.break_only()
    with spoil(broken.home):
        assert broken.findings() == expected


def test_an_executor_that_admits_executors_of_other_jobs_is_found(broken: BrokenCluster, tmp_path: Path) -> None:
    broken.break_only()
    job = secrets.token_hex(16)
    directory, port = tmp_path / "identity", tmp_path / "port"
    issuer = LocalIssuer(broken.home, PkiConfig(trust_domain=DOMAIN))
    issuer.issue_to(directory, SpiffeId.executor(DOMAIN, job, 0))
    # its command line is how the audit knows an executor, and whose
    process = broken.run("other jobs", str(directory), str(port), "CoarseGrainedExecutorBackend", job)
    try:
        poll(port.exists, "the executor does not listen")
        broken.register("executor", process)
        assert broken.findings() == {("executor", "MTL-16")}
    finally:
        broken.unregister("executor")
        process.kill()
        process.wait()
