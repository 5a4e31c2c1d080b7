"""Trust anchors for programs that verify with OpenSSL without accepting a partial chain.

Such programs require a self-signed certificate at the end of a path, unless the one before is marked as trusted in a
PEM block ``TRUSTED CERTIFICATE``: a certificate followed by X509_CERT_AUX (openssl-x509(1), "Trust settings"). The same
certificate follows as an ordinary block: some programs read the file again for the authority names to send to clients,
and then skip the marked blocks.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.pki.authorities.signing import to_pem

_TRUSTED_FOR_TLS = bytes.fromhex("3016301406082b0601050507030206082b06010505070301")
"""X509_CERT_AUX with the purposes clientAuth and serverAuth as ``trust``, encoded."""


def trusted_pem(anchors: Sequence[x509.Certificate]) -> bytes:
    """The ``anchors`` as PEM that OpenSSL accepts as ends of a path, even if they are not self-signed."""
    return b"".join(_marked(anchor) + to_pem(anchor) for anchor in anchors)


def _marked(anchor: x509.Certificate) -> bytes:
    data = base64.b64encode(anchor.public_bytes(Encoding.DER) + _TRUSTED_FOR_TLS).decode()
    lines = ["-----BEGIN TRUSTED CERTIFICATE-----", *textwrap.wrap(data, 64), "-----END TRUSTED CERTIFICATE-----"]
    return "".join(f"{line}\n" for line in lines).encode()
