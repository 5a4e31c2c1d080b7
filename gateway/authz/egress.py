"""Decides which external destinations a job may reach. No I/O.

Everything that no rule allows is denied. A rule for a name does not cover every address it may resolve to: after the
name is resolved, the address must be admitted as well (:meth:`EgressRuling.admits`). Only that address is used.
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
"""The operation of connecting to an external destination, in the audit log."""
HTTPS_PORT = 443

Protocol = Literal["auto", "tls", "tcp"]
"""What a job may send: ``tls``: TLS with the destination's name; ``auto``: anything but TLS or HTTP for another host;
``tcp``: anything."""
_LOOSEST: tuple[Protocol, ...] = ("tcp", "auto", "tls")


@dataclass(frozen=True, slots=True)
class EgressSubject:
    """A job that wants to connect. ``roles`` and ``groups`` are those of its owner at submission."""

    job_id: str
    job_name: str
    owner: str
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EgressRule:
    """One ``[[egress]]`` rule of the policy.

    Attributes:
        name: identifies the rule in the audit log: ``egress[2]``, counted from 1.
        addresses: networks to which its names must resolve. If empty, names must resolve to public addresses, and
            exact names may also resolve to private ones.
    """

    name: str
    to: tuple[Target, ...]
    grantees: Grantees
    protocol: Protocol = "auto"
    addresses: tuple[Network, ...] = ()
    description: str = ""

    def admits(self, target: Target, address: Address) -> bool:
        """Whether a destination that matches ``target`` may have this ``address``."""
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
        reason: the reason, for the audit log.
        grants: the rules that allow it, each with the target that matches.
    """

    allowed: bool
    reason: str
    wanted: Destination | None = None
    grants: tuple[tuple[EgressRule, Target], ...] = ()

    @property
    def rule(self) -> str:
        """The first rule that allows it; empty if none does."""
        return self.grants[0][0].name if self.grants else ""

    @property
    def scope(self) -> frozenset[tuple[str, ...]]:
        """What the rules allow for a connection: its protocol, and the addresses to which its name may resolve.

        If the rules allowed more when a connection was made, it may no longer be allowed now.
        """
        return frozenset(
            (rule.protocol, "suffix" if target.is_suffix else "exact", where)
            for rule, target in self.grants
            for where in (map(str, rule.addresses) if rule.addresses and target.network is None else ("",))
        )

    @property
    def protocol(self) -> Protocol:
        """The least strict protocol that a rule allows. At port 443, ``auto`` means TLS."""
        given = {rule.protocol for rule, _ in self.grants}
        found: Protocol = next((each for each in _LOOSEST if each in given), "tls")
        if found == "auto" and self.wanted is not None and self.wanted.port == HTTPS_PORT:
            return "tls"
        return found

    def admits(self, address: Address) -> bool:
        """Whether the destination may have this address."""
        actual = canonical(address)
        return any(rule.admits(target, actual) for rule, target in self.grants)

    def allowed_addresses(self, addresses: Iterable[str]) -> tuple[Address, ...]:
        """The resolved ``addresses`` to which a connection is allowed, in the same order."""
        found = []
        for text in addresses:
            try:
                address = canonical(ipaddress.ip_address(text))
            except ValueError:
                continue  # it has a zone, or is not an address
            if self.admits(address):
                found.append(address)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """All egress rules."""

    rules: tuple[EgressRule, ...] = ()

    def decide(self, subject: EgressSubject, host: str, port: int) -> EgressRuling:
        """The decision about ``host`` (a name, or an address without brackets) for the job ``subject``."""
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
            if rule.grantees.matches(subject.owner, subject.roles, subject.groups, subject.job_name)
            for target in rule.to
            if target.covers(wanted)
        )
        if not grants:
            return EgressRuling(False, "no rule allows it", wanted)
        rule, target = grants[0]
        return EgressRuling(True, f"{rule.name} allows {target.text}", wanted, grants)

    def decide_any_port(self, subject: EgressSubject, name: str) -> EgressRuling:
        """Whether any port of ``name`` is allowed. Only then does the resolver for the job resolve the name."""
        try:
            host = parse_host(name)
        except UnclearDestination as error:
            return EgressRuling(False, f"unclear destination: {error}")
        return next(
            (
                EgressRuling(True, f"{rule.name} allows {target.text}")
                for rule in self.rules
                if rule.grantees.matches(subject.owner, subject.roles, subject.groups, subject.job_name)
                for target in rule.to
                if target.covers(Destination(host, target.first_port))
            ),
            EgressRuling(False, "no rule allows it"),
        )
