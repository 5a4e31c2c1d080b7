"""Decides, by the policy in force, which tokens jobs get. Each decision is audited before it is returned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sluice.core import Home
from sluice.gateway.audit_log import AuditLog, AuditRecord, AuditWriter, audit_file
from sluice.gateway.authz import TOKEN_OPERATION, EgressSubject, Policy, PolicyFile
from sluice.gateway.authz.policy_file import policy_file
from sluice.gateway.config import GatewayConfig
from sluice.pki.jwt import AskForToken, TokenQuery, TokenVerdict

MAX_LOGGED_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class JobTokenDecisions:
    """Decides about token requests of jobs; ``policy`` returns the policy in force."""

    policy: Callable[[], Policy]
    audit: AuditWriter

    async def decide(self, query: TokenQuery) -> TokenVerdict:
        """Decide about ``query`` and record the decision in the audit log.

        Raises:
            AuditLogError: the decision could not be recorded.
        """
        subject = EgressSubject(query.job_id, query.job_name, query.owner, query.roles, query.groups)
        ruling = self.policy().audience_rules.decide(subject, query.audience)
        await self.audit.append(
            AuditRecord(
                event="decision",
                principal=query.owner,
                credential=query.job_id,
                operation=TOKEN_OPERATION,
                path=" ".join(query.audience)[:MAX_LOGGED_CHARACTERS],
                decision="allow" if ruling.allowed else "deny",
                status=200 if ruling.allowed else 403,
                reason=ruling.reason,
                detail={"job": query.job_name[:MAX_LOGGED_CHARACTERS], "subject": query.subject},
                roles=query.roles,
            )
        )
        return TokenVerdict(allowed=ruling.allowed, reason=ruling.reason)


def job_tokens_in(home: Home, config: GatewayConfig, operations: Callable[[], frozenset[str]]) -> AskForToken:
    """The decision function for a JobManager on the auth service's machine: same policy file, same audit log.

    Both files are opened when the first job requests a token.
    """
    decisions: list[JobTokenDecisions] = []

    async def ask(query: TokenQuery) -> TokenVerdict:
        if not decisions:
            policy = PolicyFile(lambda: policy_file(home, config.policy_file), operations)
            decisions.append(JobTokenDecisions(policy.get, AuditWriter(AuditLog(audit_file(home)))))
        return await decisions[0].decide(query)

    return ask


def decode_query(data: bytes) -> TokenQuery:
    """Decode the token query of a JobManager; raises ``msgspec.MsgspecError``."""
    return msgspec.json.decode(data, type=TokenQuery)
