"""What a listener shows of itself: validity, lifetime, key, signature, chain, purpose, identity."""

from __future__ import annotations

import datetime as dt
import itertools

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from audit.checks import references as ref
from audit.model import TLS_KINDS, Check, Evidence, Kind, Severity, finding, not_examined, passed
from audit.subject import Subject, uris_of
from pki.channels import MAY_LISTEN, Channel
from pki.errors import CertificateRejected, InvalidIdentity, PkiError
from pki.identity import Role, SpiffeId
from pki.keys import describe_key
from pki.peer import certified_identity, check_purpose
from pki.profiles import Purpose
from pki.verify import build_path

MIN_RSA_BITS = 2048
MIN_CURVE_BITS = 224
_WEAK_HASHES = frozenset({"md5", "sha1"})
_NO_HANDSHAKE = "no handshake is possible here"
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
        return not_examined(_NO_HANDSHAKE)
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
        return not_examined(_NO_HANDSHAKE)
    lifetime = subject.leaf.not_valid_after_utc - subject.leaf.not_valid_before_utc
    longest = subject.options.max_leaf_lifetime
    done = f"looked at the leaf's lifetime; at most {_days(longest)}"
    seen = _days(lifetime)
    return finding(done, seen) if lifetime > longest else passed(done, seen)


def _days(duration: dt.timedelta) -> str:
    return f"{duration.total_seconds() / 86400:.1f} days"


def _strong_keys(subject: Subject) -> Evidence:
    done = f"looked at the key in each certificate shown (RSA from {MIN_RSA_BITS} bits, curves from {MIN_CURVE_BITS})"
    chain = _chain(subject)
    if not chain:
        return not_examined(_NO_HANDSHAKE)
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
    done = "looked at the signature on each certificate shown, but for self-signed ones"
    chain = [certificate for certificate in _chain(subject) if certificate.issuer != certificate.subject]
    if subject.leaf is None:
        return not_examined(_NO_HANDSHAKE)
    for certificate in chain:
        try:
            digest = certificate.signature_hash_algorithm
        except UnsupportedAlgorithm:
            return finding(done, f"unknown algorithm {certificate.signature_algorithm_oid.dotted_string}")
        if digest is not None and digest.name in _WEAK_HASHES:
            return finding(done, f"{certificate.subject.rfc4514_string()} is signed with {digest.name}")
    return passed(done, "none with SHA-1 or MD5")


def _complete(subject: Subject) -> Evidence:
    done = "checked that each certificate shown is signed by the next"
    chain = _chain(subject)
    if not chain:
        return not_examined(_NO_HANDSHAKE)
    for below, above in itertools.pairwise(chain):
        try:
            below.verify_directly_issued_by(above)
        except (ValueError, TypeError, InvalidSignature) as error:
            who = below.subject.rfc4514_string()
            return finding(done, f"{who} is not signed by what follows it: {error or 'wrong signature'}")
    if len(chain) == 1 and chain[0].issuer != chain[0].subject:
        return finding(done, "the leaf alone: the intermediate that signed it is missing")
    return passed(done, f"{len(chain)} certificates in order")


def _vouched_for(subject: Subject) -> Evidence:
    done = "looked for a path of signatures from the leaf to an authority of this cluster"
    chain = subject.certificates
    if not chain:
        return not_examined(_NO_HANDSHAKE)
    if chain[0].issuer == chain[0].subject:
        return finding(done, "the leaf is self-signed: nobody but itself says whose it is")
    if not subject.anchors:
        return not_examined("nobody said which authorities are trusted (ca_file of a target)")
    try:
        path = build_path(chain[0], chain[1:], subject.anchors)
    except CertificateRejected as error:
        return finding(done, error.what)
    return passed(done, f"signed by {path[-1].subject.rfc4514_string()}")


def _purpose(subject: Subject) -> Evidence:
    done = "looked at basic constraints and usages of the leaf"
    if subject.leaf is None:
        return not_examined(_NO_HANDSHAKE)
    try:
        check_purpose(subject.leaf, Purpose.SERVER)
        constraints = subject.leaf.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (PkiError, ValueError) as error:
        return finding(done, str(error))
    except x509.ExtensionNotFound:
        return passed(done, "for servers; no basic constraints")
    if constraints.ca:
        return finding(done, "the leaf is an authority: whoever has its key can certify others")
    usages = subject.leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    if ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE in usages:
        return finding(done, "any extended key usage: it can sign code as well")
    return passed(done, "for servers, and no authority")


