"""Reads the ``[[egress]]`` tables of the policy file. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import msgspec

from sluice.gateway.authz.destinations import UnclearDestination, parse_network, parse_target
from sluice.gateway.authz.egress import EgressPolicy, EgressRule, Protocol
from sluice.gateway.authz.rule_tables import MAX_ENTRIES, MAX_RULES, RuleTableError, read_grantees

_Parsed = TypeVar("_Parsed")


class EgressTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[egress]]`` table."""

    to: tuple[str, ...]
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    protocol: Protocol = "auto"
    addresses: tuple[str, ...] = ()
    description: str = ""


def read_rules(tables: Collection[EgressTable], roles: Collection[str]) -> EgressPolicy:
    """Read the rules. ``roles`` are the existing roles. Raises :class:`RuleTableError`."""
    if len(tables) > MAX_RULES:
        raise RuleTableError(f"{len(tables)} tables [[egress]] are more than {MAX_RULES}")
    return EgressPolicy(tuple(_rule(f"egress[{number}]", table, roles) for number, table in enumerate(tables, 1)))


def _rule(name: str, table: EgressTable, roles: Collection[str]) -> EgressRule:
    for key in ("to", "addresses"):
        if len(getattr(table, key)) > MAX_ENTRIES:
            raise RuleTableError(f"{name} has more than {MAX_ENTRIES} {key}")
    if not table.to:
        raise RuleTableError(f"{name} allows nothing", "to", 'to = ["api.example.com:443"]')
    targets = _each(name, table.to, parse_target)
    addresses = _each(name, table.addresses, parse_network)
    if addresses and all(target.network is not None for target in targets):
        raise RuleTableError(f"{name} has addresses but no name that could resolve to them", "addresses")
    return EgressRule(name, targets, read_grantees(name, table, roles), table.protocol, addresses, table.description)


def _each(name: str, texts: Iterable[str], parse: Callable[[str], _Parsed]) -> tuple[_Parsed, ...]:
    parsed = []
    for text in texts:
        try:
            parsed.append(parse(text))
        except UnclearDestination as error:
            raise RuleTableError(f"{name}: {text[:80]!r}: {error}", text) from error
    return tuple(parsed)
