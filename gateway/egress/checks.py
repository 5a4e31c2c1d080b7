"""Decides about one CONNECT request: which job sends it, whether the policy allows it, and which address to use.

Every path through :meth:`EgressChecks.check` except for the last line of the decision refuses. Each decision is in the
audit log before Envoy receives it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from sluice.core import Address, EgressSetting, InvalidIdentity
from sluice.gateway.audit_log import AuditRecord, AuditWriter
from sluice.gateway.authz import (
    EGRESS_OPERATION,
    Destination,
    EgressSubject,
    Policy,
    UnclearDestination,
    authority,
    parse_authority,
)
from sluice.gateway.egress.job_owners import JobOwners, JobUnknown
from sluice.gateway.egress.reachable import Reachable
from sluice.gateway.egress.resolver import NameUnresolved, Resolver
from sluice.pki import Role, SpiffeId

MAX_FIELD_CHARACTERS = 128
MAX_PATH_CHARACTERS = 1024
_JOB_ROLES = frozenset({Role.DRIVER, Role.EXECUTOR})


@dataclass(frozen=True, slots=True)
class EgressRequest:
    """A CONNECT request that Envoy asks about.

    Attributes:
        method: the HTTP method as sent.
        authority: the authority of the request line.
        peer: the SPIFFE ID of the client's certificate.
        address: the client's address.
    """

    method: str
    authority: str
    peer: str
    request_id: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class EgressAnswer:
    """The decision.

    Attributes:
        status: 200, or the status of the refusal.
        reason: for the audit log and the client, which is our own relay.
        listener: the internal listener of Envoy that handles the connection.
        facts: metadata for Envoy: the ``address`` to connect to, and fields for its log.
    """

    status: int
    reason: str
    listener: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def allowed(self) -> bool:
        """Whether the connection is allowed."""
        return self.status == HTTPStatus.OK


@dataclass(frozen=True, slots=True)
class EgressChecks:
    """Decides according to the current policy.

    Attributes:
        policy: returns the current policy.
        jobs: finds the owner of a job.
        resolver: resolves names.
        audit: records each decision before it is returned.
        trust_domain: trust domain of all identities.
        mode: ``enforce``, or ``audit``, which only refuses what is impossible.
        reachable: selects one of several addresses.
    """

    policy: Callable[[], Policy]
    jobs: JobOwners
    resolver: Resolver
    audit: AuditWriter
    trust_domain: str
    mode: EgressSetting = EgressSetting.ENFORCE
    reachable: Reachable = field(default_factory=Reachable)

    async def check(self, request: EgressRequest) -> EgressAnswer:
        """Decide and record. Raises :class:`SluiceError` if that is not possible; Envoy then refuses."""
        subject, process = None, ""
        try:
            identity = self._identity(request.peer)
            process = "driver" if identity.role is Role.DRIVER else f"executor/{identity.name}"
            subject = await self.jobs.find(identity.job_id)
            answer = await self._decide(request, subject)
        except InvalidIdentity as error:
            answer = EgressAnswer(HTTPStatus.FORBIDDEN, f"not a process of a job: {error}")
        except JobUnknown as error:
            answer = EgressAnswer(HTTPStatus.FORBIDDEN, str(error))
        if subject is not None:
            who = {"job": subject.job_id, "owner": subject.owner, "process": process}
            answer = replace(answer, facts={**answer.facts, **who})
        await self.audit.append(_record(request, subject, process, answer))
        return answer

    def _identity(self, peer: str) -> SpiffeId:
        identity = SpiffeId.parse(peer)
        if identity.trust_domain != self.trust_domain or identity.role not in _JOB_ROLES:
            raise InvalidIdentity(f"{identity} may not use the egress proxy for jobs")
        return identity

    async def _decide(self, request: EgressRequest, subject: EgressSubject) -> EgressAnswer:
        if request.method != "CONNECT":
            return EgressAnswer(HTTPStatus.METHOD_NOT_ALLOWED, "only CONNECT is supported here")
        # 1. The destination must be unambiguous.
        try:
            wanted = parse_authority(request.authority)
        except UnclearDestination as error:
            return EgressAnswer(HTTPStatus.BAD_REQUEST, f"unclear destination: {error}")
        # 2. The policy decides before the name is resolved, because a DNS query reveals the name.
        ruling = self.policy().egress_rules.decide_authority(subject, request.authority)
        objection = "" if ruling.allowed else ruling.reason
        if objection and self._enforced:
            return EgressAnswer(HTTPStatus.FORBIDDEN, objection)
        # 3. Connect only to one of the addresses that were checked.
        try:
            addresses = await self._addresses(wanted)
        except NameUnresolved as error:
            return EgressAnswer(HTTPStatus.BAD_GATEWAY, str(error))
        admitted = ruling.allowed_addresses(addresses)
        if not admitted:
            objection = objection or f"{ruling.reason}, but not at {', '.join(addresses[:3])}"
            if self._enforced:
                return EgressAnswer(HTTPStatus.FORBIDDEN, objection)
        address = await self.reachable.first(admitted, wanted.port) if admitted else ipaddress.ip_address(addresses[0])
        facts = _facts(wanted, address) | {"rule": ruling.rule}
        reason = f"audit: would be refused: {objection}" if objection else ruling.reason
        return EgressAnswer(HTTPStatus.OK, reason, ruling.protocol if ruling.allowed else "auto", facts)

    async def _addresses(self, wanted: Destination) -> tuple[str, ...]:
        return await self.resolver.addresses(wanted.host) if isinstance(wanted.host, str) else (str(wanted.host),)

    @property
    def _enforced(self) -> bool:
        return self.mode is not EgressSetting.AUDIT


def _facts(wanted: Destination, address: Address) -> dict[str, str]:
    """Metadata for Envoy: the address to connect to, and the host name that the job must use in TLS and HTTP."""
    host, _, _ = str(wanted).rpartition(":")
    return {
        "address": authority(address, wanted.port),
        "authority": str(wanted),
        "host": host,
        "sni": wanted.name,
    }


def _record(request: EgressRequest, subject: EgressSubject | None, process: str, answer: EgressAnswer) -> AuditRecord:
    detail = {"process": process} if process else {}
    if subject is not None:
        detail["job"] = subject.job_name[:MAX_FIELD_CHARACTERS]
    if to := answer.facts.get("address"):
        detail["to"] = to
    return AuditRecord(
        event="decision",
        request_id=request.request_id[:MAX_FIELD_CHARACTERS],
        address=request.address[:MAX_FIELD_CHARACTERS],
        principal=subject.owner if subject is not None else "",
        credential=subject.job_id if subject is not None else request.peer[:MAX_FIELD_CHARACTERS],
        method=request.method[:MAX_FIELD_CHARACTERS],
        path=request.authority[:MAX_PATH_CHARACTERS],
        operation=EGRESS_OPERATION,
        decision="allow" if answer.allowed else "deny",
        status=answer.status,
        reason=answer.reason[:MAX_PATH_CHARACTERS],
        roles=subject.roles if subject is not None else (),
        groups=subject.groups if subject is not None else (),
        detail=detail,
    )
