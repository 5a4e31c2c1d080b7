"""The way out: which jobs may reach which destinations. Decisions only, no I/O.

What no rule allows is denied. A rule that allows a name says nothing about where that name leads: once it is resolved,
the address is decided about, too (:meth:`EgressRuling.admits`), and connected to is the address that was admitted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sluice.core import Address, Network, Reach, block_of, canonical, writes_out
from sluice.gateway.authz.destinations import Destination, Target, UnclearDestination, parse_authority, parse_host
from sluice.gateway.authz.grantees import Grantees

EGRESS_OPERATION = "egress.connect"
"""A connection to a destination outside, in the audit log."""
HTTPS_PORT = 443

Protocol = Literal["auto", "tls", "tcp"]
"""What a job may speak: TLS that shows the destination's name, whatever is not TLS or HTTP for another host, or
anything."""
_LOOSEST: tuple[Protocol, ...] = ("tcp", "auto", "tls")


@dataclass(frozen=True, slots=True)
class EgressSubject:
    """A job that wants to connect; its owner's roles and groups are those at submission."""

    job_id: str
    job_name: str
    owner: str
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EgressRule:
    """One ``[[egress]]`` of the policy.

    Attributes:
        name: how the audit log calls it: ``egress[2]``, counted from 1.
        addresses: to what its names must resolve; empty: to public addresses, exact names also to private ones.
    """

    name: str
    to: tuple[Target, ...]
    grantees: Grantees
    protocol: Protocol = "auto"
    addresses: tuple[Network, ...] = ()
    description: str = ""

    def admits(self, target: Target, address: Address) -> bool:
        """Whether what ``target`` covers may be at ``address``."""
        if target.network is not None:
            return writes_out(target.network, address)
        if self.addresses:
            return any(writes_out(network, address) for network in self.addresses)
        _, reach = block_of(address)
        return reach is Reach.PUBLIC or (reach is Reach.PRIVATE and not target.is_suffix)


@dataclass(frozen=True, slots=True)
class EgressRuling:
    """The decision about a destination, before its name is resolved.

    Attributes:
        reason: for the audit log.
        grants: the rules that allow it, and by which of their targets.
    """

    allowed: bool
    reason: str
    wanted: Destination | None = None
    grants: tuple[tuple[EgressRule, Target], ...] = ()

    @property
    def rule(self) -> str:
        """The first rule that allows it; empty: none."""
        return self.grants[0][0].name if self.grants else ""

    @property
    def breadth(self) -> frozenset[tuple[str, ...]]:
        """What the rules let a connection be: what it may speak, and where its name may lead.

        A connection that was made when they allowed more may be one that they do not allow now.
        """
        return frozenset(
            (rule.protocol, "suffix" if target.is_suffix else "exact", where)
            for rule, target in self.grants
            for where in (map(str, rule.addresses) if rule.addresses and target.network is None else ("",))
        )

    @property
    def protocol(self) -> Protocol:
        """The loosest that a rule allows; at port 443 what is not told otherwise must be TLS."""
        given = {rule.protocol for rule, _ in self.grants}
        found: Protocol = next((each for each in _LOOSEST if each in given), "tls")
        if found == "auto" and self.wanted is not None and self.wanted.port == HTTPS_PORT:
            return "tls"
        return found

    def admits(self, address: Address) -> bool:
        """Whether the destination may be at this address."""
        actual = canonical(address)
        return any(rule.admits(target, actual) for rule, target in self.grants)

    def admitted(self, addresses: Iterable[str]) -> tuple[Address, ...]:
        """Those of the resolved ``addresses`` that may be connected to, in their order."""
        found = []
        for text in addresses:
            try:
                address = canonical(ipaddress.ip_address(text))
            except ValueError:
                continue  # with a zone, or no address at all
            if self.admits(address):
                found.append(address)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """All rules of the way out."""

    rules: tuple[EgressRule, ...] = ()

    def decide(self, subject: EgressSubject, host: str, port: int) -> EgressRuling:
        """The decision about ``host`` (a name or an address without brackets) for the job ``subject``."""
        try:
            return self._rule(subject, Destination(parse_host(host), port))
        except UnclearDestination as error:
            return EgressRuling(False, f"unclear destination: {error}")

    def decide_authority(self, subject: EgressSubject, text: str) -> EgressRuling:
        """The decision about the authority of a CONNECT request."""
        try:
            return self._rule(subject, parse_authority(text))
        except UnclearDestination as error:
            return EgressRuling(False, f"unclear destination: {error}")

    def _rule(self, subject: EgressSubject, wanted: Destination) -> EgressRuling:
        grants = tuple(
            (rule, target)
            for rule in self.rules
            if rule.grantees.match(subject.owner, subject.roles, subject.groups, subject.job_name)
            for target in rule.to
            if target.covers(wanted)
        )
        if not grants:
            return EgressRuling(False, "no rule allows it", wanted)
        rule, target = grants[0]
        return EgressRuling(True, f"{rule.name} allows {target.text}", wanted, grants)

    def decide_any_port(self, subject: EgressSubject, name: str) -> EgressRuling:
        """Whether any port of ``name`` is allowed: then a resolver for the job tells that it exists."""
        try:
            host = parse_host(name)
        except UnclearDestination as error:
            return EgressRuling(False, f"unclear destination: {error}")
        return next(
            (
                EgressRuling(True, f"{rule.name} allows {target.text}")
                for rule in self.rules
                if rule.grantees.match(subject.owner, subject.roles, subject.groups, subject.job_name)
                for target in rule.to
                if target.covers(Destination(host, target.first_port))
            ),
            EgressRuling(False, "no rule allows it"),
        )
