"""Checks whether the credentials of open streams are still valid, here and for JobManagers on other machines."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from sluice.core import Home
from sluice.gateway.config import GatewayConfig
from sluice.gateway.credentials import FLUSH_SECONDS, Revocations, SessionLimits, session_snapshot, token_snapshot
from sluice.gateway.shared_store import shared_files_in
from sluice.pki.assertions import MAX_CHECKED, CheckHolders, Holders, SessionId, StreamHolder, TokenId

IsValid = Callable[[StreamHolder], bool]


def validity_in(home: Home, config: GatewayConfig, clock: Callable[[], float] = time.time) -> IsValid:
    """A function that checks with the files of ``home`` whether a credential is still valid.

    The credential and its principal must not be revoked. In addition:

    - an API token must not have expired;
    - a session must not have ended, nor the API token that it was started with. The last use of a session is written
      to disk up to :data:`~sluice.gateway.credentials.session_store.FLUSH_SECONDS` late, so the idle timeout ends
      streams that much later.

    Client certificates and JWTs are verified when a stream begins. After that, only a revocation ends it.
    """
    tokens, sessions, files = token_snapshot(home), session_snapshot(home), shared_files_in(home.gateway)
    revocations = Revocations.of(home, None if files is None else files.check_fresh)
    limits = SessionLimits(config.session_lifetime, config.session_idle + FLUSH_SECONDS)

    def token_valid(identifier: TokenId, name: str, now: float) -> bool:
        record = tokens.get().get(identifier)
        if record is None or record.name != name or record.state(now) != "active":
            return False
        return not revocations.current().is_revoked(("token", identifier), now=now)

    def session_valid(identifier: SessionId, name: str, now: float) -> bool:
        record = sessions.get().get(identifier)
        if record is None or record.name != name or not limits.is_active(record, now):
            return False
        return not record.token or token_valid(record.token, name, now)

    def is_valid(who: StreamHolder) -> bool:
        now = clock()
        revoked = revocations.current()
        if revoked.refuses(name=who.principal, credential=who.as_credential(), jti=who.id, now=now) is not None:
            return False
        match who.kind:
            case "token":
                return token_valid(TokenId(who.credential), who.principal, now)
            case "session":
                return session_valid(SessionId(who.credential), who.principal, now)
            case "certificate" | "jwt":
                return True

    return is_valid


def check_in(home: Home, config: GatewayConfig) -> CheckHolders:
    """The same check for the streams that are open in this process."""
    is_valid = validity_in(home, config)

    async def check(holders: Holders) -> Holders:
        return {holder for holder in holders if is_valid(holder)}

    return check


def answer(is_valid: IsValid, asked: bytes) -> bytes:
    """Answer a JobManager on another machine: whether each holder's credential is valid, in the same order.

    Raises ``msgspec.MsgspecError`` for a malformed request.
    """
    holders = msgspec.json.decode(asked, type=tuple[StreamHolder, ...])
    if len(holders) > MAX_CHECKED:
        raise msgspec.ValidationError(f"more than {MAX_CHECKED}")
    return msgspec.json.encode([is_valid(holder) for holder in holders])
