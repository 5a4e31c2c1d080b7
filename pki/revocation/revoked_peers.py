"""The CRLs of a running process: ``crl.pem`` of its identity directory, loaded again when it changes.

A damaged, foreign, expired or older change leaves the current lists in use, and is logged once. When the current list
itself has expired (its ``nextUpdate`` plus a grace period), certificates of its issuer are refused: a process that gets
no updates must not go on trusting everybody.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from sluice.core import FileStamp, PeerRefused, PkiError, StoreError, file_stamp, may_pass, read_bounded
from sluice.pki.revocation.crl import EXPIRY_GRACE, MAX_CRL_BYTES, RevocationList, Revoked, load_crls
from sluice.pki.revocation.crl_files import CRL_FILE, take_newer
from sluice.pki.x509 import key_id

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Default of the shortest time between two checks of the file."""


@dataclass(frozen=True, slots=True)
class CertificateId:
    """The key of a certificate in a list: its issuer's name (DER) and its serial number."""

    issuer: bytes
    serial: int

    @classmethod
    def of(cls, certificate: x509.Certificate) -> CertificateId:
        """Of a parsed certificate."""
        return cls(certificate.issuer.public_bytes(), certificate.serial_number)


class RevokedPeers:
    """The revoked certificates that this process knows.

    Args:
        directory: the identity directory; without ``crl.pem`` in it nobody is revoked.
        anchors: the authorities trusted now.
        clock: the present, in UTC.
        monotonic: for the pace of checks.
        pace_seconds: shortest time between two checks of the file.

    Raises:
        StoreError: ``crl.pem`` exists and holds no usable list, and there is no older one in use.
    """

    def __init__(
        self,
        directory: Path,
        anchors: Callable[[], Sequence[x509.Certificate]],
        *,
        clock: Callable[[], dt.datetime],
        monotonic: Callable[[], float] = time.monotonic,
        pace_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._path = directory / CRL_FILE
        self._anchors = anchors
        self._clock = clock
        self._monotonic = monotonic
        self._pace = pace_seconds
        self._lists: dict[bytes, RevocationList] = {}
        self._seen: tuple[FileStamp | None, tuple[x509.Certificate, ...]] = (None, ())
        self._looked_at = monotonic()
        self.version = 0
        """Grows with each change of the lists in use."""
        refused = self._reload()
        if refused and not self._lists:
            raise StoreError(f"{self._path} holds no usable revocation list: {refused[0].what}", refused[0].remedy)

    @property
    def lists(self) -> tuple[RevocationList, ...]:
        """The lists in use, one of each issuer."""
        return tuple(self._lists[issuer] for issuer in sorted(self._lists))

    def look(self) -> int:
        """Read the file again if it changed, at the given pace at most; returns :attr:`version`."""
        now = self._monotonic()
        if now - self._looked_at >= self._pace:
            self._looked_at = now
            self._reload()
        return self.version

    def numbers(self) -> dict[str, int]:
        """The number of the list in use of each trusted authority that has one, by the authority's key identifier."""
        return {
            key_id(anchor): known.number
            for anchor in self._anchors()
            if (known := self._lists.get(anchor.subject.public_bytes())) is not None
        }

    def revoked(self, certificate: CertificateId) -> Revoked | None:
        """The entry of ``certificate`` in the lists in use; None: not revoked."""
        known = self._lists.get(certificate.issuer)
        return None if known is None else known.revoked.get(certificate.serial)

    def check(self, certificate: x509.Certificate) -> None:
        """Refuse the certificate of a new peer that is revoked, or whose issuer's list has expired."""
        self.look()
        wanted = CertificateId.of(certificate)
        known = self._lists.get(wanted.issuer)
        if known is None:
            return
        if known.expired_at(self._clock()):
            raise PeerRefused(
                f"the revocation list of {known.issuer.rfc4514_string()[:200]!r} expired at "
                f"{known.next_update:%Y-%m-%d %H:%M:%S} UTC: it is unknown whether the peer is revoked",
                "sluice pki crl refresh; is this machine's clock right?",
            )
        if (found := known.revoked.get(wanted.serial)) is not None:
            raise PeerRefused(describe_revoked(wanted, found))

    def _reload(self) -> list[PkiError]:
        """Use newer lists; returns the errors of a file not seen before."""
        anchors = tuple(self._anchors())
        try:
            stamp = file_stamp(self._path)
            if stamp is None or (stamp, anchors) == self._seen:
                return []
            self._seen = (stamp, anchors)
            offered = load_crls(read_bounded(self._path, MAX_CRL_BYTES))
        except PkiError as error:
            if may_pass(error):
                self._seen = (None, ())
            return self._keep([error])
        merged, refused = take_newer(self._lists, offered, anchors, self._clock(), grace=EXPIRY_GRACE)
        changed = {issuer for issuer in merged if merged[issuer].pem != self._pem(issuer)}
        if changed:
            self._lists = merged
            self.version += 1
            for issuer in changed:
                each = merged[issuer]
                _LOG.info(
                    "revocation list number %d of %s: %d certificates, next update %s",
                    each.number,
                    each.issuer.rfc4514_string(),
                    len(each.revoked),
                    each.next_update,
                )
        return self._keep(list(refused))

    def _pem(self, issuer: bytes) -> bytes:
        known = self._lists.get(issuer)
        return b"" if known is None else known.pem

    def _keep(self, refused: list[PkiError]) -> list[PkiError]:
        for error in refused:
            _LOG.warning("%s: not loaded, the previous revocation lists stay in use: %s", self._path, error)
        return refused


def describe_revoked(certificate: CertificateId, found: Revoked) -> str:
    """The revocation in words, for messages."""
    return (
        f"the certificate with serial {certificate.serial:x} was revoked at "
        f"{found.revoked_at:%Y-%m-%d %H:%M:%S} UTC ({found.reason})"
    )
