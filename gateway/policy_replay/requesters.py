"""The principal of a recorded request, as another policy would make it. No I/O.

A record says which roles a principal had. Some of them came from the policy of that time, by name or group; a changed
policy may give others. The rest came with the credential or from the user file, and stays.
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
    """Finds principals of records again.

    Attributes:
        current: the policy in force, by which the roles of a record are taken to have come about.
        tokens: API tokens by id.
        sessions: sessions by id.
        users: the user file, by name.
    """

    current: Policy
    tokens: Mapping[str, TokenRecord] = field(default_factory=dict)
    sessions: Mapping[str, SessionRecord] = field(default_factory=dict)
    users: Mapping[str, UserRecord] = field(default_factory=dict)

    def under(self, policy: Policy, record: AuditRecord) -> Principal | None:
        """The principal of ``record`` under ``policy``; None when nobody can tell which roles it had."""
        session = self.sessions.get(record.credential)
        token = self.tokens.get(session.token if session is not None else record.credential)
        if token is not None and token.name == record.principal:
            # A token has its own role, whatever the policy says about its name.
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
