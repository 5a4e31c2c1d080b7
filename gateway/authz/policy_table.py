"""Tables of expected decisions, to test a policy before it is used (``sluice policy test``). No I/O.

::

    [[case]]
    as = "ada"
    groups = ["data-engineers"]
    operation = "jobs.cancel"
    expect = "own"                 # allow, deny, or own: allowed for one's own jobs

    [[case]]
    as = "ada"
    job = "nightly"
    egress = "api.example.com:443" # instead of an operation: the destination of a connection by a job of that name
    expect = "allow"               # or deny
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Literal

import msgspec

from sluice.gateway.authz.egress import EgressSubject
from sluice.gateway.authz.policy import Policy, Ruling, Verdict
from sluice.gateway.errors import PolicyError
from sluice.pki.assertions import Credential, Principal, SessionId

MAX_CASES = 10_000
VERDICTS = {"allow": Verdict.ALLOW, "own": Verdict.OWN, "deny": Verdict.DENY}


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"name": "as"}):
    """One case: a principal, a request, and the expected decision. ``roles`` are in addition to those of the policy.

    A case has an ``operation``, or ``egress`` (a destination ``host:port``) and the name of the ``job``.
    """

    name: str
    expect: Literal["allow", "own", "deny"]
    operation: str = ""
    egress: str = ""
    job: str = ""
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    case: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The policy's decision about one case."""

    case: Case
    principal: Principal
    ruling: Ruling

    @property
    def holds(self) -> bool:
        """Whether the decision is the expected one."""
        return VERDICTS[self.case.expect] is self.ruling.verdict


def parse_table(data: bytes, where: str) -> tuple[Case, ...]:
    """Parse a table. Raises :class:`PolicyError`."""
    try:
        table = msgspec.convert(tomllib.loads(data.decode()), _Table)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PolicyError(f"{where} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise PolicyError(f"{where}: {error}", "each [[case]] has as, expect, and operation or egress") from error
    if not 0 < len(table.case) <= MAX_CASES:
        raise PolicyError(f"{where} has {len(table.case)} cases", f"1 to {MAX_CASES}")
    for number, case in enumerate(table.case, 1):
        if bool(case.operation) is bool(case.egress) or (case.egress and (case.expect == "own" or case.scopes)):
            raise PolicyError(
                f"{where}: case {number} is not a valid operation case or egress case",
                "set operation, or set egress without scopes and with expect allow or deny",
            )
    return table.case


def decide_case(case: Case, policy: Policy) -> CaseResult:
    """The decision of ``policy`` in ``case``."""
    roles = tuple(dict.fromkeys([*case.roles, *policy.roles_of(case.name, case.groups)]))
    principal = Principal(case.name, roles, "session", Credential.of_session(SessionId("")), case.groups, case.scopes)
    if case.egress:
        return CaseResult(case, principal, _rule_egress(case, principal, policy))
    return CaseResult(case, principal, policy.rule(principal, case.operation))


def _rule_egress(case: Case, owner: Principal, policy: Policy) -> Ruling:
    subject = EgressSubject("", case.job, owner.name, owner.roles, owner.groups)
    ruling = policy.egress_rules.decide_authority(subject, case.egress)
    return Ruling(Verdict.ALLOW if ruling.allowed else Verdict.DENY, ruling.reason)
