"""HTTP requests to the auth services on other machines, over mutual TLS."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import aiohttp

from sluice.core import AssertionRefused, BodyTooLarge, host_port, read_body, tcp_connector
from sluice.pki import Channel, Role, server_policy
from sluice.pki.tls import TlsIdentity


class AuthService:
    """The equivalent auth services at ``addresses``. Their certificates must have the role ``auth``.

    ``identity`` is the client certificate. The service that answered last is tried first.
    """

    def __init__(self, identity: TlsIdentity, addresses: Sequence[tuple[str, int]]) -> None:
        self._identity = identity
        self._addresses = list(addresses)

    def __str__(self) -> str:
        return ", ".join(host_port(*each) for each in self._addresses)

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, max_bytes: int, seconds: float
    ) -> bytes:
        """The response body of the first service that answers, within ``seconds`` in total.

        Without a response, or with a status of 500 or above, the request is repeated at the next service, so it must
        be idempotent. Raises :class:`~sluice.core.errors.AssertionRefused` unless a response has status 200.
        """
        failures: list[str] = []
        for address in tuple(self._addresses):
            try:
                status, data = await self._ask(
                    address, method, path, body, max_bytes=max_bytes, seconds=seconds / len(self._addresses)
                )
            except (aiohttp.ClientError, TimeoutError, BodyTooLarge) as error:
                failures.append(f"{host_port(*address)}: {error or type(error).__name__}")
                continue
            if status == HTTPStatus.OK:
                self._addresses.sort(key=lambda each: each != address)
                return data
            if status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise AssertionRefused(f"the auth service answered {path} with status {status}")
            failures.append(f"{host_port(*address)} answered {path} with status {status}")
        raise AssertionRefused(f"no answer from the auth service: {'; '.join(failures)}")

    async def _ask(
        self, address: tuple[str, int], method: str, path: str, body: bytes | None, *, max_bytes: int, seconds: float
    ) -> tuple[int, bytes]:
        policy = server_policy(Channel.AUTH, self._identity.spiffe_id.trust_domain, role=Role.AUTH)
        context = self._identity.client_context(policy, alpn=("http/1.1",))
        connector = tcp_connector(ssl=context)  # closes its one connection with the session, and waits for that
        url = f"https://{host_port(*address)}{path}"
        async with (
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=seconds)) as session,
            session.request(method, url, data=body, server_hostname="", allow_redirects=False) as answer,
        ):
            return answer.status, await read_body(answer.content, max_bytes)
