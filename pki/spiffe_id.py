"""Workload identities: SPIFFE IDs and the roles they name.

Source: SPIFFE-ID standard (https://github.com/spiffe/spiffe/blob/main/standards/SPIFFE-ID.md).
Decisions only; no I/O.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from sluice.core import InvalidIdentity

MAX_SPIFFE_ID_BYTES = 2048
"""Longest SPIFFE ID accepted, in bytes (SPIFFE-ID section 2.3)."""

MAX_TRUST_DOMAIN_BYTES = 255
"""Longest trust domain accepted, in bytes (SPIFFE-ID section 2.1)."""

_TRUST_DOMAIN = re.compile(r"[a-z0-9._-]+")
_SEGMENT = re.compile(r"[a-zA-Z0-9._-]+")
_JOB_ID = re.compile(r"[0-9a-f]{32}")
_EXECUTOR = re.compile(r"0|[1-9][0-9]{0,8}")


class Role(enum.StrEnum):
    """The kind of a process, which decides which channels it may use."""

    JOBMANAGER = "jobmanager"
    TASKMANAGER = "taskmanager"
    SHUFFLE_MANAGER = "shuffle-manager"
    SHUFFLE_WORKER = "shuffle-worker"
    GATEWAY = "gateway"
    AUTH = "auth"
    CA = "ca"
    ZOOKEEPER = "zookeeper"
    DRIVER = "driver"
    EXECUTOR = "executor"
    USER = "user"


NAMED_ROLES = frozenset(Role) - {Role.DRIVER, Role.EXECUTOR}
"""Roles whose SPIFFE ID is ``spiffe://<td>/<role>/<name>``; the others belong to a job."""


@dataclass(frozen=True, slots=True)
class SpiffeId:
    """One identity, parsed.

    ``name`` is the process name, the user name, or for executors their number in the job;
    it is empty for drivers. ``job_id`` (32 lower-case hex digits) is set for drivers and executors only.
    """

    trust_domain: str
    role: Role
    name: str = ""
    job_id: str = ""

    def __post_init__(self) -> None:
        if not _TRUST_DOMAIN.fullmatch(self.trust_domain) or len(self.trust_domain) > MAX_TRUST_DOMAIN_BYTES:
            raise InvalidIdentity(
                f"trust domain {self.trust_domain!r} is not valid",
                "use lower-case letters, digits, '.', '_' and '-', at most 255",
            )
        if self.role in NAMED_ROLES:
            _check_segment("name", self.name)
            if self.job_id:
                raise InvalidIdentity(f"role {self.role} does not belong to a job")
            return
        if not _JOB_ID.fullmatch(self.job_id):
            raise InvalidIdentity(f"job id {self.job_id!r} is not 32 lower-case hexadecimal digits")
        if self.role is Role.EXECUTOR and not _EXECUTOR.fullmatch(self.name):
            raise InvalidIdentity(f"executor number {self.name!r} is not a small non-negative integer")
        if self.role is Role.DRIVER and self.name:
            raise InvalidIdentity("a driver has no name besides its job")

    def __str__(self) -> str:
        if self.role is Role.DRIVER:
            return f"spiffe://{self.trust_domain}/job/{self.job_id}/driver"
        if self.role is Role.EXECUTOR:
            return f"spiffe://{self.trust_domain}/job/{self.job_id}/executor/{self.name}"
        return f"spiffe://{self.trust_domain}/{self.role}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> SpiffeId:
        """Parse and validate ``text``; raises :class:`InvalidIdentity` naming what is wrong."""
        if len(text.encode()) > MAX_SPIFFE_ID_BYTES:
            raise InvalidIdentity(f"SPIFFE ID of more than {MAX_SPIFFE_ID_BYTES} bytes")
        if not text.startswith("spiffe://"):
            raise InvalidIdentity(f"{text[:80]!r} is not a SPIFFE ID: it must start with spiffe://")
        trust_domain, _, path = text.removeprefix("spiffe://").partition("/")
        match path.split("/"):
            case ["job", job_id, "driver"]:
                return cls(trust_domain, Role.DRIVER, "", job_id)
            case ["job", job_id, "executor", number]:
                return cls(trust_domain, Role.EXECUTOR, number, job_id)
            case [role, name] if role in NAMED_ROLES:
                return cls(trust_domain, Role(role), name)
            case _:
                raise InvalidIdentity(
                    f"{text[:200]!r} names no known role",
                    "expected spiffe://<trust domain>/<role>/<name> or …/job/<job id>/driver or …/executor/<n>",
                )

    @classmethod
    def process(cls, trust_domain: str, role: Role, name: str) -> SpiffeId:
        """The identity of the process ``name`` in ``role``."""
        return cls(trust_domain, role, name)

    @classmethod
    def driver(cls, trust_domain: str, job_id: str) -> SpiffeId:
        """The identity of the driver of job ``job_id``."""
        return cls(trust_domain, Role.DRIVER, "", job_id)

    @classmethod
    def executor(cls, trust_domain: str, job_id: str, number: int) -> SpiffeId:
        """The identity of executor ``number`` of job ``job_id``."""
        return cls(trust_domain, Role.EXECUTOR, str(number), job_id)


def _check_segment(what: str, value: str) -> None:
    if not _SEGMENT.fullmatch(value) or value in {".", ".."}:
        raise InvalidIdentity(f"{what} {value[:80]!r} is not valid", "use letters, digits, '.', '_' and '-'")
