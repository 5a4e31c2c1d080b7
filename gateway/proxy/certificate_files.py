"""Reads and checks the certificate of another authority: ``gateway.certificate_file`` and ``key_file``.

Another program writes the files: an ACME client, Kubernetes, an operator. If the files fail a check, Envoy keeps the
previous certificate.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from sluice.core import (
    CERTIFICATE_FILE_NOT_AFTER,
    FileStamp,
    PkiError,
    StoreError,
    file_stamp,
    printable,
    read_bounded,
    read_deployed_secret,
)
from sluice.core.xds import Message, certificate_secret
from sluice.gateway.config import GatewayConfig
from sluice.gateway.errors import EdgeCertificateError
from sluice.gateway.upstreams import EDGE_FILE_SECRET
from sluice.pki.authorities import to_pem
from sluice.pki.x509 import (
    DAMAGED,
    PrivateKey,
    check_server_name,
    describe_key,
    key_from_pem,
    key_to_pem,
    same_public_key,
    was_issued_by,
)

MAX_CHAIN_BYTES = 128 << 10
MAX_KEY_BYTES = 32 << 10
MAX_CERTIFICATES = 8
MIN_RSA_BITS = 2048
"""The minimum for public authorities (CA/Browser Forum, Baseline Requirements 6.1.5)."""
MAX_RSA_BITS = 4096
"""Larger keys slow down every handshake."""
READ_ATTEMPTS = 3
"""How often the two files are read when they change during reading."""
WARNING_PERIOD = dt.timedelta(days=14)
"""A certificate should be replaced this long before it expires, or at a quarter of its lifetime if that is less."""
WARNING_PAUSE = dt.timedelta(days=1)

_Stamp = tuple[FileStamp | str | None, FileStamp | str | None]


@dataclass(frozen=True, slots=True)
class FileCertificate:
    """A certificate chain and its key that passed all checks."""

    chain: tuple[x509.Certificate, ...]
    key: PrivateKey = field(repr=False)

    @property
    def leaf(self) -> x509.Certificate:
        """The gateway's own certificate."""
        return self.chain[0]

    @property
    def secrets(self) -> dict[str, Message]:
        """The SDS resources by name, re-encoded, so that other content of the files is not passed on."""
        return {EDGE_FILE_SECRET: certificate_secret(EDGE_FILE_SECRET, to_pem(*self.chain), key_to_pem(self.key))}


