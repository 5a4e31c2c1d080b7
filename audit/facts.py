"""What a listener negotiates: version, cipher suite, groups, chain. Facts for the report; checks judge them."""

from __future__ import annotations

from cryptography import x509

from sluice.audit.errors import WireError
from sluice.audit.model import TLS_KINDS, CertificateFacts, Negotiated
from sluice.audit.subject import Subject, uris_of
from sluice.audit.wire import (
    GROUPS,
    MODERN_SUITES,
    POST_QUANTUM_GROUPS,
    SIGNATURES,
    STRONG_GROUPS,
    SUITES,
    ClientHello,
    ServerHello,
    Version,
    name_of,
)
from sluice.core import CertificateRejected
from sluice.pki.inspect import summarize_certificate


def negotiated(subject: Subject) -> Negotiated | None:
    """What the listener negotiates with a client that offers all secure options; None without a handshake."""
    if subject.listener.kind not in TLS_KINDS or subject.unreachable:
        return None
    if subject.handshake is None:
        return _negotiated_before(subject)
    shown = subject.handshake
    groups = tuple(group for group in STRONG_GROUPS if _takes(subject, groups=(group,)))
    return Negotiated(
        version=Version(shown.version).label,
        suite=name_of(SUITES, shown.suite),
        group=name_of(GROUPS, shown.group),
        post_quantum_groups=tuple(name_of(GROUPS, group) for group in groups if group in POST_QUANTUM_GROUPS),
        groups=tuple(name_of(GROUPS, group) for group in groups),
        suites=tuple(name_of(SUITES, suite) for suite in MODERN_SUITES if _takes(subject, suites=(suite,))),
        alpn=shown.alpn,
        signature=name_of(SIGNATURES, shown.signature) + ("" if shown.signature_valid else " (does not verify)"),
        client_certificate_requested=shown.certificate_requested,
        stapled=shown.stapled,
        chain=tuple(_facts(subject, certificate) for certificate in shown.certificates),
    )


def _negotiated_before(subject: Subject) -> Negotiated | None:
    """The same for a TLS 1.2 server, as far as it is in clear text."""
    flight = subject.old_handshake
    if flight is None:
        return None
    return Negotiated(
        version=Version(flight.hello.version).label,
        suite=name_of(SUITES, flight.hello.suite),
        group=name_of(GROUPS, flight.group) if flight.group else "",
        post_quantum_groups=(),
        groups=(),
        suites=(),
        alpn="",
        signature="",
        client_certificate_requested=flight.certificate_requested,
        stapled=False,
        chain=tuple(_facts(subject, certificate) for certificate in flight.certificates),
    )


def _takes(subject: Subject, *, groups: tuple[int, ...] = (0x001D, 0x0017), suites: tuple[int, ...] = ()) -> bool:
    """Offer only these groups, without a key share: a server that accepts one asks for a share (RFC 8446, 4.2.8)."""
    hello = ClientHello(groups=groups, suites=suites or MODERN_SUITES)
    try:
        answer = subject.offer(hello)
    except (OSError, WireError):
        return False
    return isinstance(answer, ServerHello) and answer.group in groups


def _facts(subject: Subject, certificate: x509.Certificate) -> CertificateFacts:
    try:
        summary = summarize_certificate(certificate, subject.options.clock())
    except CertificateRejected as error:
        return CertificateFacts(
            subject=certificate.subject.rfc4514_string(),
            issuer=certificate.issuer.rfc4514_string(),
            key=error.what,
            signature="",
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
            spiffe_ids=uris_of(certificate),
            sha256="",
        )
    return CertificateFacts(
        subject=summary.subject,
        issuer=summary.issuer,
        key=summary.key,
        signature=summary.signature,
        not_before=summary.not_before,
        not_after=summary.not_after,
        spiffe_ids=summary.spiffe_ids,
        sha256=summary.sha256,
    )
