"""The trust map: processes, the channels between them, and the state of each, from the evidence of both ends.

Decisions only; no I/O. Evidence of a job comes from files that the job's own code can write, so it is only shown and
never trusted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.core import PkiError
from sluice.core.pages import Tone, expiry_tone, identity_path
from sluice.pki import Role, SpiffeId
from sluice.pki.tls import PeerCertificate
from sluice.runtime.messages import ConnectionEvidence
from sluice.runtime.rest import AuditSummary, Examined
from sluice.runtime.ui.trust_members import Registered
from sluice.runtime.ui.trust_outside import CHANNEL, OUTSIDE, EgressDestination

GOOD_PROTOCOL = "TLSv1.3"
GROUP_ABOVE = 6
"""If a role has more processes than this, they share one box with a dot for each."""
UNIX_SOCKET = "unix socket"
ENDED = "ended"
MAX_PROCESSES = 2000

_TONES: tuple[Tone, ...] = ("idle", "ok", "run", "warn", "bad")


def worst(tones: Iterable[Tone]) -> Tone:
    """The most serious of ``tones``."""
    return max(tones, key=_TONES.index, default="idle")


@dataclass(frozen=True, slots=True)
class Process:
    """A process: its identity, and the latest certificate of it that a peer saw."""

    identity: str
    role: str
    name: str
    certificate: PeerCertificate | None
    tone: Tone
    state: str = ""
    """``ended``, the state of a registered process, or empty."""

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self.state == ENDED

    @property
    def key(self) -> str:
        """For links on the page."""
        return _key("p", self.identity)


@dataclass(frozen=True, slots=True)
class Link:
    """All connections on one channel between two processes or groups.


    Attributes:
        dialer: the group (a key of :attr:`TrustMap.groups`) that opened the connections.
        listener: the group that accepted the connections.
        count: number of connections that were seen; 0 for a channel that is known without evidence.
        pairs: number of pairs of processes.
        concerns: sentences about problems.
    """

    channel: str
    dialer: str
    listener: str
    protocols: tuple[str, ...] = ()
    ciphers: tuple[str, ...] = ()
    count: int = 0
    pairs: int = 1
    latest: float = 0.0
    examined: Examined | None = None
    concerns: tuple[str, ...] = ()
    tone: Tone = "ok"
    ended: bool = False
    """Whether all processes of one end have ended."""
    out: tuple[EgressDestination, ...] = ()
    """The connections to destinations outside of the cluster that the link represents."""

    @property
    def verdict(self) -> str:
        """The policy's verdict on connections to the outside; empty for connections inside."""
        return next((each.verdict.value for each in self.out if each.tone == self.tone), "")

    @property
    def key(self) -> str:
        """For links on the page."""
        return _key("c", f"{self.channel} {self.dialer} {self.listener}")

    @property
    def local(self) -> bool:
        """Whether the channel stays on the machine and has no TLS."""
        return self.protocols == (UNIX_SOCKET,)


@dataclass(frozen=True, slots=True)
class Group:
    """One box in the picture: a process, or many processes of one role."""

    key: str
    role: str
    title: str
    members: tuple[Process, ...]
    tone: Tone


@dataclass(frozen=True, slots=True)
class TrustMap:
    """The whole map. ``groups`` are by key."""

    groups: Mapping[str, Group]
    links: tuple[Link, ...]

    @property
    def processes(self) -> tuple[Process, ...]:
        """Every process, by role and name."""
        return tuple(each for group in self.groups.values() for each in group.members)


@dataclass(slots=True)
class _Seen:
    protocols: dict[str, None] = field(default_factory=dict)
    ciphers: dict[str, None] = field(default_factory=dict)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    count: int = 0
    latest: float = 0.0


