"""Whether what somebody came with still counts: for streams that are open, here and at JobManagers elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import msgspec

from sluice.core.home import Home
from sluice.gateway.config import GatewayConfig
from sluice.gateway.credentials.revocations import Revocations
from sluice.gateway.credentials.session_store import FLUSH_SECONDS, session_snapshot
from sluice.gateway.credentials.sessions import Limits
from sluice.gateway.credentials.token_file import token_snapshot
from sluice.pki.assertions.credential import Credential
from sluice.pki.assertions.stream_standing import MAX_ASKED, Holder, Standing
from sluice.pki.assertions.tokens import Asserted

Stands = Callable[[Holder], bool]


def stands_in(home: Home, config: GatewayConfig, clock: Callable[[], float] = time.time) -> Stands:
    """Whether a credential still counts, by the files of ``home``.

    Nothing of it is revoked, and:

    - an API token has not expired;
    - a session has not ended, and neither has the API token that it was begun with. Its last use is on disk
      :data:`~sluice.gateway.credentials.session_store.FLUSH_SECONDS` late, so that idleness ends streams so much later.

    Client certificates and JWTs are looked at when a stream begins; after that only a revocation ends it.
    """
    tokens, sessions, revocations = token_snapshot(home), session_snapshot(home), Revocations.of(home)
    limits = Limits(config.session_lifetime, config.session_idle + FLUSH_SECONDS)

    def token_stands(identifier: str, name: str, now: float) -> bool:
        record = tokens.get().get(identifier)
        if record is None or record.name != name or record.state(now) != "active":
            return False
        return not revocations.current().is_revoked("token", identifier, now=now)

    def session_stands(identifier: str, name: str, now: float) -> bool:
        record = sessions.get().get(identifier)
        if record is None or record.name != name or not limits.hold(record, now):
            return False
        return not record.token or token_stands(record.token, name, now)

    def stands(who: Holder) -> bool:
        now = clock()
        credential = Credential(who.kind, who.credential)
        revoked = revocations.current()
        if revoked.refuses(name=who.principal, credential=credential, jti=who.id, now=now) is not None:
            return False
        match who.kind:
            case "token":
                return token_stands(who.credential, who.principal, now)
            case "session":
                return session_stands(who.credential, who.principal, now)
            case "certificate" | "jwt":
                return True

    return stands


def standing_in(home: Home, config: GatewayConfig) -> Standing:
    """The same, about everybody who has a stream open in this process."""
    stands = stands_in(home, config)

    async def standing(everybody: AbstractSet[Asserted]) -> AbstractSet[Asserted]:
        return {who for who in everybody if stands(Holder.of(who))}

    return standing


def answer(stands: Stands, asked: bytes) -> bytes:
    """What a JobManager elsewhere is answered: a verdict for each holder, in order. Raises ``msgspec.MsgspecError``."""
    holders = msgspec.json.decode(asked, type=tuple[Holder, ...])
    if len(holders) > MAX_ASKED:
        raise msgspec.ValidationError(f"more than {MAX_ASKED}")
    return msgspec.json.encode([stands(holder) for holder in holders])
