"""A listener's certificate: validity, lifetime, key, signature, chain, extended key usage, identity."""

from __future__ import annotations

import datetime as dt
import itertools

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from sluice.audit.check import Check
from sluice.audit.checks import references as ref
from sluice.audit.model import Evidence, Foreign, Kind, Severity, finding, not_examined, passed
from sluice.audit.signatures import WEAK_HASHES, issued_by
from sluice.audit.subject import Subject, uris_of
from sluice.core import CertificateRejected, InvalidIdentity, PkiError
from sluice.pki import MAY_LISTEN, Channel, Role, SpiffeId
from sluice.pki.x509 import Purpose, build_path, certified_identity, check_purpose, describe_key

MIN_RSA_BITS = 2048
MIN_CURVE_BITS = 224
MAX_FOREIGN_LIFETIME = dt.timedelta(days=398)
"""Longest lifetime of a foreign certificate: the longest that browsers accepted before March 2026."""
_NOT_SHOWN = "the listener shows no certificate"
_OURS = frozenset(Channel)


def _chain(subject: Subject) -> tuple[x509.Certificate, ...]:
    return subject.certificates


def _holds_key(subject: Subject) -> Evidence:
    done = "verified the server's CertificateVerify with the key in its leaf"
    if subject.handshake is None:
        return not_examined("no TLS 1.3 handshake is possible here")
    if subject.handshake.signature_valid:
        return passed(done, "the signature is good")
    return finding(done, "the signature is not of that key")


def _valid_now(subject: Subject) -> Evidence:
    done = "compared the validity of each certificate shown with this machine's clock"
    chain = _chain(subject)
    if not chain:
        return not_examined(_NOT_SHOWN)
    now = subject.options.clock()
    for certificate in chain:
        who = certificate.subject.rfc4514_string()
        if now > certificate.not_valid_after_utc:
            return finding(done, f"{who} expired at {certificate.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC")
        if now < certificate.not_valid_before_utc:
            return finding(done, f"{who} is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M:%S} UTC")
    return passed(done, f"all valid, the leaf until {chain[0].not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC")


def _short_lived(subject: Subject) -> Evidence:
    if subject.leaf is None:
        return not_examined(_NOT_SHOWN)
    lifetime = subject.leaf.not_valid_after_utc - subject.leaf.not_valid_before_utc
    longest = MAX_FOREIGN_LIFETIME if subject.listener.foreign else subject.options.max_leaf_lifetime
    done = f"looked at the leaf's lifetime; at most {_days(longest)}"
    seen = _days(lifetime)
    return finding(done, seen) if lifetime > longest else passed(done, seen)


def _days(duration: dt.timedelta) -> str:
    return f"{duration.total_seconds() / 86400:.1f} days"


def _strong_keys(subject: Subject) -> Evidence:
    done = f"looked at the key in each certificate shown (RSA from {MIN_RSA_BITS} bits, curves from {MIN_CURVE_BITS})"
    chain = _chain(subject)
    if not chain:
        return not_examined(_NOT_SHOWN)
    told = []
    for certificate in chain:
        try:
            key = certificate.public_key()
        except (ValueError, UnsupportedAlgorithm) as error:
            return finding(done, f"{certificate.subject.rfc4514_string()}: the key cannot be read: {error}")
        weak = (
            (isinstance(key, rsa.RSAPublicKey) and key.key_size < MIN_RSA_BITS)
            or (isinstance(key, ec.EllipticCurvePublicKey) and key.curve.key_size < MIN_CURVE_BITS)
            or isinstance(key, dsa.DSAPublicKey)
        )
        if weak:
            return finding(done, f"{certificate.subject.rfc4514_string()}: {describe_key(key)}")
        told.append(describe_key(key))
    return passed(done, ", ".join(told))


def _strong_signatures(subject: Subject) -> Evidence:
    done = "looked at the signature on each certificate shown, except trust anchors"
    chain = [
        certificate
        for number, certificate in enumerate(_chain(subject))
        # An anchor is not trusted because of its signature. A leaf that is not configured is no anchor.
        if certificate not in subject.anchors and not (number and issued_by(certificate, certificate))
    ]
    if subject.leaf is None:
        return not_examined(_NOT_SHOWN)
    for certificate in chain:
        try:
            digest = certificate.signature_hash_algorithm
        except UnsupportedAlgorithm:
            return finding(done, f"unknown algorithm {certificate.signature_algorithm_oid.dotted_string}")
        if digest is not None and digest.name in WEAK_HASHES:
            return finding(done, f"{certificate.subject.rfc4514_string()} is signed with {digest.name}")
    return passed(done, "none with SHA-1 or MD5")


