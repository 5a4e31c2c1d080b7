"""Whom a listener admits: everyone who must be refused, one at a time, and somebody who must not."""

from __future__ import annotations

from cryptography import x509

from audit import rogue
from audit.checks import references as ref
from audit.errors import WireError
from audit.model import Check, Evidence, Kind, Severity, finding, not_examined, passed
from audit.subject import Subject
from audit.wire.client import Credential

_MUTUAL = frozenset({Kind.MUTUAL})
_REQUIRE = (
    "Require and verify client certificates "
    "(ssl.CERT_REQUIRED; needClientAuth in Java; require_client_certificate in Envoy)."
)
_NO_TLS13 = "no TLS 1.3 handshake is possible here"
_NOBODY_ASKED = "it asks nobody for a certificate"


def _requested(subject: Subject) -> Evidence:
    done = "TLS 1.3 handshake; looked for a CertificateRequest in the server's flight"
    if subject.handshake is None:
        return not_examined(_NO_TLS13)
    if subject.handshake.certificate_requested:
        return passed(done, "a CertificateRequest")
    return finding(done, "no CertificateRequest: client certificates are not requested")


def _no_certificate(subject: Subject) -> Evidence:
    return _must_refuse(subject, None, "with an empty certificate list")


def _self_signed(subject: Subject) -> Evidence:
    return _must_refuse(subject, rogue.self_signed(subject.wish()), f"with a self-signed leaf for {subject.peer_uri}")


def _foreign(subject: Subject) -> Evidence:
    credential = rogue.forge(subject.wish(), rogue.foreign_authority(subject.options.clock()))
    return _must_refuse(subject, credential, f"with a leaf for {subject.peer_uri} from an authority of the audit's own")


def _impostor(subject: Subject) -> Evidence:
    genuine = _issuer_shown(subject)
    if genuine is None:
        return not_examined("the listener shows no certificate of its issuer to imitate")
    credential = rogue.forge(subject.wish(), rogue.impostor_authority(genuine, subject.options.clock()))
    return _must_refuse(
        subject, credential, "with a leaf from an authority with name, serial number and key identifier of the real one"
    )


def _without_intermediate(subject: Subject) -> Evidence:
    signed = rogue.forge(subject.wish(), rogue.foreign_authority(subject.options.clock()))
    return _must_refuse(
        subject, rogue.without_intermediate(signed), "with a foreign leaf alone, its intermediate missing"
    )


def _must_refuse(subject: Subject, credential: Credential | None, how: str) -> Evidence:
    """Connect and read on: TLS 1.3 tells of a refusal after the client's handshake is complete."""
    if subject.handshake is None:
        return not_examined(_NO_TLS13)
    if not subject.handshake.certificate_requested:
        return not_examined(_NOBODY_ASKED)
    done = f"TLS 1.3 handshake {how}, then read for up to {subject.options.patience:.1f} s"
    try:
        verdict = subject.attempt(credential)
    except WireError as error:
        return not_examined(f"the handshake came to nothing: {error.what}")
    if verdict.refused:
        return passed(done, f"refused: {verdict}")
    return finding(done, f"admitted: {verdict}")


def _issuer_shown(subject: Subject) -> x509.Certificate | None:
    certificates = subject.handshake.certificates if subject.handshake else ()
    return certificates[1] if len(certificates) > 1 else None


CHECKS = (
    Check(
        id="MTL-01",
        title="Client certificates are requested",
        severity=Severity.CRITICAL,
        kinds=_MUTUAL,
        expected="the server asks every client for a certificate",
        references=(ref.RFC8446_CLIENT_AUTH, ref.NIST_CLIENT_AUTH, ref.ASVS_TRANSPORT),
        remedy=_REQUIRE + " Stock Spark cannot with spark.ssl.rpc: it needs a security provider that insists.",
        run=_requested,
    ),
    Check(
        id="MTL-02",
        title="A client without a certificate is refused",
        severity=Severity.CRITICAL,
        kinds=_MUTUAL,
        expected="alert certificate_required, or the connection ends before anything is exchanged",
        references=(ref.RFC8446_CLIENT_AUTH, ref.RFC8446_ALERTS, ref.NIST_CLIENT_AUTH),
        remedy="Make client certificates mandatory, not optional. " + _REQUIRE,
        run=_no_certificate,
    ),
    Check(
        id="MTL-03",
        title="A self-signed client is refused",
        severity=Severity.CRITICAL,
        kinds=_MUTUAL,
        expected="the connection is refused",
        references=(ref.RFC8446_CLIENT_AUTH, ref.RFC5280, ref.ASVS_TRANSPORT),
        remedy="Verify the client's chain against the internal authority; never accept a certificate for its own sake.",
        run=_self_signed,
    ),
    Check(
        id="MTL-04",
        title="A client of a foreign authority is refused",
        severity=Severity.CRITICAL,
        kinds=_MUTUAL,
        expected="the connection is refused",
        references=(ref.RFC8446_CLIENT_AUTH, ref.RFC5280, ref.ASVS_TRANSPORT),
        remedy="Trust the internal authority alone: no system trust store, no trust-all manager.",
        run=_foreign,
    ),
    Check(
        id="MTL-05",
        title="A client of an impostor with our authority's names is refused",
        severity=Severity.CRITICAL,
        kinds=_MUTUAL,
        expected="the connection is refused: names prove nothing, signatures do",
        references=(ref.RFC5280, ref.RFC8446_CLIENT_AUTH),
        remedy="Verify signatures up to the trust anchor; do not compare issuer names or key identifiers.",
        run=_impostor,
    ),
    Check(
        id="MTL-06",
        title="A client whose chain cannot be built is refused",
        severity=Severity.CRITICAL,
        kinds=_MUTUAL,
        expected="the connection is refused",
        references=(ref.RFC5280, ref.RFC8446_CLIENT_AUTH),
        remedy="Refuse what does not chain up to a trust anchor with what the client showed.",
        run=_without_intermediate,
    ),
)
