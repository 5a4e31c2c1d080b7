"""Who may keep a stream open, asked of the auth service of another machine over mutual TLS."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import aiohttp
import msgspec

from sluice.core.errors import AssertionRefused
from sluice.core.http_body import BodyTooLarge, read_body
from sluice.pki.assertions.stream_standing import MAX_ASKED, Holder, Standing
from sluice.pki.assertions.tokens import Asserted
from sluice.pki.channels import Channel, server_policy
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.contexts import TlsIdentity

STANDING_PATH = "/auth/standing"
ANSWER_SECONDS = 0.6
"""Together with how often it is asked less than a second: a revocation counts within that."""
MAX_ANSWER_BYTES = MAX_ASKED * 8


def standing_at(identity: TlsIdentity, host: str, port: int) -> Standing:
    """Asks the auth service at ``host``; who cannot be asked about may not stay."""
    policy = server_policy(Channel.AUTH, identity.spiffe_id.trust_domain, role=Role.AUTH)
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}{STANDING_PATH}"

    async def standing(everybody: AbstractSet[Asserted]) -> AbstractSet[Asserted]:
        listed = sorted(everybody, key=lambda who: (who.principal, who.id))[:MAX_ASKED]
        connector = aiohttp.TCPConnector(ssl=identity.client_context(policy, alpn=("http/1.1",)), force_close=True)
        asked = msgspec.json.encode([Holder.of(who) for who in listed])
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector, timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS)
                ) as session,
                session.post(url, data=asked, server_hostname="", allow_redirects=False) as answer,
            ):
                data = await read_body(answer.content, MAX_ANSWER_BYTES)
                if answer.status != 200:
                    raise AssertionRefused(f"the auth service answered {STANDING_PATH} with status {answer.status}")
                verdicts = msgspec.json.decode(data, type=list[bool])
        except (aiohttp.ClientError, TimeoutError, BodyTooLarge, msgspec.MsgspecError) as error:
            raise AssertionRefused(f"the auth service does not say who may stay: {type(error).__name__}") from error
        return {who for who, good in zip(listed, verdicts, strict=False) if good}

    return standing


async def whoever_was_let_in(everybody: AbstractSet[Asserted]) -> AbstractSet[Asserted]:
    """For a JobManager without a gateway."""
    return everybody
