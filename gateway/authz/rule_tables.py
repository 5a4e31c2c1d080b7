"""The part that ``[[egress]]`` and ``[[audiences]]`` tables of the policy file share: their grantees. No I/O."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from sluice.gateway.authz.grantees import EVERYBODY, Grantees, is_job_pattern
from sluice.gateway.principal import is_group, is_name

MAX_RULES = 1000
MAX_ENTRIES = 200
"""Maximum length of each list in a rule."""


class GranteesTable(Protocol):
    """A table of the policy file with grantees."""

    @property
    def users(self) -> tuple[str, ...]:
        """Names of owners."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of owners."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of owners."""

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names of jobs."""


class RuleTableError(Exception):
    """A table does not clearly say what it allows. ``value`` is the wrong value."""

    def __init__(self, what: str, value: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.value = value
        self.remedy = remedy


def read_grantees(name: str, table: GranteesTable, roles: Collection[str]) -> Grantees:
    """The grantees of the rule ``name``. ``roles`` are the existing roles. Raises :class:`RuleTableError`."""
    if not (table.users or table.roles or table.groups or table.jobs):
        raise RuleTableError(f"{name} is for nobody", "", 'users = ["*"] means everybody')
    for key, given, valid in (
        ("users", table.users, lambda user: user == EVERYBODY or is_name(user)),
        ("roles", table.roles, lambda _: True),
        ("groups", table.groups, is_group),
        ("jobs", table.jobs, is_job_pattern),
    ):
        if len(given) > MAX_ENTRIES:
            raise RuleTableError(f"{name} has more than {MAX_ENTRIES} {key}")
        for value in given:
            if not valid(value):
                raise RuleTableError(f"{name}: {value!r} cannot be one of {key}", value)
    for role in table.roles:
        if role not in roles:
            raise RuleTableError(f"{name}: there is no role {role!r}", role, f"known: {', '.join(sorted(roles))}")
    return Grantees(table.users, table.roles, table.groups, table.jobs)
