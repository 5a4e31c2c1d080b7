"""The certificate authorities that this JobManager trusts, and the phase of a CA rotation. Decisions only; no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509

from sluice.core.pages import Tone
from sluice.pki.authorities import Phase
from sluice.pki.tls import PeerCertificate, describe_certificate, key_name
from sluice.pki.x509 import issuer_id, key_id
from sluice.runtime.rest.audit_summary import AuditSummary

_PHASES = {
    Phase.STEADY: "One authority is trusted, and it signs.",
    Phase.PREPARED: "The new authority is trusted beside the old one, which still signs.",
    Phase.ACTIVE: "The new authority signs; the old one is still trusted.",
}


@dataclass(frozen=True, slots=True)
class Anchor:
    """A trusted certificate authority."""

    key: str
    name: str
    serial: str
    algorithm: str
    not_before: float
    not_after: float
    signs: bool


@dataclass(frozen=True, slots=True)
class TrustFacts:
    """What a JobManager itself knows about trust.


    Attributes:
        identity: its SPIFFE id.
        own: its own certificate.
        anchors: the authorities that it trusts, newest first.
        phase: the phase of a rotation: ``A``, ``A+B``, ``B+A``.
        meaning: the phase in a sentence.
        audit: the summary of the last audit of this home.
        superseded: sentences about identities that two processes use: a superseded certificate asked for renewal.
    """

    identity: str
    own: PeerCertificate | None
    anchors: tuple[Anchor, ...]
    phase: str
    meaning: str
    audit: AuditSummary | None = None
    superseded: tuple[str, ...] = ()

    def anchor(self, key: str) -> Anchor | None:
        """The authority with this key identifier, or None."""
        return next((each for each in self.anchors if each.key == key), None)


def unreported_trust() -> TrustFacts:
    """The facts of a JobManager that does not report trust."""
    return TrustFacts("", None, (), "?", "This process does not report its authorities.")


def trust_facts(
    identity: str,
    leaf: x509.Certificate,
    anchors: Sequence[x509.Certificate],
    audit: AuditSummary | None = None,
    superseded: Sequence[str] = (),
) -> TrustFacts:
    """The facts about the certificates that a process has loaded."""
    newest_first = sorted(anchors, key=lambda each: each.not_valid_before_utc, reverse=True)
    signer = issuer_id(leaf)
    phase = Phase.STEADY
    if len(newest_first) > 1:
        phase = Phase.ACTIVE if key_id(newest_first[0]) == signer else Phase.PREPARED
    found = tuple(
        Anchor(
            key=key_id(each),
            name=each.subject.rfc4514_string(),
            serial=f"{each.serial_number:x}",
            algorithm=key_name(each),
            not_before=each.not_valid_before_utc.timestamp(),
            not_after=each.not_valid_after_utc.timestamp(),
            signs=key_id(each) == signer,
        )
        for each in newest_first
    )
    own = describe_certificate(leaf)
    return TrustFacts(identity, own, found, phase.value, _PHASES[phase], audit, tuple(superseded))


def anchor_tone(anchor: Anchor, now: float) -> Tone:
    """The tone of an authority; it warns when a tenth of its lifetime is left, because people have to replace it."""
    left, life = anchor.not_after - now, anchor.not_after - anchor.not_before
    if left <= 0:
        return "bad"
    return "warn" if left < life / 10 else "ok"