class CertificateFiles:
    """Reads the two files whenever they change.

    Args:
        certificate_file: the chain, leaf first.
        key_file: the leaf's key.
        names: the host names that the leaf must be valid for.
    """

    def __init__(self, certificate_file: Path, key_file: Path, names: Sequence[str]) -> None:
        self._chain_path = certificate_file
        self._key_path = key_file
        self._names = tuple(names)
        self._seen: _Stamp | None = None
        self._look_again: dt.datetime | None = None
        self._warned: tuple[int, dt.datetime] | None = None
        self.used: FileCertificate | None = None
        """The last certificate that passed all checks."""

    @classmethod
    def of(cls, config: GatewayConfig) -> CertificateFiles | None:
        """The configured files; None when no certificate file is configured."""
        if not config.certificate_file:
            return None
        return cls(Path(config.certificate_file), Path(config.key_file), config.server_names)

    def update(self, now: dt.datetime) -> FileCertificate | None:
        """Read the files; return the certificate when it is new, or None when nothing changed.

        Raises :class:`~sluice.core.errors.SluiceError` when the files are unreadable or invalid. They are read again
        only after another change, or when the certificate becomes valid.
        """
        due = self._look_again is not None and now >= self._look_again
        if self._stamp() == self._seen and not due:
            return None
        self._look_again = None
        for attempt in range(READ_ATTEMPTS):
            self._seen = self._stamp()
            try:
                found = self._read(now)
            except (StoreError, EdgeCertificateError):
                # The files may be half replaced, for example when a symbolic link changes between the two reads.
                if attempt + 1 < READ_ATTEMPTS and self._stamp() != self._seen:
                    continue
                raise
            if self._stamp() == self._seen:
                self.used = found
                CERTIFICATE_FILE_NOT_AFTER.labels(str(self._chain_path)).set(found.leaf.not_valid_after_utc.timestamp())
                return found
        raise EdgeCertificateError(
            f"{self._chain_path} and {self._key_path} keep changing while they are read",
            "check whether more than one program replaces them",
        )

    def expiry_warning(self, now: dt.datetime) -> str:
        """A warning about the expiry of the certificate in use, at most once a day; empty without one."""
        if self.used is None:
            return ""
        leaf = self.used.leaf
        end, lifetime = leaf.not_valid_after_utc, leaf.not_valid_after_utc - leaf.not_valid_before_utc
        if now < end - min(WARNING_PERIOD, lifetime / 4):
            return ""
        if self._warned is not None and self._warned[0] == leaf.serial_number and now < self._warned[1] + WARNING_PAUSE:
            return ""
        self._warned = leaf.serial_number, now
        what = "expired" if now > end else "expires"
        return f"the certificate in {self._chain_path} {what} at {_moment(end)} and was not renewed: renew it there"

    def _stamp(self) -> _Stamp:
        return _stamp_of(self._chain_path), _stamp_of(self._key_path)

    def _read(self, now: dt.datetime) -> FileCertificate:
        # 1. Files of bounded size; the key must not be readable by everyone.
        chain = _certificates(read_bounded(self._chain_path, MAX_CHAIN_BYTES), self._chain_path)
        key = _key(read_deployed_secret(self._key_path, MAX_KEY_BYTES), self._key_path)
        try:
            # 2. Key and certificate must match, and be of a kind that Envoy and browsers accept.
            if not same_public_key(key.public_key(), chain[0].public_key()):
                raise EdgeCertificateError(
                    f"{self._key_path} is not the key of the first certificate in {self._chain_path}",
                    "use two files that belong together, and put the gateway's certificate before its authority's",
                )
            _check_kind(key, self._key_path)
            # 3. The checks that clients make.
            self._check_order(chain)
            self._check_time(chain, now)
            self._check_usage(chain[0])
            self._check_names(chain[0])
        except DAMAGED as error:
            raise EdgeCertificateError(
                f"{self._chain_path} holds a certificate that cannot be read: {error}",
                "get it from its authority again",
            ) from error
        return FileCertificate(chain, key)

    def _check_order(self, chain: tuple[x509.Certificate, ...]) -> None:
        for below, above in itertools.pairwise(chain):
            if not was_issued_by(below, above):
                raise EdgeCertificateError(
                    f"{self._chain_path}: {_subject(below)} is not signed by {_subject(above)}, which follows it",
                    "put the certificates in order: the gateway's, then each authority that signed the one before",
                )

    def _check_time(self, chain: tuple[x509.Certificate, ...], now: dt.datetime) -> None:
        for each in chain:
            if now > each.not_valid_after_utc:
                raise EdgeCertificateError(
                    f"{self._chain_path}: {_subject(each)} expired at {_moment(each.not_valid_after_utc)}", "renew it"
                )
        begin = max(each.not_valid_before_utc for each in chain)
        if now < begin:
            self._look_again = begin
            raise EdgeCertificateError(
                f"{self._chain_path} is not valid before {_moment(begin)}",
                "check this machine's clock; it is used as soon as it is valid",
            )

    def _check_usage(self, leaf: x509.Certificate) -> None:
        extensions = leaf.extensions
        for each in extensions:
            match each.value:
                case x509.ExtendedKeyUsage() as usages:
                    fits = ExtendedKeyUsageOID.SERVER_AUTH in usages
                    lacks = "extended key usage serverAuth"
                case x509.KeyUsage() as usage:
                    fits, lacks = usage.digital_signature, "key usage digitalSignature"
                case x509.TLSFeature() as features:
                    fits = x509.TLSFeatureType.status_request not in features
                    lacks = "a stapled OCSP response, which it demands (must-staple)"
                case _:
                    continue
            if not fits:
                raise EdgeCertificateError(
                    f"{self._chain_path}: {_subject(leaf)} is not usable for this server: it lacks {lacks}",
                    "request a TLS server certificate without must-staple from its authority",
                )

    def _check_names(self, leaf: x509.Certificate) -> None:
        for name in self._names:
            try:
                check_server_name(leaf, name)
            except PkiError as error:
                raise EdgeCertificateError(
                    f"{self._chain_path}: {printable(error.what)}",
                    f"get a certificate for {name} too, or take that out of gateway.server_names",
                ) from error


def _certificates(pem: bytes, path: Path) -> tuple[x509.Certificate, ...]:
    remedy = "use a PEM file with the gateway's certificate and those of its authorities, like certbot's fullchain.pem"
    try:
        found = x509.load_pem_x509_certificates(pem)
    except DAMAGED as error:
        raise EdgeCertificateError(f"{path} holds no readable PEM certificate: {error}", remedy) from error
    # The parser silently ignores a last block without an end.
    if len(found) != pem.count(b"-----BEGIN CERTIFICATE-----"):
        raise EdgeCertificateError(f"{path} is cut off within a certificate", remedy)
    if len(found) > MAX_CERTIFICATES:
        raise EdgeCertificateError(f"{path} holds more than {MAX_CERTIFICATES} certificates", remedy)
    return tuple(found)


def _key(pem: bytes, path: Path) -> PrivateKey:
    try:
        return key_from_pem(pem, str(path))
    except StoreError as error:
        raise EdgeCertificateError(
            error.what, f"use a PEM key without a passphrase: openssl pkey -in {path} -out key.pem"
        ) from None


def _check_kind(key: PrivateKey, path: Path) -> None:
    public = key.public_key()
    match public:
        case ec.EllipticCurvePublicKey(curve=ec.SECP256R1() | ec.SECP384R1()):
            return
        case rsa.RSAPublicKey() if MIN_RSA_BITS <= public.key_size <= MAX_RSA_BITS:
            return
    raise EdgeCertificateError(
        f"{path} is too weak, or of a kind that Envoy or browsers do not accept: {describe_key(public)}",
        f"use ECDSA with P-256 or P-384, or RSA with {MIN_RSA_BITS} to {MAX_RSA_BITS} bits",
    )


def _stamp_of(path: Path) -> FileStamp | str | None:
    try:
        return file_stamp(path)
    except StoreError as error:
        return error.what


def _subject(certificate: x509.Certificate) -> str:
    named = printable(certificate.subject.rfc4514_string()[:200])
    return named or f"the certificate {certificate.serial_number:x}"


def _moment(when: dt.datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"