def trust_map(
    evidence: Sequence[ConnectionEvidence],
    *,
    now: float,
    local: Sequence[tuple[str, str, str]] = (),
    audit: AuditSummary | None = None,
    own: tuple[str, PeerCertificate] | None = None,
    ended: Collection[str] = (),
    registered: Sequence[Registered] = (),
    outside: Sequence[EgressDestination] = (),
) -> TrustMap:
    """Build the map from ``evidence``.


    Args:
        evidence: the connections as their ends saw them.
        now: the present, in epoch seconds.
        local: channels over a Unix socket: channel, dialer, listener.
        audit: the results of the last audit about listeners.
        own: identity and certificate of the process that builds the map.
        ended: identities of processes that have ended.
        registered: processes that are known without a visible connection.
        outside: connections to destinations outside of the cluster.
    """
    shown: dict[str, tuple[float, PeerCertificate]] = {}
    identities: dict[str, None] = {}
    if own is not None:
        identities[own[0]] = None
        shown[own[0]] = (now, own[1])
    for each in evidence:
        for identity in (each.local, each.peer):
            if len(identities) < MAX_PROCESSES:
                identities[identity] = None
        if each.certificate is not None:
            known = shown.get(each.peer)
            if known is None or each.certificate.not_after >= known[1].not_after:
                shown[each.peer] = (each.opened_at, each.certificate)
    for _, dialer, listener in local:
        identities |= {dialer: None, listener: None}
    states = {each.identity: each for each in registered[:MAX_PROCESSES]}
    identities |= dict.fromkeys(one for each in states.values() for one in (each.identity, each.keeper))
    identities |= dict.fromkeys(one for each in outside for one in (each.process, each.identity))
    out = {each.identity: each for each in sorted(outside, key=lambda destination: _TONES.index(destination.tone))}
    processes = [
        _destination(out[identity])
        if identity in out
        else _process(identity, shown[identity][1] if identity in shown else None, now, ended, states)
        for identity in identities
    ]
    processes.sort(key=lambda each: (each.role, _natural(each.name)))
    groups = _groups(processes)
    group_of = {each.identity: group.key for group in groups.values() for each in group.members}
    links = _links(evidence, groups, group_of, now, audit)
    links += [
        Link(channel, group_of[dialer], group_of[listener], protocols=(UNIX_SOCKET,), tone="idle")
        for channel, dialer, listener in local
        if not any(each.channel == channel for each in links)
    ]
    drawn = {(each.channel, each.dialer, each.listener) for each in links}
    for one in states.values():
        place = (one.channel, group_of[one.identity], group_of[one.keeper])
        if place not in drawn:
            drawn.add(place)
            links.append(Link(*place, tone="idle"))
    return TrustMap(groups, (*links, *_links_out(outside, group_of)))


def _process(
    identity: str,
    certificate: PeerCertificate | None,
    now: float,
    ended: Collection[str],
    states: Mapping[str, Registered],
) -> Process:
    try:
        parsed = SpiffeId.parse(identity)
        role = str(parsed.role)
        name = identity_path(identity).rpartition("/")[2] if parsed.role is Role.EXECUTOR else parsed.name or role
    except PkiError:
        role, name = "unknown", identity[:80]
    tone: Tone = "idle"
    if certificate is not None:
        tone = expiry_tone(certificate.not_before, certificate.not_after, now)
    if identity in ended:
        return Process(identity, role, name, certificate, "idle", ENDED)
    if identity in states:
        return Process(identity, role, name, certificate, worst([tone, states[identity].tone]), states[identity].state)
    return Process(identity, role, name, certificate, tone)


def _destination(destination: EgressDestination) -> Process:
    return Process(
        destination.identity, OUTSIDE, destination.destination, None, destination.tone, destination.verdict.value
    )