def _identity(subject: Subject) -> Evidence:
    done = "read the SPIFFE ID in the leaf and looked its role up in the channel table"
    if subject.leaf is None:
        return not_examined(_NO_HANDSHAKE)
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
        title="The listener holds the key of the certificate that it shows",
        severity=Severity.CRITICAL,
        kinds=TLS_KINDS,
        expected="a CertificateVerify that verifies with the leaf's key",
        references=("RFC 8446, 4.4.3 (CertificateVerify)",),
        remedy="Somebody shows a certificate that is not theirs, or the TLS library is broken: find out who listens.",
        run=_holds_key,
    ),
    Check(
        id="CRT-02",
        title="Certificates shown are valid now",
        severity=Severity.HIGH,
        kinds=TLS_KINDS,
        expected="notBefore and notAfter of each include the present",
        references=("RFC 5280, 4.1.2.5 (validity)", ref.NIST_CERTIFICATES),
        remedy="Renew it (`sluice pki renew`, or start the process again so that it reads its identity); "
        "check the clocks.",
        run=_valid_now,
    ),
    Check(
        id="CRT-03",
        title="The leaf is short-lived",
        severity=Severity.MEDIUM,
        kinds=TLS_KINDS,
        expected="a lifetime of at most --max-leaf-days",
        references=(ref.NIST_CERTIFICATES, ref.X509_SVID),
        remedy="Lower [pki] leaf_hours and let `sluice up` or `sluice pki agent` renew: a stolen key is worth less.",
        run=_short_lived,
    ),
    Check(
        id="CRT-04",
        title="Keys are strong",
        severity=Severity.HIGH,
        kinds=TLS_KINDS,
        expected="at least 112 bits of security",
        references=(ref.NIST_CERTIFICATES, ref.MOZILLA),
        remedy="Issue it again with [pki] key_algorithm ecdsa-p256, ecdsa-p384, ed25519 or rsa-3072.",
        run=_strong_keys,
    ),
    Check(
        id="CRT-05",
        title="Certificates are not signed with SHA-1 or MD5",
        severity=Severity.HIGH,
        kinds=TLS_KINDS,
        expected="SHA-256 or better, or EdDSA",
        references=(ref.NIST_CERTIFICATES, "RFC 8446, 4.4.2.2 (certificate selection)"),
        remedy="Issue it again with an authority that signs with SHA-256 or better.",
        run=_strong_signatures,
    ),
    Check(
        id="CRT-06",
        title="The chain is complete and in order",
        severity=Severity.MEDIUM,
        kinds=TLS_KINDS,
        expected="the leaf, and after it each time who signed it",
        references=("RFC 8446, 4.4.2 (certificate_list)", ref.NIST_CERTIFICATES),
        remedy="Configure the whole chain (chain.pem), leaf first, not the leaf alone.",
        run=_complete,
    ),
    Check(
        id="CRT-07",
        title="The leaf is meant for servers and for nothing that signs",
        severity=Severity.HIGH,
        kinds=TLS_KINDS,
        expected="extended key usage serverAuth, and no authority",
        references=("RFC 5280, 4.2.1.9 and 4.2.1.12 (constraints, extended key usage)", ref.X509_SVID),
        remedy="Issue it again by its profile: `sluice pki issue`.",
        run=_purpose,
    ),
    Check(
        id="CRT-09",
        title="An authority of this cluster vouches for the listener",
        severity=Severity.HIGH,
        kinds=TLS_KINDS,
        expected="a path of signatures from the leaf to a trusted authority of this side",
        references=("RFC 5280, 6.1 (path validation)", ref.ASVS_CERTIFICATES),
        remedy="Issue it by the cluster's authority (`sluice pki issue`); clients that accept this one check nothing.",
        run=_vouched_for,
    ),
    Check(
        id="CRT-08",
        title="The identity shown may listen on this channel",
        severity=Severity.HIGH,
        kinds=frozenset({Kind.MUTUAL, Kind.SERVER}),
        expected="exactly one SPIFFE ID, of a role that listens on this channel, of the process's own job",
        references=(ref.X509_SVID, ref.ASVS_CERTIFICATES),
        remedy="Give the process the identity of its own role: `sluice pki issue`.",
        run=_identity,
        channels=_OURS,
    ),
)
