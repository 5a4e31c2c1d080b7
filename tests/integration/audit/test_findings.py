"""Each weakness gives exactly its own finding, and our own listener gives none."""

from __future__ import annotations

import json
import socket
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from msgspec.structs import replace as replace_struct

from sluice.audit.catalogue import CHECKS
from sluice.audit.identities import HomeIdentities, log_path
from sluice.audit.model import Kind, Outcome, Report
from sluice.audit.runner import run_check
from sluice.audit.subject import Subject
from sluice.pki.authorities.signing import to_pem
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.channels import Channel
from sluice.pki.x509.keys import signature_hash
from sluice.pki.x509.profiles import AuthorityKind
from tests.free_ports import free_port
from tests.hostile import TestPki
from tests.integration.audit.conftest import OPTIONS, QUICK, audited, found, listener_at, only
from tests.weak_servers import drain, http_answer, server_context, serving, speak

ALLOW_CLIENT_RENEGOTIATION = 1 << 8
"""SSL_OP_ALLOW_CLIENT_RENEGOTIATION, for which Python has no name."""
MODERN_CIPHERS = "ECDHE+AESGCM"


def passed(report: Report) -> set[str]:
    """Return the ids of the checks that passed."""
    return {result.check for result in report.results if result.outcome is Outcome.PASSED}


def test_our_own_listener_gives_no_finding_and_every_applicable_check_examines_it(
    honest: tuple[str, int], identities: HomeIdentities
) -> None:
    report = audited(listener_at(honest), identities=identities)
    assert found(report) == set(), [result for result in report.results if result.outcome is Outcome.FINDING]
    silent = {result.check: result.seen for result in report.results if result.outcome is Outcome.NOT_EXAMINED}
    # no kernel table was read, nobody said which authorities are trusted, peers do not go by names, and rpc is not
    # the channel of one job
    assert set(silent) == {"LSN-02", "CRT-09", "CRT-10", "MTL-16"}, silent


def test_the_negotiated_tls_parameters_are_reported(honest: tuple[str, int]) -> None:
    (listener,) = audited(listener_at(honest), checks=only("TLS-02")).listeners
    shown = listener.negotiated
    assert shown is not None
    assert (shown.version, shown.group, shown.alpn) == ("TLS 1.3", "x25519", "h2")
    assert shown.client_certificate_requested
    assert "secp256r1" in shown.groups
    assert shown.suites[0] == "TLS_AES_128_GCM_SHA256"
    assert next(each.spiffe_ids for each in shown.chain) == ("spiffe://sluice.local/jobmanager/jobmanager-1",)
    assert len(shown.chain) == 2


def test_a_plaintext_port_is_found_and_its_failed_handshakes_do_not_pass_client_checks() -> None:
    with serving(http_answer("200 OK", body="hello")) as address:
        report = audited(listener_at(address), checks=QUICK)
    assert found(report) == {"TLS-01"}
    assert not {each for each in passed(report) if each.startswith("MTL")}


def test_a_listener_that_speaks_first_in_plaintext_is_found() -> None:
    def greet(connection: socket.socket) -> None:
        connection.sendall(b"220 welcome\r\n")
        connection.shutdown(socket.SHUT_WR)  # otherwise it is listened to for as long as more may come
        drain(connection)

    with serving(greet) as address:
        options = replace(OPTIONS, listen=20.0)
        assert found(audited(listener_at(address), checks=QUICK, options=options)) == {"TLS-01"}


def test_a_listener_that_never_answers_a_handshake_does_not_pass() -> None:
    options = replace(OPTIONS, timeout=0.3)
    with serving() as address:
        assert "TLS-02" in found(audited(listener_at(address), checks=only("TLS-02"), options=options))


def test_a_missing_declared_listener_is_a_finding_and_no_check_passes() -> None:
    report = audited(listener_at(("127.0.0.1", free_port())))
    assert found(report) == {"LSN-03"}
    assert not passed(report)
    assert {result.seen for result in report.results if result.check == "TLS-01"} == {"unreachable: Connection refused"}
    (listener,) = report.listeners
    assert listener.spoken == "unreachable"