def _links_out(outside: Sequence[EgressDestination], group_of: Mapping[str, str]) -> tuple[Link, ...]:
    between: dict[tuple[str, str], list[EgressDestination]] = {}
    for destination in outside:
        between.setdefault((group_of[destination.process], group_of[destination.identity]), []).append(destination)
    return tuple(
        Link(
            CHANNEL,
            dialer,
            listener,
            protocols=tuple(dict.fromkeys(each for destination in destinations for each in destination.protocols)),
            count=sum(destination.count for destination in destinations),
            pairs=len(destinations),
            latest=max(destination.latest for destination in destinations),
            concerns=tuple(
                f"{destination.destination} {destination.verdict.value}: {', '.join(destination.reasons)}"
                for destination in [each for each in destinations if each.reasons and each.tone != "ok"][:5]
            ),
            tone=worst(destination.tone for destination in destinations),
            out=tuple(destinations),
        )
        for (dialer, listener), destinations in between.items()
    )


def _groups(processes: Sequence[Process]) -> dict[str, Group]:
    by_role: dict[str, list[Process]] = {}
    for each in processes:
        by_role.setdefault(each.role, []).append(each)
    groups: dict[str, Group] = {}
    for role, members in by_role.items():
        if len(members) > GROUP_ABOVE:
            tone = worst(each.tone for each in members)
            many = "destinations" if role == OUTSIDE else f"{role}s"
            group = Group(_key("g", role), role, f"{len(members)} {many}", tuple(members), tone)
            groups[group.key] = group
            continue
        for each in members:
            groups[each.key] = Group(each.key, role, each.name, (each,), each.tone)
    return groups


def _links(
    evidence: Sequence[ConnectionEvidence],
    groups: Mapping[str, Group],
    group_of: Mapping[str, str],
    now: float,
    audit: AuditSummary | None,
) -> list[Link]:
    seen: dict[tuple[str, str, str], _Seen] = {}
    for each in evidence:
        dialer, listener = (each.local, each.peer) if each.direction == "dialed" else (each.peer, each.local)
        if dialer not in group_of or listener not in group_of:
            continue
        of = seen.setdefault((each.channel, group_of[dialer], group_of[listener]), _Seen())
        of.protocols[each.protocol] = None
        of.ciphers[each.cipher] = None
        of.pairs.add((dialer, listener))
        # A connection is reported twice if both ends were asked, so only the listener's report counts.
        of.count += each.direction == "accepted"
        of.latest = max(of.latest, each.opened_at)
    links = []
    for (channel, dialer, listener), found in sorted(seen.items()):
        concerns = [
            f"{version or 'no TLS'} instead of {GOOD_PROTOCOL}"
            for version in found.protocols
            if version != GOOD_PROTOCOL
        ]
        tone: Tone = "bad" if concerns else "ok"
        over = any(all(each.ended for each in groups[key].members) for key in (dialer, listener))
        if over and not concerns:
            tone = "idle"
        for key in (dialer, listener):
            late = [each for each in groups[key].members if each.tone in {"warn", "bad"}]
            if late:
                concerns.append(_late(late, now))
                tone = worst([tone, *(each.tone for each in late)])
        links.append(
            Link(
                channel=channel,
                dialer=dialer,
                listener=listener,
                protocols=tuple(found.protocols),
                ciphers=tuple(found.ciphers),
                count=max(found.count, len(found.pairs)),
                pairs=len(found.pairs),
                latest=found.latest,
                examined=None if audit is None else audit.of(channel, [p.identity for p in groups[listener].members]),
                concerns=tuple(concerns),
                tone=tone,
                ended=over,
            )
        )
    return links


def _late(late: Sequence[Process], now: float) -> str:
    names = ", ".join(identity_path(each.identity) for each in late[:3])
    more = f" and {len(late) - 3} more" if len(late) > 3 else ""
    over = any(each.certificate is not None and each.certificate.not_after <= now for each in late)
    what = "has expired" if over else "was not renewed at half of its lifetime"
    return f"the certificate of {names}{more} {what}"


def _natural(name: str) -> tuple[str, int, str]:
    """A sort key that puts ``tm-10`` after ``tm-9``."""
    head = name.rstrip("0123456789")
    digits = name[len(head) :]
    return head, int(digits[:12] or "0"), name


def _key(kind: str, text: str) -> str:
    """A short key that is safe in a URL fragment."""
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
