"""Which clients a listener admits: each client that must be refused, and one that must be admitted."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from cryptography import x509

from sluice.audit import rogue
from sluice.audit.check import Check
from sluice.audit.checks import references as ref
from sluice.audit.model import Evidence, Kind, Severity, finding, not_examined, passed
from sluice.audit.subject import Case, Subject
from sluice.audit.wire import Credential
from sluice.pki import Channel

REVOCATION_SECONDS = 10.0
"""How long a listener may take to learn of a revocation; the cluster promises 5."""
_ASKING = frozenset({Kind.MUTUAL, Kind.SERVER})
_REQUIRE = (
    "Require and verify client certificates "
    "(ssl.CERT_REQUIRED; needClientAuth in Java; require_client_certificate in Envoy)."
)
_NO_HANDSHAKE = "no handshake is possible here"
_NOBODY_ASKED = "it asks nobody for a certificate"


def _requested(subject: Subject) -> Evidence:
    done = "TLS 1.3 handshake; looked for a CertificateRequest in the server's flight"
    if subject.handshake is None:
        done = "TLS 1.2 hello; looked for a CertificateRequest in the server's flight"
    if subject.certificate_requested is None:
        return not_examined(_NO_HANDSHAKE)
    if subject.certificate_requested:
        return passed(done, "a CertificateRequest")
    return finding(done, "no CertificateRequest: client certificates are not requested")


def _no_certificate(subject: Subject) -> Evidence:
    return _must_refuse(subject, None, "with an empty certificate list")


def _self_signed(subject: Subject) -> Evidence:
    return _must_refuse(
        subject, rogue.self_signed(subject.forged_leaf()), f"with a self-signed leaf for {subject.peer_uri}"
    )


def _foreign(subject: Subject) -> Evidence:
    credential = rogue.forge(subject.forged_leaf(), rogue.foreign_authority(subject.options.clock()))
    return _must_refuse(subject, credential, f"with a leaf for {subject.peer_uri} from an authority of the audit's own")


def _impostor(subject: Subject) -> Evidence:
    genuine = _issuer_shown(subject)
    if genuine is None:
        return not_examined("the listener shows no certificate of its issuer to imitate")
    credential = rogue.forge(subject.forged_leaf(), rogue.impostor_authority(genuine, subject.options.clock()))
    return _must_refuse(
        subject, credential, "with a leaf from an authority with name, serial number and key identifier of the real one"
    )


def _without_intermediate(subject: Subject) -> Evidence:
    signed = rogue.forge(subject.forged_leaf(), rogue.foreign_authority(subject.options.clock()))
    return _must_refuse(
        subject, rogue.without_intermediate(signed), "with a foreign leaf alone, its intermediate missing"
    )


def _wrong(case: Case) -> Callable[[Subject], Evidence]:
    """A check with an identity that the cluster's own authority certified, and that is wrong as ``case`` says."""

    def run(subject: Subject) -> Evidence:
        credential = _audit_identity(subject, case)
        if isinstance(credential, Evidence):
            return credential
        return _must_refuse(subject, credential, f"with an audit identity of the real authority: {case}")

    return run


def _two_identities(subject: Subject) -> Evidence:
    if subject.listener.channel is Channel.EGRESS:
        return not_examined("Envoy matches one of the names; the auth service refuses two, at each request")
    return _wrong(Case.TWO_IDENTITIES)(subject)


def _audit_identity(subject: Subject, case: Case) -> Credential | Evidence:
    if subject.identities is None:
        return not_examined("no audit identities: --with-identities needs the authorities' keys of a local home")
    credential = subject.identities.credential(case, subject.listener)
    return credential or not_examined("the question does not arise on this channel")


def _welcome(subject: Subject) -> Evidence:
    credential = _audit_identity(subject, Case.WELCOME)
    if isinstance(credential, Evidence):
        return credential
    if subject.certificate_requested is None:
        return not_examined(_NO_HANDSHAKE)
    done = f"{_handshake(subject)} as {subject.peer_uri}, which the channel table admits"
    verdict = subject.attempt(credential)
    if verdict.refused:
        return finding(done, f"refused: {verdict}; then what the refusals of the others prove is little")
    return passed(done, f"admitted: {verdict}")


