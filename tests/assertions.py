"""Signs assertions as the gateway does, for tests that call REST directly.

signer = AssertingGateway(home)
await session.get("http://rest/v1/jobs", headers=signer.headers("GET", "/v1/jobs", "ada", "viewer"))
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jwt
import msgspec
from yarl import URL

from sluice.core.home import Home
from sluice.gateway.credentials.assertion import AssertionSigner, publish_keys
from sluice.gateway.credentials.signing_keys import AccessTokenKeys
from sluice.gateway.principal import AccessRole
from sluice.gateway.service.assembly import decode_routes
from sluice.pki.assertions.keys import assertion_keys_file
from sluice.pki.assertions.principal import Credential, Principal
from sluice.pki.assertions.tokens import (
    ACCESS_TOKEN_AUDIENCE,
    HEADER,
    Assertion,
    AssertionVerifier,
    decode_jwks,
)
from sluice.runtime.rest_server.routes import published_routes


class AssertingGateway:
    """Signs assertions as the gateway of ``home``, at the time of ``clock``; publishes its public keys in the home."""

    def __init__(self, home: Home, clock: Callable[[], float] = time.time) -> None:
        self.keys = AccessTokenKeys.of(home)
        self.keys.refresh(time.time())
        publish_keys(home, self.keys)
        self.signer = AssertionSigner(self.keys, clock=clock)

    def headers(
        self, method: str, path: str, name: str = "ada", *roles: str, raw_query: bool = False
    ) -> dict[str, str]:
        """Return the headers of one request by ``name``; ``roles`` defaults to ``submitter``.

        ``raw_query``: the test sends the query unchanged, and not in the encoding of aiohttp's client.
        """
        return {HEADER: self.assertion(method, path, name, *roles, raw_query=raw_query)}

    def assertion(self, method: str, path: str, name: str = "ada", *roles: str, raw_query: bool = False) -> str:
        """Return the assertion without a header."""
        held = tuple(AccessRole(role) for role in roles or ("submitter",))
        principal = Principal(name, held, "token", Credential("token", "id-1"))
        # Wider than the default policy: all users see all jobs and can change their own.
        any_owner = AccessRole.ADMIN in held or method == "GET"
        bare, _, query = path.partition("?")
        return self.signer.sign(
            principal,
            method=method,
            target=path if raw_query or not query else f"{bare}?{URL(f'?{query}').raw_query_string}",
            operation=operation_of(method, path),
            request_id="request-1",
            any_owner=any_owner,
        )

    def forged(self, text: str, *, key: Any = None, algorithm: str = "ES256", **claims: Any) -> str:
        """Return the assertion with other claims (None removes one), or signed with another key. The key id stays."""
        payload = jwt.decode(text, options={"verify_signature": False}) | claims
        signing = self.keys.signing(time.time())
        return jwt.encode(
            {name: value for name, value in payload.items() if value is not None},
            signing.private if key is None else key,
            algorithm=algorithm,
            headers={"kid": signing.kid},
        )


def asserted_by(home: Home, text: str, *, method: str = "GET", target: str = "/v1/jobs", audience: str) -> Assertion:
    """Verify an assertion of the gateway of ``home`` for this request, and return its contents."""
    keys = decode_jwks(assertion_keys_file(home).read_bytes())
    return AssertionVerifier(lambda _: keys, {audience, ACCESS_TOKEN_AUDIENCE}).verify(
        [text], method=method, target=target
    )


_ROUTES = decode_routes(msgspec.json.encode(published_routes()), flight_sql=True)


def operation_of(method: str, target: str) -> str:
    """Return the operation that REST or Spark Connect publishes for this request, or ``none`` if there is no route."""
    route = _ROUTES.match(method, target.partition("?")[0])
    return "none" if route is None else route.operation
