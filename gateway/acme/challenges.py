"""Challenges that Envoy answers for the time of a validation: in a file, written by who orders, read beside Envoy.

There is no key in the file: the certificate of tls-alpn-01 is made where it is read.
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
"""What is left in the file by a process that was killed is answered no longer."""
MAX_CHALLENGES_BYTES = 256 << 10
_CERTIFICATE_LIFETIME = dt.timedelta(days=7)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{22,512}")
"""base64url with 128 bits at least (RFC 8555, 8.3), so that it is one segment of a path and nothing else."""
_KEY_AUTHORIZATION = re.compile(r"[A-Za-z0-9_-]{22,512}\.[A-Za-z0-9_-]{43}")


class Challenge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a validation of ``name`` is answered with."""

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
        """Of the request in http-01."""
        return f"/.well-known/acme-challenge/{self.token}"


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    until: float
    challenges: tuple[Challenge, ...]


class ChallengeFile:
    """The file with the challenges that are answered now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: FileStamp | None = None
        self._current: tuple[Challenge, ...] | None = None
        self._until = 0.0

    def publish(self, challenges: tuple[Challenge, ...], now: dt.datetime) -> None:
        """Have these answered, and no others."""
        make_private_directory(self.path.parent)
        document = _Document(until=(now + LONGEST_CHALLENGE).timestamp(), challenges=challenges)
        write_secret(self.path, msgspec.json.encode(document))

    def withdraw(self) -> None:
        """Have none answered any more."""
        self.path.unlink(missing_ok=True)

    def update(self, now: dt.datetime) -> tuple[Challenge, ...] | None:
        """The challenges to answer when they are others than before, else None; the first time always them.

        A file that is damaged, from the future or too old has none.
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
    """Chain and key (PEM) for tls-alpn-01: self-signed, for the name alone, with the digest of the key authorization.

    None: for who offers the protocol and is no validation; without a name and a digest, so that it validates nothing.
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


Serves = Callable[[Challenge], bool]
"""Whether the gateway answers a challenge already."""
