"""Whom a rule about jobs is for: the owner by name, role or group, and the job by its name. Values only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

EVERYBODY = "*"
"""As a user: every owner."""

_JOBS = re.compile(r"[^\x00-\x1f\x7f*]{0,127}\*?")


@dataclass(frozen=True, slots=True)
class Grantees:
    """The owners and jobs of one rule; what is not given does not matter, and something must be given.

    Attributes:
        users: names of owners; ``*``: every owner.
        roles: roles that the owner had when the job was submitted.
        groups: groups of the owner, likewise.
        jobs: names of jobs; one that ends with ``*`` stands for all that begin so. Whoever submits a job names it.
    """

    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()

    def match(self, owner: str, roles: Iterable[str], groups: Iterable[str], job_name: str) -> bool:
        """Whether the rule is for this job: its owner is among users, roles or groups, and its name among the jobs."""
        if not (self.users or self.roles or self.groups or self.jobs):
            return False
        owned = not (self.users or self.roles or self.groups) or (
            bool({EVERYBODY, owner} & set(self.users))
            or not set(self.roles).isdisjoint(roles)
            or not set(self.groups).isdisjoint(groups)
        )
        return owned and (not self.jobs or any(_is_named(job_name, pattern) for pattern in self.jobs))


def is_job_pattern(text: str) -> bool:
    """Whether ``text`` can be one of ``jobs``: a name, or the beginning of names and ``*``."""
    return bool(text) and _JOBS.fullmatch(text) is not None


def _is_named(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
