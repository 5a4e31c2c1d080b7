"""The report on a listener: handshakes with TLS 1.3 and 1.2, and the conclusions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import msgspec
from cryptography import x509

from sluice.core import CertificateRejected, PkiError
from sluice.pki.identities import IdentityMaterial, Known
from sluice.pki.inspect.chain_findings import certificate_findings, chain_findings, spiffe_findings
from sluice.pki.inspect.describe import CertificateSummary, summarize_certificate
from sluice.pki.inspect.findings import Finding, worst_first
from sluice.pki.inspect.live.address import Address
from sluice.pki.inspect.live.handshake import TLS12, TLS13, WEB_PROTOCOLS, Handshake, Hello, shake_hands
from sluice.pki.x509 import DAMAGED, Purpose, describe, load_certificate, was_issued_by

_VERSIONS = ((TLS13, "TLS 1.3"), (TLS12, "TLS 1.2"))


class HandshakeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One version: ``problem`` says why the handshake was not completed, ``verdict`` the reaction after it."""

    version: str
    completed: bool
    cipher: str
    group: str
    alpn: str
    client_certificate: bool
    issuers: tuple[str, ...]
    problem: str
    verdict: str


class LiveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A listener. ``chain`` is as sent; ``signed_by`` is the known authority at its end, empty if none."""

    address: str
    server_name: str
    identity: str
    handshakes: tuple[HandshakeSummary, ...]
    chain: tuple[CertificateSummary, ...]
    signed_by: str
    problems: tuple[Finding, ...]


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The report, and the certificates themselves."""

    summary: LiveSummary
    certificates: tuple[x509.Certificate, ...]


def inspect_live(
    address: Address,
    now: dt.datetime,
    *,
    server_name: str = "",
    alpn: tuple[str, ...] = (),
    identity: IdentityMaterial | None = None,
    authorities: Sequence[Known] = (),
) -> Live:
    """Connect twice and report; nothing is verified and nothing secret is sent.

    Raises:
        Unreachable: nobody answers there.
        CertificateRejected: something answers, and it speaks neither TLS 1.3 nor 1.2.
    """
    name = server_name or address.server_name
    seen = [
        (label, shake_hands(address, Hello(version=version, server_name=name, alpn=alpn, identity=identity)))
        for version, label in _VERSIONS
    ]
    if not any(each.cipher for _, each in seen):
        raise CertificateRejected(
            f"{address} completes no TLS handshake: {seen[0][1].problem}", "does it speak TLS 1.2 or 1.3?"
        )
    sent = next(each.chain for _, each in seen if each.cipher)
    certificates, problems = _parse(sent, now)
    return Live(
        summary=LiveSummary(
            address=str(address),
            server_name=name,
            identity="" if identity is None else str(identity.spiffe_id),
            handshakes=tuple(_summary(label, each) for label, each in seen),
            chain=tuple(summarize_certificate(each, now) for each in certificates),
            signed_by=_signed_by(certificates, authorities),
            problems=tuple(worst_first(problems + _chain(certificates))),
        ),
        certificates=tuple(certificates),
    )


def presented_chain(address: Address, *, server_name: str = "") -> list[x509.Certificate]:
    """The certificates that a listener sends, leaf first, with TLS 1.3 or else 1.2; nothing is verified.

    Raises:
        Unreachable: nobody answers there.
        CertificateRejected: it sends none, or one that cannot be read.
    """
    name = server_name or address.server_name
    problem = ""
    for version, _ in _VERSIONS:
        seen = shake_hands(address, Hello(version=version, server_name=name, alpn=WEB_PROTOCOLS))
        if seen.chain:
            try:
                return [load_certificate(der) for der in seen.chain]
            except DAMAGED as error:
                raise CertificateRejected(f"a certificate that {address} sends is damaged: {error}") from error
        problem = problem or seen.problem
    raise CertificateRejected(f"{address} sends no certificate: {problem}", "does it speak TLS 1.2 or 1.3?")


def _summary(label: str, seen: Handshake) -> HandshakeSummary:
    return HandshakeSummary(
        version=label,
        completed=not seen.problem,
        cipher=seen.cipher,
        group=seen.group,
        alpn=seen.alpn,
        client_certificate=seen.requested,
        issuers=seen.issuers,
        problem=seen.problem,
        verdict=seen.verdict,
    )


def _parse(sent: Sequence[bytes], now: dt.datetime) -> tuple[list[x509.Certificate], list[Finding]]:
    certificates, problems = [], []
    for number, der in enumerate(sent, 1):
        where = f"certificate {number} of the chain"
        try:
            certificate = load_certificate(der)
            summarize_certificate(certificate, now)
            problems += certificate_findings(certificate, where, now)
        except (PkiError, *DAMAGED) as error:
            problems.append(
                Finding.error(
                    "damaged",
                    where,
                    f"it cannot be read: {error}",
                    why="it breaks the rules of RFC 5280",
                    remedy="have it issued again",
                )
            )
            continue
        certificates.append(certificate)
    return certificates, problems


def _chain(certificates: Sequence[x509.Certificate]) -> list[Finding]:
    if not certificates:
        return []
    leaf = "certificate 1 of the chain"
    return chain_findings(certificates, "the chain") + spiffe_findings(certificates[0], leaf, Purpose.SERVER)


def _signed_by(certificates: Sequence[x509.Certificate], authorities: Sequence[Known]) -> str:
    """The first known authority that is in the chain, or signed a certificate of it."""
    for certificate in certificates:
        for known in authorities:
            if certificate == known.certificate or was_issued_by(certificate, known.certificate):
                return f"{known.name} ({describe(known.certificate)})"
    return ""
