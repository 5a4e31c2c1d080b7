"""Whether an identity that exists is as good as the one that would be issued now, and why not. Decisions only."""

from __future__ import annotations

import datetime as dt

from cryptography import x509

from sluice.pki.identities.directory import IdentityMaterial
from sluice.pki.identities.renewal import half_life
from sluice.pki.x509.key_identifiers import issuer_id, key_id
from sluice.pki.x509.profiles import Names, Profile, Purpose


def issue_reason(
    material: IdentityMaterial,
    names: Names,
    profile: Profile,
    authority: x509.Certificate,
    now: dt.datetime,
    *,
    revoked: bool = False,
) -> str:
    """Why ``material`` must be issued anew at ``now``; empty when it is as good as what ``authority`` would issue.

    Args:
        material: what is there, whole (key and leaf belong together).
        names: what the new certificate would say.
        profile: what it could be used for.
        authority: the certificate of the authority that would sign it.
        now: with time zone.
        revoked: this authority has revoked what is there.
    """
    # 1. It is the identity in question, and of the authority that signs today.
    if material.spiffe_id != names.spiffe_id:
        return f"it is of {material.spiffe_id}"
    if issuer_id(material.leaf) != key_id(authority):
        return f"it is not of today's {profile.authority} authority"
    if revoked:
        return "it was revoked"
    # 2. It says what it would say, no less and no more.
    if purposes_of(material.leaf) != profile.purposes:
        return f"it is not for use as {' and '.join(profile.purposes)}"
    return _names_differ(material.leaf, names) or _no_time_left(material, now)


def kept_because(material: IdentityMaterial) -> str:
    """What to say of an identity that is left as it is."""
    return f"renewed from {half_life(material):%Y-%m-%d %H:%M} UTC on"


def alternative_names(leaf: x509.Certificate) -> tuple[list[str], list[str]]:
    """The DNS names and the addresses a leaf is for, in its order."""
    extension = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = [str(address) for address in extension.get_values_for_type(x509.IPAddress)]
    return extension.get_values_for_type(x509.DNSName), addresses


def _names_differ(leaf: x509.Certificate, names: Names) -> str:
    dns, ips = alternative_names(leaf)
    wanted, has = {*names.dns, *names.ips}, {*dns, *ips}
    if missing := sorted(wanted - has):
        return f"it lacks the name {', '.join(missing)}"
    if beyond := sorted(has - wanted):
        return f"it has the name {', '.join(beyond)}, which it should not have"
    return ""


def purposes_of(leaf: x509.Certificate) -> tuple[Purpose, ...]:
    """What the holder may be."""
    try:
        usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(purpose for purpose in Purpose if purpose.oid in usages)


def _no_time_left(material: IdentityMaterial, now: dt.datetime) -> str:
    # 3. It is valid and has more than half of its life left.
    if now < material.leaf.not_valid_before_utc:
        return "it is not valid yet"
    if now >= half_life(material):
        return f"it is past half of its life, which ends at {material.leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    return ""
