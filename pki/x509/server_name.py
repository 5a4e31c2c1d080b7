"""Checks whether a certificate matches the host name that a client dials (RFC 9525). No I/O.

Inside a cluster, host names are not checked: the SPIFFE ID is the identity there. Clients at the edge and of outside
services check them.
"""

from __future__ import annotations

import ipaddress

from cryptography import x509

from sluice.core import CertificateRejected
from sluice.pki.x509.parse_errors import DAMAGED
from sluice.pki.x509.profiles import dns_name

MAX_SHOWN_NAMES = 8


def check_server_name(certificate: x509.Certificate, host: str) -> None:
    """Raise :class:`CertificateRejected` unless the certificate is for ``host``, a DNS name or an address.

    Only subject alternative names count, never the common name (RFC 9525, 2).
    """
    dns, addresses = server_names(certificate)
    bare = host.removeprefix("[").removesuffix("]")
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        wanted = dns_name(host.removesuffix("."))
        if any(matches(pattern, wanted) for pattern in dns):
            return
    else:
        if address in addresses:
            return
    names = [*dns, *map(str, addresses)]
    shown = ", ".join(names[:MAX_SHOWN_NAMES]) + (", …" if len(names) > MAX_SHOWN_NAMES else "")
    raise CertificateRejected(
        f"the certificate is not for {host[:253]!r}, but for {shown}" if names else "the certificate names no host",
        "dial one of its names, or issue it with --dns or --ip for this one",
    )


def check_host_argument(host: str) -> None:
    """Raise :class:`CertificateRejected` for what is neither a DNS name nor an address."""
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        dns_name(host.removesuffix("."))


def server_names(
    certificate: x509.Certificate,
) -> tuple[list[str], list[ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """The DNS names and addresses of a server with this certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [], []
    except DAMAGED as error:
        raise CertificateRejected(f"the names of the certificate cannot be read: {error}") from error
    addresses = (each for each in names.get_values_for_type(x509.IPAddress))
    return names.get_values_for_type(x509.DNSName), [
        each for each in addresses if isinstance(each, ipaddress.IPv4Address | ipaddress.IPv6Address)
    ]


def matches(pattern: str, host: str) -> bool:
    """Whether a DNS name of a certificate stands for ``host``, which is a DNS name in lower case.

    ``*`` stands for the whole first label and for nothing else: neither for several labels, nor for a part of one, nor
    directly below the top (RFC 9525, 6.3).
    """
    lowered = pattern.lower().removesuffix(".")
    if not lowered.startswith("*."):
        return "*" not in lowered and lowered == host
    first, _, rest = host.partition(".")
    return bool(first) and rest == lowered[2:] and "." in rest and "*" not in lowered[2:]
