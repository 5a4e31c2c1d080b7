"""Warnings about the cluster's trust, as sentences for the overview page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sluice.core.pages import Tone, left
from sluice.runtime.rest import TrustFacts, anchor_tone
from sluice.runtime.sandbox import IsolationLevel
from sluice.runtime.ui.trust_map import TrustMap

MAX_CONCERNS = 6
NOTHING_KNOWN: Mapping[IsolationLevel, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Concern:
    """One warning."""

    tone: Tone
    text: str


def trust_warnings(
    found: TrustMap, facts: TrustFacts, now: float, isolation: Mapping[IsolationLevel, int] = NOTHING_KNOWN
) -> tuple[Concern, ...]:
    """The warnings, worst first; empty if there are none. ``isolation`` counts TaskManagers by isolation level."""
    concerns: dict[str, Concern] = {}
    if without := isolation.get(IsolationLevel.NONE):
        who = "A TaskManager runs" if without == 1 else f"{without} TaskManagers run"
        concerns["isolation"] = Concern("bad", f"{who} jobs without a sandbox.")
    for text in facts.superseded:
        concerns[text] = Concern("bad", f"{text[0].upper()}{text[1:]}. See the guide to a stolen key.")
    for link in found.links:
        for text in link.concerns:
            concerns.setdefault(text, Concern(link.tone, f"{text[0].upper()}{text[1:]} ({link.channel})."))
    authorities = [(each, anchor_tone(each, now)) for each in facts.anchors]
    for each, tone in authorities:
        # During a rotation the old authority may be about to expire, which is what the rotation is for.
        if tone != "ok" and (each.signs or len(authorities) == 1):
            concerns[each.key] = Concern(tone, f"The signing authority: {left(each.not_after, now)}. Rotate it.")
    if facts.audit is not None and facts.audit.total:
        number = facts.audit.total
        concerns["audit"] = Concern("bad", f"The last audit had {number} {'finding' if number == 1 else 'findings'}.")
    ordered = sorted(concerns.values(), key=lambda each: each.tone != "bad")
    hidden = len(ordered) - MAX_CONCERNS
    if hidden > 0:
        ordered = [*ordered[:MAX_CONCERNS], Concern("warn", f"And {hidden} more, on the trust map.")]
    return tuple(ordered)
