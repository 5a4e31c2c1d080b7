"""Verifies the client certificates that a proxy of somebody else reports, against the authority of the gateway's users.

A proxy may be set up to take any certificate (``ACCEPT_UNTRUSTED``), or one of another authority. That its holder has
the key is certain (the handshake proves it); whose it is is decided here, by chain, purpose and revocation list.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote_to_bytes

from cryptography.hazmat.primitives import hashes

from sluice.core import CertificateRejected, PkiError, StoreError
from sluice.pki.tls import TlsIdentity
from sluice.pki.x509 import DAMAGED, Purpose, load_certificate_block, verify_chain

_LOG = logging.getLogger(__name__)

MAX_CERTIFICATE_CHARACTERS = 64 << 10
"""Longest certificate that is parsed, in characters of URL-encoded PEM."""


class EdgeClients:
    """The users' certificates that count.

    Args:
        directory: the identity directory of the gateway's public side: its anchors and its revocation list.
        clock: the present, in UTC.
    """

    def __init__(self, directory: Path, *, clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)) -> None:
        self._directory = directory
        self._clock = clock
        self._identity: TlsIdentity | None = None

    def header(self, encoded: str) -> str:
        """What ``x-forwarded-client-cert`` of an Envoy of ours would say of a certificate (PEM, URL-encoded).

        Empty, which no authenticator takes, when it is not of a user of ours; the reason is logged.
        """
        try:
            return self._header(encoded)
        except PkiError as error:
            _LOG.warning("a client certificate does not count: %s", error)
            return ""

    def _header(self, encoded: str) -> str:
        if len(encoded) > MAX_CERTIFICATE_CHARACTERS:
            raise CertificateRejected(f"it is longer than {MAX_CERTIFICATE_CHARACTERS} characters")
        try:
            certificate = load_certificate_block(unquote_to_bytes(encoded))
        except DAMAGED as error:
            raise CertificateRejected(f"it cannot be read: {error}") from error
        edge = self._edge()
        anchors = edge.material.anchors
        verified = verify_chain(certificate, (), anchors, now=self._clock(), purpose=Purpose.CLIENT)
        edge.revoked_peers.check(certificate)
        return f"Hash={certificate.fingerprint(hashes.SHA256()).hex()};URI={verified.spiffe_id}"

    def _edge(self) -> TlsIdentity:
        if self._identity is None:
            try:
                self._identity = TlsIdentity(self._directory, clock=self._clock)
            except StoreError as error:
                raise CertificateRejected(f"the authority of users is not known on this machine: {error}") from error
        return self._identity
