"""Name constraints of authorities (RFC 5280, 4.2.1.10). No I/O.

OpenSSL and BoringSSL enforce them inside the handshake, even if the constrained authority is itself the trust anchor;
Java only below an anchor. So they are also checked here, independent of the verifier: when a leaf is signed, and when a
chain is verified. See ADR 19.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.x509.oid import NameOID

from sluice.core import CertificateRejected
from sluice.pki.config import PkiConfig
from sluice.pki.x509.profiles import AuthorityKind, dns_name

MAX_SUBTREES = 256
"""Most subtrees of one authority that are processed: each is compared with each name of a certificate."""
NO_MAIL_HOST = "invalid"
"""The only permitted host of mail addresses, which nobody can have (RFC 2606, section 2)."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def constraints_for(kind: AuthorityKind, config: PkiConfig) -> x509.NameConstraints:
    """What the authority ``kind`` may certify.

    Always: URI names of the trust domain, and no mail addresses. DNS names and addresses where the configuration
    lists some of that type. A trust domain that is no host name cannot be expressed, and is not constrained.

    Raises:
        CertificateRejected: the configuration lists what is neither a domain nor a network.
    """
    permitted: list[x509.GeneralName] = []
    if _is_host(config.trust_domain):
        permitted.append(x509.UniformResourceIdentifier(config.trust_domain))
    permitted.append(x509.RFC822Name(NO_MAIL_HOST))
    permitted.extend(_listed(kind, config))
    return x509.NameConstraints(permitted_subtrees=permitted, excluded_subtrees=None)


def check_below(issuer: x509.Certificate, certificate: x509.Certificate) -> None:
    """Refuse ``certificate`` if it has a name that ``issuer``, above it on its path, may not certify.

    Raises:
        CertificateRejected: names the name; or the constraint is of a type that is not understood (RFC 5280: process
            it or reject the certificate).
    """
    constraints = constraints_of(issuer)
    if constraints is not None:
        check_names(constraints, _names(certificate), certificate.subject)


def check_names(
    constraints: x509.NameConstraints, names: Iterable[x509.GeneralName], subject: x509.Name | None = None
) -> None:
    """Refuse names, and a subject, that ``constraints`` do not permit; :class:`CertificateRejected`."""
    permitted = constraints.permitted_subtrees or []
    excluded = constraints.excluded_subtrees or []
    if len(permitted) + len(excluded) > MAX_SUBTREES:
        raise CertificateRejected(f"an authority with more than {MAX_SUBTREES} name constraints")
    for name in (*names, *_of_subject(subject)):
        if any(_within(name, base) for base in excluded if isinstance(name, type(base))):
            raise CertificateRejected(f"the name {_text(name)} is excluded by its authority's constraints")
        bases = [base for base in permitted if isinstance(name, type(base))]
        if bases and not any(_within(name, base) for base in bases):
            raise CertificateRejected(
                f"the name {_text(name)} is not among those that its authority may certify",
                f"it may: {', '.join(_text(base) for base in bases[:8])}",
            )


def constraints_of(authority: x509.Certificate) -> x509.NameConstraints | None:
    """The constraints of an authority, None when it has none."""
    try:
        return authority.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return None


def describe_constraints(constraints: x509.NameConstraints | None) -> tuple[str, ...]:
    """One line for each subtree, for people."""
    if constraints is None:
        return ()
    return (
        *(f"only {_text(base)}" for base in constraints.permitted_subtrees or ()),
        *(f"not {_text(base)}" for base in constraints.excluded_subtrees or ()),
    )


def _listed(kind: AuthorityKind, config: PkiConfig) -> Sequence[x509.GeneralName]:
    entries = config.edge_names if kind is AuthorityKind.EDGE else config.internal_names
    if len(entries) >= MAX_SUBTREES - 1:
        raise CertificateRejected(f"pki.{kind}_names lists {len(entries)} names", f"at most {MAX_SUBTREES - 2}")
    found: list[x509.GeneralName] = []
    for entry in dict.fromkeys(entries):
        network = _network(entry)
        if network is not None:
            found.append(x509.IPAddress(network))
            continue
        try:
            found.append(x509.DNSName(dns_name(entry)))
        except CertificateRejected as error:
            raise CertificateRejected(
                f"pki.{kind}_names: {entry[:80]!r} is neither a domain nor a network",
                'as in ["example.org", "10.0.0.0/8"]',
            ) from error
    return found


def _network(entry: str) -> _Network | None:
    try:
        return ipaddress.ip_network(entry)
    except ValueError:
        return None


def _is_host(trust_domain: str) -> bool:
    """Whether a trust domain is a host name: SPIFFE allows characters that URI constraints do not."""
    try:
        return dns_name(trust_domain) == trust_domain
    except CertificateRejected:
        return False


def _names(certificate: x509.Certificate) -> Sequence[x509.GeneralName]:
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _of_subject(subject: x509.Name | None) -> list[x509.GeneralName]:
    """The subject itself unless it is empty, and mail addresses in it (RFC 5280, 4.2.1.10)."""
    if subject is None or not list(subject):
        return []
    addresses = subject.get_attributes_for_oid(NameOID.EMAIL_ADDRESS)
    return [x509.DirectoryName(subject), *(x509.RFC822Name(str(address.value)) for address in addresses)]


def _within(name: x509.GeneralName, base: x509.GeneralName) -> bool:
    """Whether ``name`` is in the subtree ``base`` of the same type."""
    match name, base:
        case x509.UniformResourceIdentifier(), x509.UniformResourceIdentifier():
            return _host_within(_host_of(name.value), base.value)
        case x509.DNSName(), x509.DNSName():
            domain = base.value.lower().removeprefix(".")
            return not domain or name.value.lower() == domain or name.value.lower().endswith(f".{domain}")
        case x509.RFC822Name(), x509.RFC822Name():
            if "@" in base.value:
                return name.value == base.value
            return _host_within(name.value.rpartition("@")[2], base.value)
        case x509.IPAddress(), x509.IPAddress():
            network, address = base.value, name.value
            if not isinstance(network, _Network) or isinstance(address, _Network):
                raise CertificateRejected(f"the constraint {_text(base)} or the address {_text(name)} is damaged")
            return address in network
        case x509.DirectoryName(), x509.DirectoryName():
            above = base.value.rdns
            return name.value.rdns[: len(above)] == above
    raise CertificateRejected(f"a name constraint on {_text(name)} is of a type that is not understood")


def _host_of(uri: str) -> str:
    """The host of a URI; one without a host cannot meet a constraint and is refused (RFC 5280, 4.2.1.10)."""
    try:
        host = urlsplit(uri).hostname
    except ValueError:
        host = None
    if not host:
        raise CertificateRejected(
            f"the URI {uri[:200]!r} names no host, and its authority may certify certain ones only"
        )
    return host


def _host_within(host: str, base: str) -> bool:
    """A constraint matches only its host; with a leading period, the hosts below it (RFC 5280, 4.2.1.10)."""
    host, base = host.lower(), base.lower()
    return host.endswith(base) and len(host) > len(base) if base.startswith(".") else host == base


def _text(name: x509.GeneralName) -> str:
    kinds = {
        x509.UniformResourceIdentifier: "URI",
        x509.DNSName: "DNS",
        x509.RFC822Name: "email",
        x509.IPAddress: "IP",
        x509.DirectoryName: "directory",
    }
    value = name.value.rfc4514_string() if isinstance(name, x509.DirectoryName) else name.value
    return f"{kinds.get(type(name), type(name).__name__)} {str(value)[:200]}"
