"""The access policy: which roles may perform which operations, on whose jobs. Decisions only, no I/O.

A deny in any role overrides every allow. Everything that no role allows is denied. If an operation is allowed for own
jobs only, the service that knows the owner decides. Operations that the policy does not know are denied to everybody,
so a new route stays closed until the policy covers it.
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
"""Length in hexadecimal digits; see :attr:`Policy.digest`."""


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
    """A verdict and its reason. ``role`` is the role that decided; empty if none did."""

    verdict: Verdict
    reason: str
    role: str = ""


@dataclass(frozen=True, slots=True)
class _Effect:
    allow: frozenset[str]
    own: frozenset[str]


@dataclass(frozen=True)
class Policy:
    """A complete access policy.

    Attributes:
        operations: all operations that the policy knows.
        roles: its roles by name.
        groups: roles of the members of each group.
        users: roles of each principal, by name.
        default_roles: roles that every authenticated principal has in addition.
        egress_rules: which external destinations jobs may reach.
        audience_rules: for which audiences jobs may get identity tokens.
        source: SHA-256 of the policy file, in hexadecimal.
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
        # 1. Deny overrides allow, regardless of the order of roles.
        for role in held:
            if operation in role.deny:
                return Ruling(Verdict.DENY, f"role {role.name} denies it", role.name)
        # 2. A credential with scopes is limited to them, whatever its owner may do.
        if principal.scopes and not any(matches(scope, operation) for scope in principal.scopes):
            return Ruling(Verdict.DENY, f"the credential is for {', '.join(principal.scopes)} only")
        # 3. The widest grant applies.
        for role in held:
            if operation in role.allow:
                return Ruling(Verdict.ALLOW, f"role {role.name} allows it", role.name)
        for role in held:
            if operation in role.allow_own:
                return Ruling(Verdict.OWN, f"role {role.name} allows it for one's own jobs", role.name)
        return Ruling(Verdict.DENY, "no role allows it")

    def granted(self, principal: Principal) -> Mapping[str, Literal["allow", "own"]]:
        """The operations that ``principal`` is granted, for display only. Each request is decided again."""
        found: dict[str, Literal["allow", "own"]] = {}
        for operation in sorted(self.operations):
            verdict = self.rule(principal, operation).verdict
            if verdict is Verdict.ALLOW:
                found[operation] = "allow"
            elif verdict is Verdict.OWN and operation in OWNED_OPERATIONS:
                found[operation] = "own"
        return found

    def roles_of(self, name: str, groups: Iterable[str]) -> tuple[str, ...]:
        """The roles of an authenticated principal without duplicates: by name, by group, then the default roles."""
        found = list(self.users.get(name, ()))
        for group in groups:
            found += self.groups.get(group, ())
        return tuple(dict.fromkeys([*found, *self.default_roles]))

    def role_grants(self) -> Mapping[str, frozenset[str]]:
        """The operations that each role grants for jobs of any owner."""
        return {name: role.allow - role.deny for name, role in self.roles.items()}

    def operations_by_role(self) -> Mapping[str, frozenset[str]]:
        """The operations that each role grants, even if for own jobs only.

        A proxy may pass them to REST, which compares owners.
        """
        owned = {name: role.allow_own & OWNED_OPERATIONS for name, role in self.roles.items()}
        return {name: (role.allow | owned[name]) - role.deny for name, role in self.roles.items()}

    @cached_property
    def digest(self) -> str:
        """Digest of what the roles grant. Policies with the same digest grant the same operations to each role."""
        effects = {
            name: [sorted(role.allow - role.deny), sorted(role.allow_own - role.allow - role.deny), sorted(role.deny)]
            for name, role in sorted(self.roles.items())
        }
        return hashlib.sha256(msgspec.json.encode(effects)).hexdigest()[:DIGEST_CHARACTERS]

    def sole_role(self, roles: Iterable[str]) -> str | None:
        """A single role among ``roles`` that has the same effect as all of them together, if there is one."""
        held = [name for name in roles if name in self.roles]
        together = self._effect(held)
        return next((name for name in held if self._effect([name]) == together), None)

    def _effect(self, roles: Iterable[str]) -> _Effect:
        held = [self.roles[name] for name in roles]
        denied = frozenset[str]().union(*(role.deny for role in held))
        allowed = frozenset[str]().union(*(role.allow for role in held)) - denied
        return _Effect(allowed, frozenset[str]().union(*(role.allow_own for role in held)) - allowed - denied)
