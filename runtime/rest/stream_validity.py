"""Asks the auth service of another machine, over mutual TLS, whose streams may stay open."""

from __future__ import annotations

import aiohttp
import msgspec

from sluice.core.errors import AssertionRefused
from sluice.core.http_body import BodyTooLarge, read_body
from sluice.pki.assertions.open_streams import MAX_CHECKED, CheckHolders, Holders
from sluice.pki.channels import Channel, server_policy
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.contexts import TlsIdentity

STANDING_PATH = "/auth/standing"
ANSWER_SECONDS = 0.6
"""Together with how often it is asked less than a second: a revocation counts within that."""
MAX_ANSWER_BYTES = MAX_CHECKED * 8


def check_at(identity: TlsIdentity, host: str, port: int) -> CheckHolders:
    """A check by the auth service at ``host``; holders beyond :data:`MAX_CHECKED` are taken for invalid."""
    policy = server_policy(Channel.AUTH, identity.spiffe_id.trust_domain, role=Role.AUTH)
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}{STANDING_PATH}"

    async def check(holders: Holders) -> Holders:
        listed = sorted(holders)[:MAX_CHECKED]
        connector = aiohttp.TCPConnector(ssl=identity.client_context(policy, alpn=("http/1.1",)), force_close=True)
        asked = msgspec.json.encode(listed)
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
            raise AssertionRefused(
                f"the auth service does not say whose credentials are valid: {type(error).__name__}"
            ) from error
        return {holder for holder, good in zip(listed, verdicts, strict=False) if good}

    return check


async def check_nothing(holders: Holders) -> Holders:
    """For a JobManager without a gateway: every stream stays open."""
    return holders