def test_a_server_that_requests_no_client_certificate_is_found(server_directory: Path) -> None:
    with serving(context=server_context(server_directory, client=ssl.CERT_NONE)) as address:
        assert found(audited(listener_at(address), checks=QUICK)) == {"MTL-01"}


def test_a_server_with_optional_client_certificates_is_found(server_directory: Path) -> None:
    with serving(context=server_context(server_directory, client=ssl.CERT_OPTIONAL)) as address:
        assert found(audited(listener_at(address), checks=QUICK)) == {"MTL-02"}


def test_a_public_server_without_client_certificates_gives_no_finding(server_directory: Path) -> None:
    with serving(context=server_context(server_directory, client=ssl.CERT_NONE)) as address:
        report = audited(listener_at(address, Kind.SERVER, None), checks=QUICK)
    assert found(report) == set()


def test_a_server_that_checks_the_chain_alone_is_found(server_directory: Path, identities: HomeIdentities) -> None:
    """Most software with "mutual TLS" does: no role, no second identity is checked. The trust domain is in the
    authority's name constraints, which OpenSSL enforces by itself.
    """
    checks = [check for check in QUICK if check.id != "MTL-13"]
    with serving(context=server_context(server_directory)) as address:
        report = audited(listener_at(address, channel=Channel.RPC), identities=identities, checks=checks)
    assert found(report) == {"MTL-15", "MTL-20"}


