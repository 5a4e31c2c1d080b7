"""Decides when and why an identity is renewed, when a failed attempt is repeated, and when to warn.

Decisions only: takes and returns instants.
"""

from __future__ import annotations

import datetime as dt
import enum
from pathlib import Path

from cryptography import x509

from sluice.core import StoreError
from sluice.pki.identities.directory import IdentityMaterial, read_identity
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import Names, Profile, Validity, alternative_names, issuer_id, key_id, purposes_of

RENEW_EARLIEST = 0.45
RENEW_LATEST = 0.55
"""Share of its life after which an identity is renewed: half, with a random spread so that a cluster does not renew all
at once."""
FIRST_RETRY = dt.timedelta(seconds=1)
LONGEST_RETRY = dt.timedelta(minutes=5)
SHORTEST_RETRY = dt.timedelta(milliseconds=500)
WARN_BELOW = 0.25
"""Remaining share of its life below which a missing renewal is a warning."""
ALARM_BELOW = 0.10
_MOST_DOUBLINGS = 16


def half_life(material: IdentityMaterial) -> dt.datetime:
    """The middle of the leaf's validity: from then on it is renewed, with half of its life left for retries."""
    start, end = material.leaf.not_valid_before_utc, material.leaf.not_valid_after_utc
    return start + (end - start) / 2


def is_superseded(material: IdentityMaterial) -> bool:
    """Whether an authority other than the leaf's signs now (a rotation): the first anchor signs."""
    return issuer_id(material.leaf) != key_id(material.anchors[0])


def renewal_reason(directory: Path, spiffe_id: SpiffeId, now: dt.datetime) -> str:
    """Why the identity in ``directory`` must be issued anew at ``now``; empty when it is good.

    A missing or damaged set is a reason too, and one whose key and certificate do not match (a writer died between two
    files).
    """
    try:
        material, _ = read_identity(directory)
    except StoreError as error:
        return error.what
    if material.spiffe_id != spiffe_id:
        return f"it is of {material.spiffe_id}"
    if is_superseded(material):
        return "another authority signs today"
    return _no_time_left(material, now)


def issue_reason(
    material: IdentityMaterial,
    names: Names,
    profile: Profile,
    authority: x509.Certificate,
    now: dt.datetime,
    *,
    revoked: bool = False,
) -> str:
    """Why ``material`` must be issued anew at ``now``; empty when ``authority`` would issue an equivalent one.

    Args:
        material: what is there, whole (key and leaf belong together).
        names: names of the new certificate.
        profile: its purposes.
        authority: the certificate of the authority that would sign it.
        now: with time zone.
        revoked: this authority has revoked what is there.
    """
    # 1. It is the right identity, of the authority that signs now.
    if material.spiffe_id != names.spiffe_id:
        return f"it is of {material.spiffe_id}"
    if issuer_id(material.leaf) != key_id(authority):
        return f"it is not of today's {profile.authority} authority"
    if revoked:
        return "it was revoked"
    # 2. It has exactly the names and purposes of the new one.
    if purposes_of(material.leaf) != profile.purposes:
        return f"it is not for use as {' and '.join(profile.purposes)}"
    # 3. It is valid and has more than half of its life left.
    return _names_differ(material.leaf, names) or _no_time_left(material, now)


def kept_because(material: IdentityMaterial) -> str:
    """The message about an identity that is kept."""
    return f"renewed from {half_life(material):%Y-%m-%d %H:%M} UTC on"


def _names_differ(leaf: x509.Certificate, names: Names) -> str:
    dns, ips = alternative_names(leaf)
    wanted, has = {*names.dns, *names.ips}, {*dns, *ips}
    if missing := sorted(wanted - has):
        return f"it lacks the name {', '.join(missing)}"
    if beyond := sorted(has - wanted):
        return f"it has the name {', '.join(beyond)}, which it should not have"
    return ""


def _no_time_left(material: IdentityMaterial, now: dt.datetime) -> str:
    """Why to renew it at ``now``; empty while it is valid and has more than half of its life left."""
    if now < material.leaf.not_valid_before_utc:
        return "it is not valid yet"
    if now >= half_life(material):
        return f"it is past half of its life, which ends at {material.leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    return ""


class Urgency(enum.IntEnum):
    """How urgent a renewal is; more is worse."""

    FRESH = 0
    WARNING = 1
    CRITICAL = 2
    EXPIRED = 3


def renew_at(validity: Validity, spread: float) -> dt.datetime:
    """The instant of renewal; ``spread`` in [0, 1) is drawn once per generation."""
    share = RENEW_EARLIEST + (RENEW_LATEST - RENEW_EARLIEST) * spread
    return validity.start + (validity.end - validity.start) * share


def retry_at(now: dt.datetime, failures: int, spread: float, *, longest: dt.timedelta = LONGEST_RETRY) -> dt.datetime:
    """When to retry after the ``failures``-th failure in a row: doubling, bounded, the upper half at random."""
    whole = min(FIRST_RETRY * (1 << min(max(failures, 1) - 1, _MOST_DOUBLINGS)), longest)
    return now + max(whole * (0.5 + 0.5 * spread), SHORTEST_RETRY)


def urgency(validity: Validity, now: dt.datetime) -> Urgency:
    """How urgent the renewal is at ``now``."""
    left = validity.end - now
    life = validity.end - validity.start
    if left <= dt.timedelta(0):
        return Urgency.EXPIRED
    if left < life * ALARM_BELOW:
        return Urgency.CRITICAL
    if left < life * WARN_BELOW:
        return Urgency.WARNING
    return Urgency.FRESH


def is_due(validity: Validity, now: dt.datetime, spread: float) -> bool:
    """Whether to renew at ``now``; also if the certificate is not valid yet because a clock jumped back."""
    return now < validity.start or now >= renew_at(validity, spread)