def _complete(subject: Subject) -> Evidence:
    done = "checked that each certificate shown is signed by the next"
    chain = _chain(subject)
    if not chain:
        return not_examined(_NOT_SHOWN)
    for below, above in itertools.pairwise(chain):
        if not issued_by(below, above):
            issuer = above.subject.rfc4514_string()
            why = f"it names {below.issuer.rfc4514_string()}" if below.issuer != above.subject else "wrong signature"
            return finding(done, f"{below.subject.rfc4514_string()} is not signed by {issuer}, which follows it: {why}")
    if len(chain) == 1 and chain[0].issuer != chain[0].subject:
        return finding(done, "the leaf alone: the intermediate that signed it is missing")
    return passed(done, f"{len(chain)} certificates in order")


def _vouched_for(subject: Subject) -> Evidence:
    done = "looked for a path of signatures from the leaf to a trusted authority"
    chain = subject.certificates
    if not chain:
        return not_examined(_NOT_SHOWN)
    if chain[0] in subject.anchors:
        return passed(done, "the leaf itself is named as a trust anchor")
    if chain[0].issuer == chain[0].subject:
        return finding(done, "the leaf is self-signed: nobody but itself says whose it is")
    if not subject.anchors:
        return not_examined("nobody said which authorities are trusted (ca_file of a target)")
    return _path(subject, done)


def _path(subject: Subject, done: str) -> Evidence:
    leaf, *others = subject.certificates
    try:
        path = build_path(leaf, others, subject.anchors, issued=issued_by)
    except CertificateRejected as error:
        return finding(done, error.what)
    for issuer in path[1:-1]:
        if not _may_issue(issuer):
            return finding(done, f"{issuer.subject.rfc4514_string()} signed another certificate but is no authority")
    return passed(done, f"signed by {path[-1].subject.rfc4514_string()}")