def _revoked(subject: Subject) -> Evidence:
    credential = _audit_identity(subject, Case.REVOKED)
    if isinstance(credential, Evidence):
        return credential
    if subject.identities is None or not subject.certificate_requested:
        return not_examined(_NOBODY_ASKED)
    if (before := subject.attempt(credential)).refused:
        return not_examined(f"it was refused before it was revoked: {before}")
    done = f"connected with an audit identity, revoked it, and tried again for {REVOCATION_SECONDS:.0f} s"
    subject.identities.revoke(credential)
    started = time.monotonic()
    while (passing := time.monotonic() - started) < REVOCATION_SECONDS:
        verdict = subject.attempt(credential)
        if verdict.refused:
            return passed(done, f"refused {time.monotonic() - started:.1f} s after the revocation: {verdict}")
    return finding(done, f"still admitted after {passing:.1f} s")


def _must_refuse(subject: Subject, credential: Credential | None, how: str) -> Evidence:
    """Connect and keep reading: in TLS 1.3 a refusal comes after the client's handshake is complete."""
    if subject.certificate_requested is None:
        return not_examined(_NO_HANDSHAKE)
    if not subject.certificate_requested:
        return not_examined(_NOBODY_ASKED)
    done = f"{_handshake(subject)} {how}, then read for up to {subject.options.patience:.1f} s"
    verdict = subject.attempt(credential)
    if verdict.refused:
        return passed(done, f"refused: {verdict}")
    return finding(done, f"admitted: {verdict}", silence=verdict.silent)


def _issuer_shown(subject: Subject) -> x509.Certificate | None:
    return subject.certificates[1] if len(subject.certificates) > 1 else None


def _handshake(subject: Subject) -> str:
    return "TLS 1.2 handshake" if subject.handshake is None else "TLS 1.3 handshake"


_of_clients = partial(Check, kinds=frozenset({Kind.MUTUAL}))
"""A question to a listener that admits clients by their certificates."""
_must_be_refused = partial(_of_clients, severity=Severity.HIGH, expected="the connection is refused", ours_only=True)
"""An audit identity that is wrong in one way."""

