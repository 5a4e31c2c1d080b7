"""The access policy: roles by operations by ownership. Decisions only, no I/O.

Deny beats allow, whichever role says it; what no role allows is denied; what is allowed for one's own jobs only is
decided by whoever knows the owner. An operation that the policy was not made for is denied to everybody, so that a
new route is closed until somebody has looked at it.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import msgspec

from sluice.gateway.authz.audiences import AudiencePolicy
from sluice.gateway.authz.egress import EgressPolicy, EgressRuling, EgressSubject
from sluice.gateway.authz.operations import OWNED_OPERATIONS, matches
from sluice.pki.assertions import Principal

DIGEST_CHARACTERS = 14
"""Of hexadecimal; see :attr:`Policy.digest`."""


@dataclass(frozen=True, slots=True)
class RoleRules:
    """The rules of one role, with patterns resolved to operations."""

    name: str
    allow: frozenset[str] = frozenset()
    allow_own: frozenset[str] = frozenset()
    deny: frozenset[str] = frozenset()
    description: str = ""


class Verdict(enum.Enum):
    """The decision about an operation, before the owner of the job is known."""

    ALLOW = "allow"
    OWN = "allow for one's own"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict and why: ``role`` is the one that decided (empty: none did)."""

    verdict: Verdict
    reason: str
    role: str = ""


@dataclass(frozen=True, slots=True)
class _Effect:
    allow: frozenset[str]
    own: frozenset[str]


@dataclass(frozen=True)
class Policy:
    """A whole policy.

    Attributes:
        operations: every operation it was made for.
        roles: its roles by name.
        groups: group -> roles of its members.
        users: principal's name -> roles.
        default_roles: roles of everybody who is authenticated, besides the others.
        egress_rules: what jobs may reach outside.
        audience_rules: whom jobs may prove their identity to.
        source: the SHA-256 of the file that it was read from, in hexadecimal.
    """

    operations: frozenset[str]
    roles: Mapping[str, RoleRules]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    default_roles: tuple[str, ...] = ()
    egress_rules: EgressPolicy = field(default_factory=EgressPolicy)
    audience_rules: AudiencePolicy = field(default_factory=AudiencePolicy)
    source: str = field(default="", compare=False)

    def egress(self, subject: EgressSubject, host: str, port: int) -> EgressRuling:
        """The decision about a connection of the job ``subject`` to ``host:port``, before a name is resolved."""
        return self.egress_rules.decide(subject, host, port)

    def rule(self, principal: Principal, operation: str) -> Ruling:
        """The decision about ``operation`` by ``principal``; see :class:`Verdict`."""
        if operation not in self.operations:
            return Ruling(Verdict.DENY, f"the policy does not know the operation {operation!r}")
        held = [self.roles[name] for name in principal.roles if name in self.roles]
        # 1. Deny beats allow, in whatever order the roles are listed.
        for role in held:
            if operation in role.deny:
                return Ruling(Verdict.DENY, f"role {role.name} denies it", role.name)
        # 2. A narrowed credential allows nothing beyond its scopes, whatever its owner may.
        if principal.scopes and not any(matches(scope, operation) for scope in principal.scopes):
            return Ruling(Verdict.DENY, f"the credential is for {', '.join(principal.scopes)} only")
        # 3. The widest grant counts.
        for role in held:
            if operation in role.allow:
                return Ruling(Verdict.ALLOW, f"role {role.name} allows it", role.name)
        for role in held:
            if operation in role.allow_own:
                return Ruling(Verdict.OWN, f"role {role.name} allows it for one's own jobs", role.name)
        return Ruling(Verdict.DENY, "no role allows it")

    def granted(self, principal: Principal) -> Mapping[str, Literal["allow", "own"]]:
        """The operations that ``principal`` is granted, for display; each request is decided again."""
        found: dict[str, Literal["allow", "own"]] = {}
        for operation in sorted(self.operations):
            verdict = self.rule(principal, operation).verdict
            if verdict is Verdict.ALLOW:
                found[operation] = "allow"
            elif verdict is Verdict.OWN and operation in OWNED_OPERATIONS:
                found[operation] = "own"
        return found

    def roles_of(self, name: str, groups: Iterable[str]) -> tuple[str, ...]:
        """The roles of an authenticated principal, each once: by name, by group, then what everybody has."""
        found = list(self.users.get(name, ()))
        for group in groups:
            found += self.groups.get(group, ())
        return tuple(dict.fromkeys([*found, *self.default_roles]))

    def role_grants(self) -> Mapping[str, frozenset[str]]:
        """Role -> operations that it grants for jobs of any owner."""
        return {name: role.allow - role.deny for name, role in self.roles.items()}

    def role_admits(self) -> Mapping[str, frozenset[str]]:
        """Role -> operations it grants at all: what a proxy may let through to REST, which compares owners."""
        owned = {name: role.allow_own & OWNED_OPERATIONS for name, role in self.roles.items()}
        return {name: (role.allow | owned[name]) - role.deny for name, role in self.roles.items()}

    @cached_property
    def digest(self) -> str:
        """Names what the roles grant: policies with the same digest grant the same by the same role."""
        effects = {
            name: [sorted(role.allow - role.deny), sorted(role.allow_own - role.allow - role.deny), sorted(role.deny)]
            for name, role in sorted(self.roles.items())
        }
        return hashlib.sha256(msgspec.json.encode(effects)).hexdigest()[:DIGEST_CHARACTERS]

    def sole_role(self, roles: Iterable[str]) -> str | None:
        """The one of ``roles`` that alone has exactly the effect of all of them together, if there is one."""
        held = [name for name in roles if name in self.roles]
        together = self._effect(held)
        return next((name for name in held if self._effect([name]) == together), None)

    def _effect(self, roles: Iterable[str]) -> _Effect:
        held = [self.roles[name] for name in roles]
        denied = frozenset[str]().union(*(role.deny for role in held))
        allowed = frozenset[str]().union(*(role.allow for role in held)) - denied
        return _Effect(allowed, frozenset[str]().union(*(role.allow_own for role in held)) - allowed - denied)
