"""nginx: a server that requires client certificates of one authority.

https://nginx.org/en/docs/http/ngx_http_ssl_module.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sluice.core import CertificateRejected
from sluice.pki.authorities import trusted_pem
from sluice.pki.export.programs.sources import Handover
from sluice.pki.revocation import load_crls
from sluice.pki.x509 import MAX_COMMON_NAME_CHARACTERS

TESTED_WITH = "nginx 1.22.1 with OpenSSL 3.0"

_HTTP_NOTES = ("", "Include it in the http block.")
_SERVER_NOTES = (
    "",
    "Include it in the server block, whose lines read `listen PORT ssl;`. After an export: nginx -s reload.",
    "nginx ends the handshake with everybody and refuses afterwards, with status 400 or 403, before any location.",
)


def render(handover: Handover) -> dict[str, bytes]:
    """``server.conf`` and ``http.conf`` to include, and the PEM files that they name.

    Raises:
        CertificateRejected: a peer whose name does not fit into the subject, the only name that nginx sees.
    """
    identity, directory = handover.identity, handover.directory
    http = (
        handover.heading("nginx", TESTED_WITH, *_HTTP_NOTES)
        + f"""
# Certificates that were revoked. `ssl_crl` would refuse everybody: it wants a list about the anchor itself, too.
map $ssl_client_serial $sluice_revoked {{
    default 0;
{_entries(_revoked(handover.crl_pem))}}}

# nginx cannot read SPIFFE IDs; the authority writes their path into the subject, and nothing else.
map $ssl_client_s_dn $sluice_peer {{
    default 0;
{_entries(_subjects(handover.peers))}}}
"""
    )
    server = (
        handover.heading("nginx", TESTED_WITH, *_SERVER_NOTES)
        + f"""
ssl_certificate {directory / "chain.pem"};
ssl_certificate_key {directory / "key.pem"};
ssl_protocols TLSv1.3;
ssl_session_tickets off;
ssl_session_cache off;

# The anchor is an intermediate, marked as trusted the way OpenSSL wants it. Put no root beside it: that would let
# the certificates of all its authorities in.
ssl_client_certificate {directory / "trust.pem"};
ssl_verify_client on;
ssl_verify_depth 1;

if ($sluice_revoked) {{ return 403; }}
if ($sluice_peer = 0) {{ return 403; }}
"""
    )
    return {
        "trust.pem": trusted_pem(identity.anchors),
        "key.pem": identity.key_pem,
        "chain.pem": identity.chain_pem,
        "http.conf": http.encode(),
        "server.conf": server.encode(),
    }


def _entries(keys: Iterable[str]) -> str:
    return "".join(f"    {key} 1;\n" for key in keys)


def _revoked(crl_pem: bytes) -> list[str]:
    """The ``$ssl_client_serial`` of each revoked certificate: whole bytes in hexadecimal."""
    if not crl_pem:
        return []
    serials = sorted(each.serial_number for crl in load_crls(crl_pem) for each in crl)
    return [serial.to_bytes((serial.bit_length() + 7) // 8, "big").hex().upper() for serial in serials]


def _subjects(peers: tuple[str, ...]) -> list[str]:
    """Patterns of `map` for the ``$ssl_client_s_dn`` (RFC 2253) of each of ``peers``.

    Always patterns, because `map` compares strings without regard to case.
    """
    keys = [] if peers else ['"~^CN="']
    for peer in peers:
        path = peer.split("/", 3)[3]
        whole = path.removesuffix("/*")
        # A subject of maximum length may be a longer identity that was cut off.
        if len(whole) >= MAX_COMMON_NAME_CHARACTERS:
            raise CertificateRejected(
                f"{peer} is longer than the subject that nginx sees", "name a shorter one, or leave --peer out"
            )
        keys.append(f'"~^CN={re.escape(whole)}{"$" if whole == path else "/"}"')
    return keys
