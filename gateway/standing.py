"""Whether what somebody came with still counts: for streams that are open, here and at JobManagers elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import msgspec

from gateway.errors import TokenNotFound
from gateway.revocations import Revocations
from gateway.tokens import token_snapshot
from pki.assertions import Asserted
from pki.home import Home
from pki.standing import MAX_ASKED, Holder, Standing

Stands = Callable[[Holder], bool]


def stands_in(home: Home) -> Stands:
    """Whether nothing is revoked that somebody came with, and its API token has not expired."""
    tokens = token_snapshot(home)
    revocations = Revocations.of(home)

    def stands(who: Holder) -> bool:
        now = time.time()
        revoked = revocations.current()
        if revoked.refuses(name=who.principal, credential=who.credential, jti=who.id, now=now) is not None:
            return False
        if who.method != "token":
            return True
        try:
            record = tokens.get().find(who.credential)
        except TokenNotFound:
            return False
        return record.name == who.principal and record.state(now) == "active"

    return stands


def standing_in(home: Home) -> Standing:
    """The same, about everybody who has a stream open in this process."""
    stands = stands_in(home)

    async def standing(everybody: AbstractSet[Asserted]) -> AbstractSet[Asserted]:
        return {who for who in everybody if stands(Holder.of(who))}

    return standing


def answer(stands: Stands, asked: bytes) -> bytes:
    """What a JobManager elsewhere is answered: a verdict for each holder, in order. Raises ``msgspec.MsgspecError``."""
    holders = msgspec.json.decode(asked, type=tuple[Holder, ...])
    if len(holders) > MAX_ASKED:
        raise msgspec.ValidationError(f"more than {MAX_ASKED}")
    return msgspec.json.encode([stands(holder) for holder in holders])
