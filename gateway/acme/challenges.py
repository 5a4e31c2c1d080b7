"""The challenges that Envoy answers during a validation.

They are passed in a file: the process that orders the certificate writes it, the process beside Envoy reads it. The
file contains no private key: the reader makes the certificate for tls-alpn-01 itself.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sluice.core import FileStamp, StoreError, file_stamp, make_private_directory, read_secret, write_secret
from sluice.gateway.config import MAX_ACME_NAMES
from sluice.pki.authorities import to_pem
from sluice.pki.x509 import acme_identifier, generate_key, key_to_pem

LONGEST_CHALLENGE = dt.timedelta(minutes=15)
"""Challenges older than this are not answered. It limits what a killed process leaves behind in the file."""
MAX_CHALLENGES_BYTES = 256 << 10
_CERTIFICATE_LIFETIME = dt.timedelta(days=7)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{22,512}")
"""base64url with at least 128 bits (RFC 8555, 8.3). Such a token is always a single path segment."""
_KEY_AUTHORIZATION = re.compile(r"[A-Za-z0-9_-]{22,512}\.[A-Za-z0-9_-]{43}")


class Challenge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to answer a validation of ``name``."""

    name: str
    kind: Literal["tls-alpn-01", "http-01"]
    token: str
    key_authorization: str

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.token) or not _KEY_AUTHORIZATION.fullmatch(self.key_authorization):
            raise ValueError("the token of a challenge must be base64url, of 22 to 512 characters")
        if not self.key_authorization.startswith(f"{self.token}."):
            raise ValueError("the key authorization of a challenge must begin with its token")

    @property
    def path(self) -> str:
        """The request path for http-01."""
        return f"/.well-known/acme-challenge/{self.token}"


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    until: float
    challenges: tuple[Challenge, ...]


class ChallengeFile:
    """The file with the challenges that are currently answered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: FileStamp | None = None
        self._current: tuple[Challenge, ...] | None = None
        self._until = 0.0

    def publish(self, challenges: tuple[Challenge, ...], now: dt.datetime) -> None:
        """Replace the challenges in the file by ``challenges``."""
        make_private_directory(self.path.parent)
        document = _Document(until=(now + LONGEST_CHALLENGE).timestamp(), challenges=challenges)
        write_secret(self.path, msgspec.json.encode(document))

    def withdraw(self) -> None:
        """Remove all challenges."""
        self.path.unlink(missing_ok=True)

    def update(self, now: dt.datetime) -> tuple[Challenge, ...] | None:
        """The challenges to answer if they changed since the last call, else None. The first call always returns them.

        A file that is damaged, too old or from the future counts as empty.
        """
        stamp = self._stamp()
        if stamp != self._seen or self._current is None:
            self._seen, self._until = stamp, 0.0
            found = self._read(now) if stamp is not None else ()
        elif self._current and not self._fresh(now):
            found = ()
        else:
            return None
        if found == self._current:
            return None
        self._current = found
        return found

    def _read(self, now: dt.datetime) -> tuple[Challenge, ...]:
        try:
            document = msgspec.json.decode(read_secret(self.path, MAX_CHALLENGES_BYTES), type=_Document)
        except (StoreError, msgspec.MsgspecError):
            return ()
        self._until = document.until
        return document.challenges[:MAX_ACME_NAMES] if self._fresh(now) else ()

    def _fresh(self, now: dt.datetime) -> bool:
        return now.timestamp() < self._until <= (now + LONGEST_CHALLENGE).timestamp() + 1

    def _stamp(self) -> FileStamp | None:
        try:
            return file_stamp(self.path)
        except StoreError:
            return None


def challenge_certificate(challenge: Challenge | None, now: dt.datetime) -> tuple[bytes, bytes]:
    """Chain and key (PEM) for tls-alpn-01: self-signed, for that name only, with the digest of the key authorization.

    None makes a certificate for clients that offer the protocol while no validation is in progress. It has neither the
    name nor the digest, so it validates nothing.
    """
    key = generate_key()
    name = "acme-challenge.invalid" if challenge is None else challenge.name
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ACME challenge")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _CERTIFICATE_LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    if challenge is not None:
        builder = builder.add_extension(acme_identifier(challenge.key_authorization), critical=True)
    return to_pem(builder.sign(key, hashes.SHA256())), key_to_pem(key)


ChallengeProbe = Callable[[Challenge], bool]
"""Returns whether the gateway already answers a challenge."""
