"""Verifies client certificates that an external proxy reports, against the authority of the gateway's users.

A proxy may accept any certificate (``ACCEPT_UNTRUSTED``), or certificates of another authority. The handshake proves
only that the client has the key; this module checks the chain, the purpose and the CRL.
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
    """Verifies the certificates of users.

    Args:
        directory: the identity directory of the gateway's public side, with trust anchors and CRL.
        clock: returns the current time in UTC.
    """

    def __init__(self, directory: Path, *, clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC)) -> None:
        self._directory = directory
        self._clock = clock
        self._identity: TlsIdentity | None = None

    def header(self, encoded: str) -> str:
        """The ``x-forwarded-client-cert`` that our own Envoy would write for a certificate (PEM, URL-encoded).

        Empty when the certificate is not a valid user certificate; the authenticator refuses an empty value, and the
        reason is logged.
        """
        try:
            return self._header(encoded)
        except PkiError as error:
            _LOG.warning("refusing a client certificate: %s", error)
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
