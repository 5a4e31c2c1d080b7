"""The contents of each kind of certificate: authority, key usage, extended key usage, names, lifetime.

Decisions only; no I/O. Sources: RFC 5280, X509-SVID
(https://github.com/spiffe/spiffe/blob/main/standards/X509-SVID.md), section 2 of the design.
"""

from __future__ import annotations

import datetime as dt
import enum
import ipaddress
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sluice.core import CertificateRejected
from sluice.pki.config import PkiConfig
from sluice.pki.spiffe_id import Role, SpiffeId

MAX_COMMON_NAME_CHARACTERS = 64
"""ub-common-name of RFC 5280, appendix A.1."""
MAX_LEAF_LIFETIME = dt.timedelta(days=398)
"""Longest lifetime of a leaf: the most that browsers accept of a server."""
MIN_LEAF_LIFETIME = dt.timedelta(minutes=1)
SAME_LIFETIME = dt.timedelta(minutes=1)
"""Lifetimes that differ by less count as equal, because of rounding."""
MAX_NAMES = 64
"""Most DNS names, and most addresses, in one certificate."""

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DNS_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")


class AuthorityKind(enum.StrEnum):
    """The three authorities: the root signs the other two and nothing else."""

    ROOT = "root"
    INTERNAL = "internal"
    EDGE = "edge"


ISSUING = (AuthorityKind.INTERNAL, AuthorityKind.EDGE)


class Purpose(enum.StrEnum):
    """The part that the holder of a certificate may have in a handshake."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def oid(self) -> x509.ObjectIdentifier:
        """The extended key usage that stands for it (RFC 5280, 4.2.1.12)."""
        return ExtendedKeyUsageOID.CLIENT_AUTH if self is Purpose.CLIENT else ExtendedKeyUsageOID.SERVER_AUTH


@dataclass(frozen=True, slots=True)
class Profile:
    """The rules for one kind of leaf."""

    authority: AuthorityKind
    purposes: tuple[Purpose, ...]
    lifetime: dt.timedelta
    """By default."""
    longest: dt.timedelta = MAX_LEAF_LIFETIME
    """Longest lifetime, whatever is requested."""


def workload_profile(role: Role, config: PkiConfig) -> Profile:
    """The profile of a process (both ends of internal channels) or of a user (client of the edge)."""
    if role is Role.USER:
        return _profile(AuthorityKind.EDGE, (Purpose.CLIENT,), config.leaf_hours, config)
    hours = config.job_hours if role in {Role.DRIVER, Role.EXECUTOR} else config.leaf_hours
    return _profile(AuthorityKind.INTERNAL, (Purpose.CLIENT, Purpose.SERVER), hours, config)


def edge_server_profile(role: Role, config: PkiConfig) -> Profile:
    """The profile of the gateway's public certificate."""
    if role is not Role.GATEWAY:
        raise CertificateRejected(f"role {role} has no public certificate", "only the gateway has one")
    return _profile(AuthorityKind.EDGE, (Purpose.SERVER,), config.leaf_hours, config)


def host_profile(lifetime: dt.timedelta, config: PkiConfig) -> Profile:
    """The profile of a server outside Sluice: signed by the edge authority, for servers only."""
    longest = min(dt.timedelta(hours=config.max_leaf_hours), MAX_LEAF_LIFETIME)
    return Profile(AuthorityKind.EDGE, (Purpose.SERVER,), min(lifetime, longest), longest)


def _profile(authority: AuthorityKind, purposes: tuple[Purpose, ...], hours: float, config: PkiConfig) -> Profile:
    longest = min(dt.timedelta(hours=config.max_leaf_hours), MAX_LEAF_LIFETIME)
    return Profile(authority, purposes, min(dt.timedelta(hours=hours), longest), longest)


