"""The authorities of this home and the certificates they signed, by expiry. Reads public data only, no keys."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from cryptography import x509

from sluice.core import Home, PkiError
from sluice.core.pages import Tone, expiry_tone
from sluice.pki import PkiConfig
from sluice.pki.authorities import AuthorityStore, Phase, Rotation, TrustStore, phase_of, read_rotation
from sluice.pki.ca import needing_attention
from sluice.pki.identities import read_identity
from sluice.pki.ledger import unexpired_certificates
from sluice.pki.revocation import RevocationStore, identity_directories
from sluice.pki.tls import key_name
from sluice.pki.x509 import ISSUING, AuthorityKind, key_id

MAX_LEAVES = 500
WARN_SHARE = 0.1
"""An authority with a smaller share of its lifetime left gets a warning, because operators must replace it."""


@dataclass(frozen=True, slots=True)
class AuthorityView:
    """A trusted authority."""

    kind: str
    name: str
    key: str
    algorithm: str
    serial: str
    not_before: float
    not_after: float
    signs: bool
    tone: Tone


@dataclass(frozen=True, slots=True)
class LeafView:
    """An unexpired certificate. ``here``: its identity directory is in this home."""

    identity: str
    kind: str
    serial: str
    not_before: float
    not_after: float
    revoked: bool
    here: bool
    tone: Tone


@dataclass(frozen=True, slots=True)
class PkiView:
    """The content of the page. ``steps`` are the remaining commands of a rotation; ``problems`` are read errors."""

    authorities: tuple[AuthorityView, ...]
    leaves: tuple[LeafView, ...]
    more: int
    phase: str
    rotating: str
    steps: tuple[str, ...]
    problems: tuple[str, ...]


def pki_view(home: Home, config: PkiConfig, now: float) -> PkiView:
    """The content of the page. Damaged or missing files are listed as problems; the rest is shown."""
    revocations = RevocationStore(home.pki, config, clock=lambda: dt.datetime.fromtimestamp(now, dt.UTC))
    problems: list[str] = []
    store = AuthorityStore(home.pki)
    kinds = [kind for kind in AuthorityKind if store.exists(kind)]
    authorities = [view for kind in kinds for view in _authorities(home, kind, now, problems)]
    leaves = _leaves(home, revocations, now, problems)
    try:
        shown_late = needing_attention(home, dt.datetime.fromtimestamp(now, dt.UTC))
        problems += [f"Attention: {each.describe()}. See docs/howto/stolen-key.md." for each in shown_late]
    except PkiError as error:
        problems.append(f"refused renewals: {error}")
    rotation, phase = _rotation(home, store, problems)
    return PkiView(
        tuple(authorities),
        tuple(leaves[:MAX_LEAVES]),
        max(0, len(leaves) - MAX_LEAVES),
        str(phase),
        "" if rotation is None else str(rotation.subject),
        _steps(phase, "internal" if rotation is None else str(rotation.subject)),
        tuple(problems),
    )


def _steps(phase: Phase, subject: str) -> tuple[str, ...]:
    """The remaining commands of the current rotation, or all commands of a new one."""
    verbs = {Phase.STEADY: ("prepare", "activate", "finish"), Phase.PREPARED: ("activate", "finish")}.get(phase)
    if verbs is None:
        verbs = ("abort",) if phase is Phase.ABORTING else ("finish",)
    return tuple(f"sluice pki rotate {verb} {subject} --wait 60" for verb in verbs)


def _authorities(home: Home, kind: AuthorityKind, now: float, problems: list[str]) -> list[AuthorityView]:
    try:
        if kind is AuthorityKind.ROOT:
            anchors: tuple[x509.Certificate, ...] = (AuthorityStore(home.pki).certificate(kind),)
        else:
            anchors = TrustStore(home.pki).anchors(kind)
    except PkiError as error:
        problems.append(f"the {kind} authority: {error.what}")
        return []
    return [_authority(kind, anchor, signs=number == 0, now=now) for number, anchor in enumerate(anchors)]


def _authority(kind: AuthorityKind, anchor: x509.Certificate, *, signs: bool, now: float) -> AuthorityView:
    begun, ends = anchor.not_valid_before_utc.timestamp(), anchor.not_valid_after_utc.timestamp()
    tone: Tone = "bad" if ends <= now else "warn" if ends - now < WARN_SHARE * (ends - begun) else "ok"
    return AuthorityView(
        str(kind),
        anchor.subject.rfc4514_string(),
        key_id(anchor),
        key_name(anchor),
        f"{anchor.serial_number:x}",
        begun,
        ends,
        signs,
        tone,
    )


def _leaves(home: Home, revocations: RevocationStore, now: float, problems: list[str]) -> list[LeafView]:
    found: dict[int, LeafView] = {}
    by_key = _kinds_by_key(home, problems)
    for directory in identity_directories(home):
        try:
            material, _ = read_identity(directory)
        except (PkiError, ValueError) as error:
            if directory.exists():  # the directory of a job is removed when the job ends
                problems.append(f"{directory.relative_to(home.root)}: {error}")
            continue
        leaf = material.leaf
        begun, ends = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
        kind = next((by_key[key_id(anchor)] for anchor in material.anchors if key_id(anchor) in by_key), None)
        revoked = kind is not None and _is_revoked(revocations, kind, leaf.serial_number)
        found[leaf.serial_number] = LeafView(
            str(material.spiffe_id),
            "" if kind is None else str(kind),
            f"{leaf.serial_number:x}",
            begun,
            ends,
            revoked,
            here=True,
            tone="bad" if revoked else expiry_tone(begun, ends, now),
        )
    try:
        for kind, target in unexpired_certificates(home.pki, dt.datetime.fromtimestamp(now, dt.UTC)):
            if target.serial in found or target.not_after is None:
                continue
            revoked = _is_revoked(revocations, kind, target.serial)
            ends = target.not_after.timestamp()
            found[target.serial] = LeafView(
                target.identity,
                str(kind),
                f"{target.serial:x}",
                0.0,
                ends,
                revoked,
                here=False,
                tone="bad" if revoked else "idle",
            )
    except PkiError as error:
        problems.append(f"the ledger: {error}")
    return sorted(found.values(), key=lambda each: (not each.here, each.not_after))


def _kinds_by_key(home: Home, problems: list[str]) -> dict[str, AuthorityKind]:
    found: dict[str, AuthorityKind] = {}
    for kind in ISSUING:
        if AuthorityStore(home.pki).exists(kind):
            try:
                found |= {key_id(anchor): kind for anchor in TrustStore(home.pki).anchors(kind)}
            except PkiError as error:
                problems.append(f"the {kind} authority: {error}")
    return found


def _is_revoked(revocations: RevocationStore, kind: AuthorityKind, serial: int) -> bool:
    try:
        return revocations.is_revoked(kind, serial)
    except PkiError:
        return False


def _rotation(home: Home, store: AuthorityStore, problems: list[str]) -> tuple[Rotation | None, Phase]:
    try:
        rotation = read_rotation(home.pki)
        signing = {kind: key_id(store.certificate(kind)) for kind in AuthorityKind if store.exists(kind)}
        return rotation, phase_of(rotation, signing)
    except (PkiError, KeyError) as error:
        problems.append(f"the rotation: {error}")
        return None, Phase.STEADY
