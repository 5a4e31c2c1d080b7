"""Reads the user of a client certificate from Envoy's header ``x-forwarded-client-cert``. No I/O.

Envoy writes this header itself after verifying the certificate (``SANITIZE_SET``), and removes any that the client
sent. So a valid header has exactly one element; anything else is refused.
"""

from __future__ import annotations

import re

from sluice.core import InvalidIdentity
from sluice.gateway.principal import Subject
from sluice.pki import Role, SpiffeId
from sluice.pki.assertions import CertificateId, Credential

HEADER = "x-forwarded-client-cert"
MAX_CHARACTERS = 4096

_PAIR = re.compile(r'([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^;,"]*)')
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class NoClientCertificate(Exception):
    """The header does not name exactly one user of this trust domain. The message is for the log."""


def parse(value: str, trust_domain: str) -> Subject:
    """The user in the header's value. Raises :class:`NoClientCertificate`."""
    if len(value) > MAX_CHARACTERS:
        raise NoClientCertificate("the header is too long")
    fields: dict[str, list[str]] = {}
    position = 0
    while position < len(value):
        match = _PAIR.match(value, position)
        if match is None:
            raise NoClientCertificate("the header is not of the form that Envoy writes")
        fields.setdefault(match[1].lower(), []).append(match[2].strip('"'))
        position = match.end()
        if position < len(value):
            # A comma starts a second element, from another proxy in front. There is none in our setup.
            if value[position] != ";":
                raise NoClientCertificate("the header has more than one element")
            position += 1
    uris, hashes = fields.get("uri", []), fields.get("hash", [])
    if len(uris) != 1 or len(hashes) != 1 or not _FINGERPRINT.fullmatch(hashes[0]):
        raise NoClientCertificate("the certificate does not have exactly one identity")
    try:
        identity = SpiffeId.parse(uris[0])
    except InvalidIdentity as error:
        raise NoClientCertificate("the certificate has no SPIFFE ID") from error
    if identity.trust_domain != trust_domain or identity.role is not Role.USER:
        raise NoClientCertificate("the certificate is not of a user of this trust domain")
    return Subject(identity.name, "certificate", credential=Credential.of_certificate(CertificateId(hashes[0])))