@dataclass(frozen=True, slots=True)
class Names:
    """The subject alternative names of a leaf: exactly one SPIFFE ID, and the host names of a listener."""

    spiffe_id: SpiffeId
    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()

    @classmethod
    def checked(cls, spiffe_id: SpiffeId, dns: Sequence[str], ips: Sequence[str]) -> Names:
        """Normalize and check; an invalid name is a :class:`CertificateRejected`."""
        if len(dns) > MAX_NAMES or len(ips) > MAX_NAMES:
            raise CertificateRejected(f"more than {MAX_NAMES} DNS names or addresses for {spiffe_id}")
        return cls(
            spiffe_id,
            tuple(dict.fromkeys(_certified_name(name) for name in dns)),
            tuple(dict.fromkeys(_address(address) for address in ips)),
        )

    def check_wildcards(self, purposes: Sequence[Purpose]) -> None:
        """Refuse wildcards except in pure server certificates, outside or at the edge: inside, names are exact."""
        wildcard = next((name for name in self.dns if name.startswith("*.")), None)
        if wildcard is not None and tuple(purposes) != (Purpose.SERVER,):
            raise CertificateRejected(
                f"{self.spiffe_id} cannot have the name {wildcard}", "wildcards are for --edge-server certificates"
            )

    def extension(self) -> x509.SubjectAlternativeName:
        """As the X.509 extension; the SPIFFE ID comes first."""
        return x509.SubjectAlternativeName(
            [
                x509.UniformResourceIdentifier(str(self.spiffe_id)),
                *(x509.DNSName(name) for name in self.dns),
                *(x509.IPAddress(ipaddress.ip_address(address)) for address in self.ips),
            ]
        )

    def subject(self) -> x509.Name:
        """A subject for human eyes; nothing decides on it."""
        path = str(self.spiffe_id).removeprefix(f"spiffe://{self.spiffe_id.trust_domain}/")
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, path[:MAX_COMMON_NAME_CHARACTERS])])


@dataclass(frozen=True, slots=True)
class HostNames:
    """The subject alternative names of a server outside Sluice: host names, and no SPIFFE ID.

    No internal channel admits such a certificate, because each requires exactly one SPIFFE ID.
    """

    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()

    @classmethod
    def checked(cls, dns: Sequence[str], ips: Sequence[str]) -> HostNames:
        """Normalize and check; an invalid name, or none at all, is a :class:`CertificateRejected`."""
        if not dns and not ips:
            raise CertificateRejected("a certificate of a server needs a name")
        if len(dns) > MAX_NAMES or len(ips) > MAX_NAMES:
            raise CertificateRejected(f"more than {MAX_NAMES} DNS names or addresses")
        return cls(
            tuple(dict.fromkeys(_certified_name(name) for name in dns)),
            tuple(dict.fromkeys(_address(address) for address in ips)),
        )

    def __str__(self) -> str:
        return ",".join((*(f"dns:{name}" for name in self.dns), *(f"ip:{address}" for address in self.ips)))

    def check_wildcards(self, purposes: Sequence[Purpose]) -> None:
        """Refuse wildcards except in pure server certificates."""
        if tuple(purposes) != (Purpose.SERVER,) and any(name.startswith("*.") for name in self.dns):
            raise CertificateRejected(f"{self} cannot have a wildcard", "wildcards are for servers alone")

    def extension(self) -> x509.SubjectAlternativeName:
        """As the X.509 extension."""
        return x509.SubjectAlternativeName(
            [
                *(x509.DNSName(name) for name in self.dns),
                *(x509.IPAddress(ipaddress.ip_address(address)) for address in self.ips),
            ]
        )

    def subject(self) -> x509.Name:
        """A subject for human eyes; nothing decides on it."""
        # Empty if there are only addresses: certbot treats a common name as a DNS name.
        short = next((name for name in self.dns if len(name) <= MAX_COMMON_NAME_CHARACTERS), "")
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, short)] if short else [])


def _certified_name(name: str) -> str:
    """A DNS name, or a wildcard for one whole label below at least two (RFC 9525, 6.3)."""
    if not name.startswith("*."):
        return dns_name(name)
    below = dns_name(name[2:])
    if "." not in below:
        raise CertificateRejected(f"the wildcard {name[:80]!r} is too wide", "as in *.apps.example.org")
    return f"*.{below}"


