"""Run the real command with one weakness.

    python -m tests.system.audit.sabotage WEAKNESS run jobmanager

Each weakness is what a careless change could cause: something is no longer requested, checked or limited.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from sluice.gateway.credentials.api_tokens import TokenBook, Unauthenticated
from sluice.gateway.principal import AccessRole
from sluice.pki.assertions.principal import Credential, Principal
from sluice.pki.assertions.tokens import Assertion
from sluice.pki.channels import Channel, PeerPolicy
from sluice.pki.spiffe_id import Role
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.tls.listener import MutualTlsListener
from sluice.runtime.rest.protocol import assertion, route
from sluice.runtime.rest_server import server
from tests.system.audit import edges, listeners


def every_token() -> None:
    """Accept any token that is presented; an unknown one counts as an administrator's."""
    original = TokenBook.authenticate

    def authenticate(self: TokenBook, presented: str, *, now: float) -> Principal:
        try:
            return original(self, presented, now=now)
        except Unauthenticated:
            return Principal("anybody", (AccessRole.ADMIN,), "token", Credential("token", "none"))

    TokenBook.authenticate = authenticate  # type: ignore[method-assign]


def every_right() -> None:
    """Give every valid token the admin role."""
    original = TokenBook.authenticate

    def authenticate(self: TokenBook, presented: str, *, now: float) -> Principal:
        return replace(original(self, presented, now=now), roles=(AccessRole.ADMIN,))

    TokenBook.authenticate = authenticate  # type: ignore[method-assign]


def rest_believes_everybody() -> None:
    """Make REST treat requests without an assertion of the gateway as an administrator's."""
    everybody = Assertion(Principal("anybody", ("admin",), "token", Credential("token", "none")), "none")

    @web.middleware
    async def believe(request: web.Request, handler: Any) -> web.StreamResponse:
        answer: web.StreamResponse = await handler(request)
        return answer

    vars(assertion)["asserted"] = vars(route)["asserted"] = lambda _: everybody
    vars(server)["require_assertion"] = lambda _, **__: believe
    vars(server)["for_operation"] = lambda _, handler: handler


def other_jobs(directory: str, port_file: str, *_: str) -> None:
    """Stand in for an executor that is correct except that it admits executors of every job."""
    identity = TlsIdentity(Path(directory))
    policy = PeerPolicy(identity.spiffe_id.trust_domain, frozenset({Role.DRIVER, Role.EXECUTOR}))

    def announce(port: int) -> None:
        Path(port_file).write_text(str(port))

    async def serve() -> None:
        listening = MutualTlsListener(identity, Channel.DATA, policy, listeners.Greeting, handshake_timeout=5.0)
        _, port = await listening.start("127.0.0.1", 0)
        announce(port)
        await asyncio.Event().wait()

    asyncio.run(serve())


WEAKNESSES: dict[str, listeners.Weakness] = {
    "none": lambda: None,
    "every token": every_token,
    "REST believes everybody": rest_believes_everybody,
    "every right": every_right,
    **listeners.WEAKNESSES,
    **edges.WEAKNESSES,
}


def main() -> None:
    """Apply the weakness named by the first argument, then run ``sluice`` with the others."""
    weakness = sys.argv.pop(1)
    if weakness == "other jobs":
        other_jobs(*sys.argv[1:])
        return
    WEAKNESSES[weakness]()
    from sluice.cli.main import main as sluice

    sluice()


if __name__ == "__main__":
    main()
