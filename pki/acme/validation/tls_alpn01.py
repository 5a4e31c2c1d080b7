"""The challenge tls-alpn-01 (RFC 8737): a certificate that the host shows in a handshake for ``acme-tls/1``."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import ssl

from cryptography import x509

from sluice.pki.acme.identifiers import Identifier
from sluice.pki.acme.problems import AcmeProblem, ProblemType
from sluice.pki.acme.validation.reach import Reach, Resolver
from sluice.pki.tls import challenge_client_context
from sluice.pki.x509 import ACME_IDENTIFIER, ACME_TLS_PROTOCOL, DAMAGED, acme_identifier

TOTAL_SECONDS = 10.0
MAX_CERTIFICATE_BYTES = 64 << 10


async def check_tls_alpn(identifier: Identifier, key_authorization: str, reach: Reach, resolver: Resolver) -> None:
    """Raise :class:`AcmeProblem` unless the host shows the certificate of this challenge."""
    try:
        async with asyncio.timeout(TOTAL_SECONDS):
            certificate = await _shown(identifier, reach, resolver)
    except TimeoutError:
        raise AcmeProblem(
            ProblemType.CONNECTION, f"{identifier.value} did not answer within {TOTAL_SECONDS:.0f} s"
        ) from None
    check_challenge_certificate(certificate, identifier, key_authorization)


async def _shown(identifier: Identifier, reach: Reach, resolver: Resolver) -> bytes:
    failure = "no connection"
    for address in await reach.addresses_of(identifier, resolver):
        try:
            _, writer = await asyncio.open_connection(
                address,
                reach.tls_port,
                ssl=challenge_client_context([ACME_TLS_PROTOCOL]),
                server_hostname=_sni(identifier),
            )
        except (ssl.SSLError, OSError) as error:
            failure = type(error).__name__
            continue
        try:
            shown: ssl.SSLObject = writer.get_extra_info("ssl_object")
            if shown.selected_alpn_protocol() != ACME_TLS_PROTOCOL:
                raise AcmeProblem(ProblemType.UNAUTHORIZED, f"{identifier.value} does not speak {ACME_TLS_PROTOCOL}")
            return shown.getpeercert(binary_form=True) or b""
        finally:
            writer.transport.abort()
    raise AcmeProblem(ProblemType.CONNECTION, f"no TLS with {identifier.value} on port {reach.tls_port}: {failure}")


def check_challenge_certificate(der: bytes, identifier: Identifier, key_authorization: str) -> None:
    """Check the host's certificate; :class:`AcmeProblem` names the rule of RFC 8737, 3, that it breaks."""
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise _wrong(identifier, "a certificate that is too large")
    try:
        extensions = x509.load_der_x509_certificate(der).extensions
        names = list(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        marked = extensions.get_extension_for_oid(ACME_IDENTIFIER)
    except x509.ExtensionNotFound:
        raise _wrong(identifier, "a certificate without the name or the acmeIdentifier") from None
    except DAMAGED:
        raise _wrong(identifier, "a certificate that cannot be read") from None
    # 1. Exactly the one name.
    expected = (
        x509.DNSName(identifier.value)
        if identifier.type == "dns"
        else x509.IPAddress(ipaddress.ip_address(identifier.value))
    )
    if len(names) != 1 or names[0] != expected:
        raise _wrong(identifier, "a certificate for other names")
    # 2. The digest of the key authorization, in a critical extension.
    content = marked.value.value if isinstance(marked.value, x509.UnrecognizedExtension) else b""
    wanted = acme_identifier(key_authorization).value
    if not marked.critical or not hmac.compare_digest(content, wanted):
        raise _wrong(identifier, "a certificate for another key authorization")


def _wrong(identifier: Identifier, what: str) -> AcmeProblem:
    return AcmeProblem(ProblemType.INCORRECT_RESPONSE, f"{identifier.value} shows {what}")


def _sni(identifier: Identifier) -> str:
    """The server name to send; for an address, its reverse DNS name (RFC 8738, section 6)."""
    if identifier.type == "dns":
        return identifier.value
    return ipaddress.ip_address(identifier.value).reverse_pointer