def _may_issue(certificate: x509.Certificate) -> bool:
    """RFC 5280, 6.1.4 (k): an intermediate has basic constraints, and they say that it is an authority."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _purpose(subject: Subject) -> Evidence:
    done = "looked at basic constraints and usages of the leaf"
    if subject.leaf is None:
        return not_examined(_NOT_SHOWN)
    try:
        if not (subject.listener.foreign and _for_anything(subject.leaf)):
            check_purpose(subject.leaf, Purpose.SERVER)
        constraints = subject.leaf.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (PkiError, ValueError) as error:
        return finding(done, str(error))
    except x509.ExtensionNotFound:
        return passed(done, "for servers; no basic constraints")
    if constraints.ca:
        return finding(done, "the leaf is an authority: its key can sign certificates of others")
    if _for_anything(subject.leaf):
        return passed(done, "no authority; without extended key usage, which restricts nothing (RFC 5280, 4.2.1.12)")
    return _usages(subject.leaf, done)


def _usages(leaf: x509.Certificate, done: str) -> Evidence:
    if (
        ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE
        in leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    ):
        return finding(done, "any extended key usage: it can sign code as well")
    return passed(done, "for servers, and no authority")


def _for_anything(certificate: x509.Certificate) -> bool:
    try:
        certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    except x509.ExtensionNotFound:
        return True
    return False


def _identity(subject: Subject) -> Evidence:
    done = "read the SPIFFE ID in the leaf and looked its role up in the channel table"
    if subject.leaf is None:
        return not_examined(_NOT_SHOWN)
    channel = subject.listener.channel
    if channel is None:
        return not_examined("nobody said which channel this is")
    try:
        identity = certified_identity(subject.leaf)
    except (PkiError, InvalidIdentity) as error:
        return finding(done, f"{error}; names in it: {', '.join(uris_of(subject.leaf)) or 'none'}")
    if identity.role not in MAY_LISTEN[channel]:
        return finding(done, f"{identity} may not listen on channel {channel}")
    if _of_another_job(identity, subject.listener.job_id):
        return finding(done, f"{identity} belongs to another job than the process")
    return passed(done, str(identity))


def _of_another_job(identity: SpiffeId, job_id: str) -> bool:
    return bool(job_id) and identity.role in {Role.DRIVER, Role.EXECUTOR} and identity.job_id != job_id


CHECKS = (
    Check(
        id="CRT-01",
        title="The listener holds the private key of its certificate",
        problem="certificate presented without its private key",
        severity=Severity.CRITICAL,
        expected="a CertificateVerify that verifies with the leaf's key",
        references=("RFC 8446, 4.4.3 (CertificateVerify)",),
        remedy="Somebody presents a certificate of somebody else, or the TLS library is broken: find out who listens.",
        run=_holds_key,
    ),
    Check(
        id="CRT-02",
        title="The certificates presented are valid now",
        problem="certificate expired or not yet valid",
        severity=Severity.HIGH,
        expected="the present is between notBefore and notAfter of each",
        references=("RFC 5280, 4.1.2.5 (validity)", ref.NIST_CERTIFICATES),
        remedy="Renew it (`sluice pki renew`, or start the process again so that it reads its identity); "
        "check the clocks.",
        run=_valid_now,
        foreign=Foreign(remedy="Have it renewed and the server reload it; check the clocks."),
    ),
    Check(
        id="CRT-03",
        title="The certificate is short-lived",
        problem="certificate lifetime too long",
        severity=Severity.MEDIUM,
        expected="a lifetime of at most --max-leaf-days",
        references=(ref.NIST_CERTIFICATES, ref.X509_SVID),
        remedy="Lower [pki] leaf_hours and let `sluice up` or `sluice pki agent` renew: a stolen key is worth less.",
        run=_short_lived,
        foreign=Foreign(
            severity=Severity.LOW,
            expected=f"a lifetime of at most {MAX_FOREIGN_LIFETIME.days} days",
            remedy="Renew more often, by a program (ACME): a stolen key is worth less.",
        ),
    ),
    Check(
        id="CRT-04",
        title="Keys are strong",
        problem="weak key",
        severity=Severity.HIGH,
        expected="at least 112 bits of security",
        references=(ref.NIST_CERTIFICATES, ref.MOZILLA),
        remedy="Issue it again with [pki] key_algorithm ecdsa-p256, ecdsa-p384, ed25519 or rsa-3072.",
        run=_strong_keys,
        foreign=Foreign(remedy="Have it issued again for a key on P-256 or P-384, or of RSA with 2048 bits or more."),
    ),
    Check(
        id="CRT-05",
        title="Certificates are not signed with SHA-1 or MD5",
        problem="certificate signed with SHA-1 or MD5",
        severity=Severity.HIGH,
        expected="SHA-256 or better, or EdDSA",
        references=(ref.NIST_CERTIFICATES, "RFC 8446, 4.4.2.2 (certificate selection)"),
        remedy="Issue it again with an authority that signs with SHA-256 or better.",
        run=_strong_signatures,
    ),
    Check(
        id="CRT-06",
        title="The chain is complete and in order",
        problem="certificate chain incomplete or out of order",
        severity=Severity.MEDIUM,
        expected="the leaf first, then the issuer of each certificate before it",
        references=("RFC 8446, 4.4.2 (certificate_list)", ref.NIST_CERTIFICATES),
        remedy="Configure the whole chain (chain.pem), leaf first, not the leaf alone.",
        run=_complete,
        foreign=Foreign(remedy="Configure the whole chain, leaf first, and after it each certificate's issuer."),
    ),
    Check(
        id="CRT-07",
        title="The certificate is for servers only",
        problem="wrong certificate usage",
        severity=Severity.HIGH,
        expected="extended key usage serverAuth, and no authority",
        references=("RFC 5280, 4.2.1.9 and 4.2.1.12 (constraints, extended key usage)", ref.X509_SVID),
        remedy="Issue it again by its profile: `sluice pki issue`.",
        run=_purpose,
        foreign=Foreign(
            severity=Severity.LOW,
            expected="extended key usage serverAuth or none, and no authority",
            remedy="Have it issued again for servers alone (extended key usage serverAuth, CA:FALSE).",
        ),
    ),
    Check(
        id="CRT-09",
        title="A trusted authority issued the certificate",
        problem="unknown issuer",
        severity=Severity.HIGH,
        expected="a path of signatures from the leaf to a trusted authority of this side",
        references=("RFC 5280, 6.1 (path validation)", ref.ASVS_CERTIFICATES),
        remedy="Issue it by the cluster's authority (`sluice pki issue`); clients that accept this one check nothing.",
        run=_vouched_for,
        foreign=Foreign(
            expected="a path of signatures from the leaf to a certificate in ca_file, or the leaf itself there",
            remedy="Name the authority in ca_file, or the certificate itself if it is meant to be self-signed; or find "
            "out who put another certificate there.",
        ),
    ),
    Check(
        id="CRT-08",
        title="The identity presented may listen on this channel",
        problem="wrong identity for this channel",
        severity=Severity.HIGH,
        kinds=frozenset({Kind.MUTUAL, Kind.SERVER}),
        expected="exactly one SPIFFE ID, of a role that listens on this channel, of the process's own job",
        references=(ref.X509_SVID, ref.ASVS_CERTIFICATES),
        remedy="Give the process the identity of its own role: `sluice pki issue`.",
        run=_identity,
        channels=_OURS,
    ),
)
