"""To which jobs a rule applies: by the owner's name, roles or groups, and by the job's name. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

EVERYBODY = "*"
"""As a user name: every owner."""

_JOBS = re.compile(r"[^\x00-\x1f\x7f*]{0,127}\*?")


@dataclass(frozen=True, slots=True)
class Grantees:
    """The owners and jobs of one rule. Empty lists are ignored, but at least one list must not be empty.

    Attributes:
        users: names of owners; ``*``: every owner.
        roles: roles that the owner had when the job was submitted.
        groups: groups that the owner had when the job was submitted.
        jobs: names of jobs; a name that ends with ``*`` is a prefix. The submitter chooses the name of a job.
    """

    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()

    def matches(self, owner: str, roles: Iterable[str], groups: Iterable[str], job_name: str) -> bool:
        """Whether the rule applies: the owner matches users, roles or groups, and the job's name matches ``jobs``."""
        if not (self.users or self.roles or self.groups or self.jobs):
            return False
        owned = not (self.users or self.roles or self.groups) or (
            bool({EVERYBODY, owner} & set(self.users))
            or not set(self.roles).isdisjoint(roles)
            or not set(self.groups).isdisjoint(groups)
        )
        return owned and (not self.jobs or any(_is_named(job_name, pattern) for pattern in self.jobs))


def is_job_pattern(text: str) -> bool:
    """Whether ``text`` is valid in ``jobs``: a name, or a prefix followed by ``*``."""
    return bool(text) and _JOBS.fullmatch(text) is not None


def _is_named(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