def without_name_constraints(pki: TestPki) -> bytes:
    """Return the internal authority's certificate as earlier versions issued it.

    It has the same key and name, but no name constraints.
    """
    store = AuthorityStore(pki.home.pki)
    root, present = store.load(AuthorityKind.ROOT), store.certificate(AuthorityKind.INTERNAL)
    builder = (
        x509.CertificateBuilder()
        .subject_name(present.subject)
        .issuer_name(present.issuer)
        .public_key(present.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(present.not_valid_before_utc)
        .not_valid_after(present.not_valid_after_utc)
    )
    for extension in present.extensions:
        if not isinstance(extension.value, x509.NameConstraints):
            builder = builder.add_extension(extension.value, extension.critical)
    return to_pem(builder.sign(root.key, signature_hash(root.key)))


def test_a_server_without_name_constraints_admits_foreign_trust_domains_and_is_found(
    pki: TestPki, server_directory: Path, identities: HomeIdentities
) -> None:
    with serving(context=server_context(server_directory, trust=without_name_constraints(pki))) as address:
        assert found(audited(listener_at(address), identities=identities, checks=only("MTL-19"))) == {"MTL-19"}


def test_a_server_that_trusts_the_root_admits_edge_certificates_and_is_found(
    pki: TestPki, server_directory: Path, identities: HomeIdentities
) -> None:
    trust = b"".join(
        (pki.home.pki / "authorities" / kind / "cert.pem").read_bytes() for kind in ("root", "internal", "edge")
    )
    with serving(context=server_context(server_directory, trust=trust)) as address:
        assert found(audited(listener_at(address), identities=identities, checks=only("MTL-17"))) == {"MTL-17"}


def test_a_server_that_checks_no_crl_is_found(
    server_directory: Path, identities: HomeIdentities, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.audit.checks.peers.REVOCATION_SECONDS", 0.2)
    with serving(context=server_context(server_directory)) as address:
        assert found(audited(listener_at(address), identities=identities, checks=only("MTL-13"))) == {"MTL-13"}


def test_a_server_that_refuses_everybody_is_found(server_directory: Path, identities: HomeIdentities) -> None:
    trust = (server_directory / "chain.pem").read_bytes().partition(b"-----END CERTIFICATE-----\n")
    with serving(context=server_context(server_directory, trust=trust[0] + trust[1])) as address:
        assert found(audited(listener_at(address), identities=identities, checks=QUICK)) == {"MTL-10"}


def test_every_audit_identity_is_logged_to_a_private_file_without_its_key(
    pki: TestPki, identities: HomeIdentities
) -> None:
    with serving() as address:
        credential = Subject(listener_at(address), OPTIONS, identities).identities
        assert credential is identities
    lines = [json.loads(line) for line in log_path(pki.home).read_text().splitlines()]
    assert lines
    assert log_path(pki.home).stat().st_mode & 0o077 == 0
    assert all(line["not_after"] > line["issued_at"] or line["case"] == "expired" for line in lines)
    assert "PRIVATE KEY" not in log_path(pki.home).read_text()


@pytest.mark.parametrize(
    ("weakness", "expected"),
    [
        pytest.param("tls12", {"TLS-04", "TLS-09"}, id="TLS 1.2 beside 1.3"),
        pytest.param("tls12-only", {"TLS-02", "TLS-09"}, id="TLS 1.2 only"),
        pytest.param("tls10", {"TLS-03", "TLS-04", "TLS-05", "TLS-09", "TLS-19"}, id="everything since TLS 1.0"),
        pytest.param("weak-suites", {"TLS-04", "TLS-05", "TLS-09"}, id="CBC suites"),
        pytest.param("weak-group", {"TLS-02", "TLS-06"}, id="P-224"),
        pytest.param("tickets", {"TLS-09"}, id="session tickets"),
        pytest.param("alpn", {"TLS-14"}, id="any application protocol"),
        pytest.param("sni", {"TLS-13"}, id="another certificate for another name"),
        pytest.param("leaf-alone", {"CRT-06"}, id="intermediate missing"),
    ],
)
def test_each_server_weakness_gives_exactly_its_finding(
    weakness: str, expected: set[str], pki: TestPki, server_directory: Path
) -> None:
    with serving(context=_weak(weakness, pki, server_directory)) as address:
        checks = [check for check in QUICK if Kind.SERVER in check.kinds]
        options = replace(OPTIONS, listen=3.0 if weakness == "tickets" else OPTIONS.listen)
        assert found(audited(listener_at(address, Kind.SERVER, None), checks=checks, options=options)) == expected


def test_a_tls12_server_that_requests_no_client_certificate_is_found(server_directory: Path) -> None:
    context = server_context(
        server_directory, client=ssl.CERT_NONE, minimum=ssl.TLSVersion.TLSv1_2, maximum=ssl.TLSVersion.TLSv1_2
    )
    with serving(context=context) as address:
        assert found(audited(listener_at(address), checks=only("MTL-01", "MTL-02"))) == {"MTL-01"}


def test_the_client_certificate_checks_examine_a_tls12_server_too(server_directory: Path) -> None:
    tls12 = ssl.TLSVersion.TLSv1_2
    clients = only("MTL-01", "MTL-02", "MTL-03", "MTL-04", "CRT-02", "CRT-06", "CRT-09")
    for verify, expected in ((ssl.CERT_REQUIRED, set()), (ssl.CERT_OPTIONAL, {"MTL-02"})):
        context = server_context(server_directory, client=verify, minimum=tls12, maximum=tls12)
        with serving(context=context) as address:
            report = audited(listener_at(address), checks=clients)
        assert found(report) == expected
        assert {"MTL-03", "MTL-04", "CRT-02", "CRT-06"} <= passed(report)
        (listener,) = report.listeners
        assert listener.negotiated is not None
        assert listener.negotiated.version == "TLS 1.2"
        assert len(listener.negotiated.chain) == 2


@pytest.mark.parametrize(("allowed", "expected"), [(False, set()), (True, {"TLS-18"})])
def test_a_server_that_allows_client_renegotiation_is_found(
    allowed: bool, expected: set[str], server_directory: Path
) -> None:
    tls12 = ssl.TLSVersion.TLSv1_2
    context = server_context(server_directory, client=ssl.CERT_NONE, minimum=tls12, maximum=tls12)
    context.options |= ALLOW_CLIENT_RENEGOTIATION if allowed else ssl.OP_NO_RENEGOTIATION
    with serving(context=context) as address:
        report = audited(listener_at(address, Kind.SERVER, None), checks=only("TLS-18"))
    assert found(report) == expected
    assert found(report) | passed(report) == {"TLS-18"}


def _weak(weakness: str, pki: TestPki, directory: Path) -> ssl.SSLContext:
    none, tls12 = ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    context = server_context(directory, client=none)
    context.minimum_version = (
        tls12 if weakness in {"tls12", "tls12-only", "weak-suites", "weak-group"} else (context.minimum_version)
    )
    match weakness:
        case "tls12":
            context.set_ciphers(MODERN_CIPHERS)
        case "tls12-only":
            context.maximum_version = tls12
            context.set_ciphers(MODERN_CIPHERS)
        case "tls10":
            context.set_ciphers("ALL:@SECLEVEL=0")
            context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        case "weak-suites":
            context.set_ciphers("ECDHE+AES:@SECLEVEL=0")
        case "weak-group":
            context.set_ciphers(MODERN_CIPHERS)
            context.set_ecdh_curve("secp224r1")
        case "tickets":
            context = server_context(directory, client=none, tickets=2)
        case "alpn":
            context.set_alpn_protocols(["sluice-audit/0"])
        case "sni":
            other = server_context(pki.edge_server(), client=none)
            context.sni_callback = lambda connection, name, _: setattr(connection, "context", other) if name else None
        case "leaf-alone":
            leaf = directory / "leaf.pem"
            leaf.write_bytes(b"".join((directory / "chain.pem").read_bytes().partition(b"END CERTIFICATE-----\n")[:2]))
            context = server_context(directory, client=none, chain="leaf.pem")
    return context


@pytest.mark.parametrize("check", ["TLS-11", "TLS-12", "TLS-17"])
def test_a_listener_that_waits_forever_for_a_handshake_is_found(check: str) -> None:
    options = replace(OPTIONS, timeout=0.3, handshake_limit=0.5)
    with serving() as address:
        assert found(audited(listener_at(address), checks=only(check), options=options)) == {check}


def test_a_listener_that_no_longer_accepts_connections_during_the_audit_is_found(server_directory: Path) -> None:
    with serving(context=server_context(server_directory)) as address:
        subject = Subject(listener_at(address), OPTIONS)
        assert subject.handshake is not None
    (check,) = only("TLS-16")
    assert run_check(subject, check).outcome is Outcome.FINDING


@pytest.mark.parametrize("check", ["TLS-03", "TLS-16"])
def test_a_listener_of_a_job_that_has_ended_meanwhile_is_not_examined(server_directory: Path, check: str) -> None:
    """Neither a pass nor a finding, unlike a process of the cluster that no longer answers."""
    with serving(context=server_context(server_directory)) as address:
        listener = listener_at(address)
        subjects = [Subject(each, OPTIONS) for each in (listener, replace_struct(listener, job_id="a" * 32))]
        assert all(subject.handshake is not None for subject in subjects)
    (examined,) = only(check)
    of_cluster, of_job = (run_check(subject, examined) for subject in subjects)
    assert of_cluster.outcome is Outcome.FINDING
    assert of_job.outcome is Outcome.NOT_EXAMINED
    assert "its job has ended meanwhile" in of_job.seen


def test_check_ids_are_unique_and_every_check_is_fully_described() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.title
        assert check.expected
        assert check.references
        assert check.remedy
        assert check.kinds


def test_a_server_that_answers_a_check_with_garbage_does_not_pass_it(server_directory: Path) -> None:
    """The server completes the handshake of the first client, and answers all others with garbage."""
    clients = iter((True,))

    def once(connection: socket.socket) -> None:
        if next(clients, False):
            with server_context(server_directory).wrap_socket(connection, server_side=True) as secured:
                speak(secured)
        connection.recv(1 << 12)
        connection.sendall(b"\x16\x03\x03\x00\x08\x02\x00\x00\x04\xff\xff\xff\xff")

    with serving(once) as address:
        subject = Subject(listener_at(address), OPTIONS)
        assert subject.handshake is not None
        (check,) = only("MTL-02")
        assert run_check(subject, check).outcome is Outcome.FINDING
