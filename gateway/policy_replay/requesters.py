"""Reconstructs the principal of a recorded request under another policy. No I/O.

A record contains the principal's roles. Some of them came from the policy of that time, by name or group; a changed
policy may assign others. The rest came from the credential or the user file, and does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.gateway.audit_log import AuditRecord
from sluice.gateway.authz import Policy
from sluice.gateway.credentials import SessionRecord, TokenRecord, UserRecord
from sluice.pki.assertions import Credential, Principal, SessionId


@dataclass(frozen=True, slots=True)
class Requesters:
    """Reconstructs principals of records.

    Attributes:
        current: the current policy. It is assumed to have assigned the roles of the records.
        tokens: API tokens by id.
        sessions: sessions by id.
        users: the user file, by name.
    """

    current: Policy
    tokens: Mapping[str, TokenRecord] = field(default_factory=dict)
    sessions: Mapping[str, SessionRecord] = field(default_factory=dict)
    users: Mapping[str, UserRecord] = field(default_factory=dict)

    def principal_under(self, policy: Policy, record: AuditRecord) -> Principal | None:
        """The principal of ``record`` under ``policy``; None if its roles are unknown."""
        session = self.sessions.get(record.credential)
        token = self.tokens.get(session.token if session is not None else record.credential)
        if token is not None and token.name == record.principal:
            # A token has its own role, regardless of the roles that the policy assigns to its name.
            return _principal(record, (token.role,), (), token.scopes)
        user = self.users.get(record.principal)
        groups = self._groups(record, session, user)
        bound = () if user is None else user.roles
        if isinstance(record.roles, tuple):
            given = set(self.current.roles_of(record.principal, groups))
            bound = (*bound, *(role for role in record.roles if role not in given))
        elif user is None and session is None:
            return None
        roles = dict.fromkeys([*bound, *policy.roles_of(record.principal, groups)])
        return _principal(record, tuple(roles), groups, ())

    def _groups(self, record: AuditRecord, session: SessionRecord | None, user: UserRecord | None) -> tuple[str, ...]:
        if isinstance(record.groups, tuple):
            return record.groups
        if user is not None:
            return user.groups
        return () if session is None else session.groups


def _principal(
    record: AuditRecord, roles: tuple[str, ...], groups: tuple[str, ...], scopes: tuple[str, ...]
) -> Principal:
    return Principal(record.principal, roles, "session", Credential.of_session(SessionId("")), groups, scopes)
