"""Decides for which audiences a job may get identity tokens. No I/O.

Everything that no rule allows is denied. Audiences are compared as whole strings, as the services that accept the
tokens do (RFC 7519, 4.1.3): a token for one service must not be valid for another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from sluice.gateway.authz.egress import EgressSubject
from sluice.gateway.authz.grantees import Grantees
from sluice.gateway.authz.rule_tables import MAX_ENTRIES, MAX_RULES, RuleTableError, read_grantees
from sluice.pki.jwt import TokenRejected, check_audiences

TOKEN_OPERATION = "jobs.token"  # noqa: S105  the name of an operation
"""The operation of issuing a token for a job, in the audit log."""


class AudienceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[audiences]]`` table."""

    audience: tuple[str, ...]
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    description: str = ""


@dataclass(frozen=True, slots=True)
class AudienceRule:
    """One ``[[audiences]]`` rule of the policy. ``name`` identifies it in the audit log: ``audiences[2]``, from 1."""

    name: str
    audiences: frozenset[str]
    grantees: Grantees


@dataclass(frozen=True, slots=True)
class AudienceRuling:
    """The decision about the audiences of one token. ``reason`` is for the audit log."""

    allowed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class AudiencePolicy:
    """All rules about tokens for jobs."""

    rules: tuple[AudienceRule, ...] = ()

    def decide(self, subject: EgressSubject, audience: Sequence[str]) -> AudienceRuling:
        """Whether ``subject`` may have a token for all of ``audience``. Some rule must allow each of them."""
        if not audience:
            return AudienceRuling(False, "no audience")
        used: dict[str, None] = {}
        for each in audience:
            rule = next((one for one in self.rules if each in one.audiences and _is_for(one.grantees, subject)), None)
            if rule is None:
                return AudienceRuling(False, f"no rule gives it {each[:200]!r}")
            used[rule.name] = None
        return AudienceRuling(True, f"{', '.join(used)} allows it")


def read_audiences(tables: Collection[AudienceTable], roles: Collection[str]) -> AudiencePolicy:
    """Read the rules. ``roles`` are the existing roles. Raises :class:`RuleTableError`."""
    if len(tables) > MAX_RULES:
        raise RuleTableError(f"{len(tables)} tables [[audiences]] are more than {MAX_RULES}")
    return AudiencePolicy(tuple(_rule(f"audiences[{number}]", table, roles) for number, table in enumerate(tables, 1)))


def _rule(name: str, table: AudienceTable, roles: Collection[str]) -> AudienceRule:
    if not table.audience:
        raise RuleTableError(f"{name} allows nothing", "audience", 'audience = ["sts.amazonaws.com"]')
    if len(table.audience) > MAX_ENTRIES:
        raise RuleTableError(f"{name} has more than {MAX_ENTRIES} audiences")
    for each in table.audience:
        try:
            check_audiences([each])
        except TokenRejected as error:
            raise RuleTableError(f"{name}: {each[:80]!r}: {error.what}", each) from error
        if "*" in each:
            raise RuleTableError(f"{name}: {each[:80]!r}: an audience is named in full", each)
    return AudienceRule(name, frozenset(table.audience), read_grantees(name, table, roles))


def _is_for(grantees: Grantees, subject: EgressSubject) -> bool:
    return grantees.matches(subject.owner, subject.roles, subject.groups, subject.job_name)