CHECKS = (
    _of_clients(
        id="MTL-01",
        title="Client certificates are requested",
        problem="client certificates not requested",
        severity=Severity.CRITICAL,
        expected="the server asks every client for a certificate",
        references=(ref.RFC8446_CLIENT_AUTH, ref.NIST_CLIENT_AUTH, ref.ASVS_TRANSPORT),
        remedy=_REQUIRE + " Stock Spark cannot with spark.ssl.rpc: it needs a security provider that insists.",
        run=_requested,
    ),
    _of_clients(
        id="MTL-02",
        title="A client without a certificate is refused",
        problem="client without a certificate accepted",
        severity=Severity.CRITICAL,
        expected="alert certificate_required, or the connection ends before anything is exchanged",
        references=(ref.RFC8446_CLIENT_AUTH, ref.RFC8446_ALERTS, ref.NIST_CLIENT_AUTH),
        remedy="Make client certificates mandatory, not optional. " + _REQUIRE,
        run=_no_certificate,
    ),
    _of_clients(
        id="MTL-03",
        title="A self-signed client is refused",
        problem="self-signed client certificate accepted",
        severity=Severity.CRITICAL,
        expected="the connection is refused",
        references=(ref.RFC8446_CLIENT_AUTH, ref.RFC5280, ref.ASVS_TRANSPORT),
        remedy="Verify the client's chain against the authority of the clients; never accept a certificate for its "
        "own sake.",
        run=_self_signed,
    ),
    _of_clients(
        id="MTL-04",
        title="A client of a foreign authority is refused",
        problem="client certificate of an unknown authority accepted",
        severity=Severity.CRITICAL,
        expected="the connection is refused",
        references=(ref.RFC8446_CLIENT_AUTH, ref.RFC5280, ref.ASVS_TRANSPORT),
        remedy="Trust the authority of the clients alone: no system trust store, no trust-all manager.",
        run=_foreign,
    ),
    _of_clients(
        id="MTL-05",
        title="A client of an impostor with the authority's names is refused",
        problem="client certificate of an impostor authority accepted",
        severity=Severity.CRITICAL,
        expected="the connection is refused: names prove nothing, signatures do",
        references=(ref.RFC5280, ref.RFC8446_CLIENT_AUTH),
        remedy="Verify signatures up to the trust anchor; do not compare issuer names or key identifiers.",
        run=_impostor,
    ),
    _of_clients(
        id="MTL-06",
        title="A client whose chain cannot be built is refused",
        problem="client certificate with an incomplete chain accepted",
        severity=Severity.CRITICAL,
        expected="the connection is refused",
        references=(ref.RFC5280, ref.RFC8446_CLIENT_AUTH),
        remedy="Refuse what does not chain up to a trust anchor with what the client showed.",
        run=_without_intermediate,
    ),
    _of_clients(
        id="MTL-10",
        title="A valid identity is admitted",
        problem="valid client certificate refused",
        severity=Severity.HIGH,
        expected="the connection is admitted; without that, refusals prove nothing",
        references=(ref.RFC8446_CLIENT_AUTH, ref.RFC5280),
        remedy="Check the listener's log: does it trust the authority, and does it have its CRL?",
        run=_welcome,
        ours_only=True,
    ),
    _must_be_refused(
        id="MTL-11",
        title="An expired identity is refused",
        problem="expired client certificate accepted",
        kinds=_ASKING,
        references=("RFC 5280, 6.1.3 (validity)", ref.ASVS_TRANSPORT),
        remedy="Check validity, and the clock of the listener's machine.",
        run=_wrong(Case.EXPIRED),
    ),
    _must_be_refused(
        id="MTL-12",
        title="An identity that is not valid yet is refused",
        problem="client certificate that is not valid yet accepted",
        kinds=_ASKING,
        references=("RFC 5280, 6.1.3 (validity)", ref.ASVS_TRANSPORT),
        remedy="Check validity, and the clock of the listener's machine.",
        run=_wrong(Case.NOT_YET_VALID),
    ),
    Check(
        id="MTL-13",
        title="A revoked identity is refused",
        problem="revoked client certificate accepted",
        severity=Severity.HIGH,
        kinds=_ASKING,
        expected="the connection is refused within 10 s of the revocation",
        references=("RFC 5280, 6.3 (CRL validation)", ref.ASVS_REVOCATION),
        remedy="Have the listener check revocation lists, and the lists brought to it (sluice pki crl refresh).",
        run=_revoked,
        ours_only=True,
    ),
    _must_be_refused(
        id="MTL-14",
        title="An identity that is not for clients is refused",
        problem="certificate that is not for clients accepted",
        references=("RFC 5280, 4.2.1.12 (extended key usage)", ref.X509_SVID),
        remedy="Demand extended key usage clientAuth.",
        run=_wrong(Case.WRONG_USAGE),
    ),
    _must_be_refused(
        id="MTL-15",
        title="An identity whose role has no access is refused",
        problem="client in a role without access accepted",
        references=(ref.X509_SVID, ref.ASVS_ACCESS),
        remedy="Compare the role in the SPIFFE ID with the channel table (sluice.pki.channels) inside the handshake.",
        run=_wrong(Case.WRONG_ROLE),
    ),
    _must_be_refused(
        id="MTL-16",
        title="An identity of another job is refused",
        problem="client of another job accepted",
        references=(ref.X509_SVID, ref.ASVS_ACCESS),
        remedy="Compare the job in the SPIFFE ID with the listener's own.",
        run=_wrong(Case.OTHER_JOB),
    ),
    _must_be_refused(
        id="MTL-17",
        title="A certificate of the edge is refused inside",
        problem="edge certificate accepted inside the cluster",
        severity=Severity.CRITICAL,
        references=(ref.RFC5280, ref.ASVS_TRANSPORT),
        remedy="Trust the internal authority alone, not the root above both.",
        run=_wrong(Case.EDGE_CERTIFICATE),
    ),
    _must_be_refused(
        id="MTL-18",
        title="An internal certificate is refused at the edge",
        problem="internal certificate accepted at the edge",
        kinds=frozenset({Kind.SERVER}),
        references=(ref.RFC5280, ref.ASVS_ACCESS),
        remedy="Trust the edge authority alone for user certificates.",
        run=_wrong(Case.INTERNAL_CERTIFICATE),
    ),
    _must_be_refused(
        id="MTL-19",
        title="An identity of a foreign trust domain is refused",
        problem="client of a foreign trust domain accepted",
        references=(ref.X509_SVID,),
        remedy="Compare the trust domain in the SPIFFE ID with the cluster's own.",
        run=_wrong(Case.FOREIGN_DOMAIN),
    ),
    _must_be_refused(
        id="MTL-20",
        title="A certificate with two SPIFFE IDs is refused",
        problem="client certificate with two SPIFFE IDs accepted",
        references=(ref.X509_SVID,),
        remedy="Demand exactly one URI name: with two, which one counts depends on who looks.",
        run=_two_identities,
    ),
    _must_be_refused(
        id="MTL-21",
        title="A certificate signed by a leaf is refused",
        problem="client certificate signed by a leaf accepted",
        severity=Severity.CRITICAL,
        references=("RFC 5280, 6.1.4 (basic constraints, path length)",),
        remedy="Verify the whole path with its basic constraints; do not accept any chain that merely ends well.",
        run=_wrong(Case.SIGNED_BY_LEAF),
    ),
)