def dns_name(name: str) -> str:
    """``name`` in lower case; :class:`CertificateRejected` when it is no DNS name."""
    lowered = name.lower()
    if not _DNS_NAME.fullmatch(lowered):
        raise CertificateRejected(f"{name[:80]!r} is not a DNS name", "use labels of letters, digits and '-'")
    if re.fullmatch(r"[0-9.]+", lowered):
        raise CertificateRejected(f"{name[:80]!r} looks like an address", "give addresses with --ip")
    return lowered


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        raise CertificateRejected(f"{text[:80]!r} is not an IP address", "give host names with --dns") from error


def leaf_key_usage() -> x509.KeyUsage:
    """digitalSignature only: all that TLS 1.3 needs of any key type (RFC 8446, 4.4.2.2)."""
    return _key_usage(digital_signature=True)


def authority_key_usage() -> x509.KeyUsage:
    """keyCertSign and cRLSign (RFC 5280, 4.2.1.3)."""
    return _key_usage(key_cert_sign=True)


def _key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate holds, both inclusive, in UTC."""

    start: dt.datetime
    end: dt.datetime


def leaf_validity(
    now: dt.datetime, lifetime: dt.timedelta, *, backdate: dt.timedelta, issuer_end: dt.datetime
) -> Validity:
    """Backdated for clock skew between hosts, and never beyond the issuer's own end."""
    if not MIN_LEAF_LIFETIME <= lifetime <= MAX_LEAF_LIFETIME:
        raise CertificateRejected(
            f"a lifetime of {lifetime} is not possible",
            f"use {MIN_LEAF_LIFETIME.seconds // 60} minute to {MAX_LEAF_LIFETIME.days} days",
        )
    if now >= issuer_end:
        raise CertificateRejected(f"the issuing authority expired at {issuer_end:%Y-%m-%d %H:%M} UTC")
    return Validity(now - backdate, min(now + lifetime, issuer_end))


def kept_lifetime(
    leaf: x509.Certificate, profile: Profile, *, backdate: dt.timedelta, authority_ends: Collection[dt.datetime]
) -> dt.timedelta:
    """How long the successor of ``leaf`` lives: as long as ``leaf`` was issued for, within what ``profile`` allows.

    Args:
        leaf: what is renewed.
        profile: of the successor.
        backdate: how long before its issuance a leaf begins.
        authority_ends: ends of the authorities that may have signed ``leaf``. A leaf that ends with one of them was cut
            short, and its successor gets the default lifetime.
    """
    life = leaf.not_valid_after_utc - leaf.not_valid_before_utc - backdate
    if leaf.not_valid_after_utc in authority_ends:
        life = max(life, profile.lifetime)
    return min(max(life, MIN_LEAF_LIFETIME), profile.longest)


def changed_lifetime(before: x509.Certificate, now: x509.Certificate) -> str:
    """The message when ``now`` has another lifetime than ``before``, which it replaces; else empty."""
    lives = [each.not_valid_after_utc - each.not_valid_before_utc for each in (before, now)]
    if abs(lives[0] - lives[1]) < SAME_LIFETIME:
        return ""
    return f"it lives {lifetime_words(lives[1])} from now on, {lifetime_words(lives[0])} before"


def lifetime_words(lifetime: dt.timedelta) -> str:
    """A lifetime in the notation of options: ``90d``, ``12h``, ``90m``."""
    minutes = lifetime.total_seconds() / 60
    for unit, size in (("d", 24 * 60), ("h", 60)):
        if minutes >= 2 * size:
            return f"{round(minutes / size, 1):g}{unit}"
    return f"{round(minutes)}m"


def alternative_names(leaf: x509.Certificate) -> tuple[list[str], list[str]]:
    """The DNS names and the addresses a leaf is for, in its order."""
    extension = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = [str(address) for address in extension.get_values_for_type(x509.IPAddress)]
    return extension.get_values_for_type(x509.DNSName), addresses


def purposes_of(leaf: x509.Certificate) -> tuple[Purpose, ...]:
    """The purposes of a certificate."""
    try:
        usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(purpose for purpose in Purpose if purpose.oid in usages)
