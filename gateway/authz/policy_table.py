"""Tables of expected decisions, to test a policy before it is used (``sluice policy test``). No I/O.

::

    [[case]]
    as = "ada"
    groups = ["data-engineers"]
    operation = "jobs.cancel"
    expect = "own"                 # allow, deny, or own: allowed for one's own jobs
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Literal

import msgspec

from sluice.gateway.authz.policy import Policy, Ruling, Verdict
from sluice.gateway.errors import PolicyError
from sluice.pki.assertions import Credential, Principal, SessionId

MAX_CASES = 10_000
VERDICTS = {"allow": Verdict.ALLOW, "own": Verdict.OWN, "deny": Verdict.DENY}


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"name": "as"}):
    """One row: who asks for what, and the answer that is expected. ``roles`` are besides those of the policy."""

    name: str
    operation: str
    expect: Literal["allow", "own", "deny"]
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    case: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decision of the policy in one case."""

    case: Case
    principal: Principal
    ruling: Ruling

    @property
    def holds(self) -> bool:
        """Whether it is what was expected."""
        return VERDICTS[self.case.expect] is self.ruling.verdict


def parse_table(data: bytes, where: str) -> tuple[Case, ...]:
    """Read a table; raises :class:`PolicyError`."""
    try:
        table = msgspec.convert(tomllib.loads(data.decode()), _Table)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PolicyError(f"{where} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise PolicyError(f"{where}: {error}", "each [[case]] has as, operation and expect") from error
    if not 0 < len(table.case) <= MAX_CASES:
        raise PolicyError(f"{where} has {len(table.case)} cases", f"1 to {MAX_CASES}")
    return table.case


def decide_case(case: Case, policy: Policy) -> Outcome:
    """The decision of ``policy`` in ``case``."""
    roles = tuple(dict.fromkeys([*case.roles, *policy.roles_of(case.name, case.groups)]))
    principal = Principal(case.name, roles, "session", Credential.of_session(SessionId("")), case.groups, case.scopes)
    return Outcome(case, principal, policy.rule(principal, case.operation))
