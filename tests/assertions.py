"""The gateway's part for tests that talk to REST directly: keys, and assertions signed with them.

signer = AssertingGateway(home)
await session.get("http://rest/v1/jobs", headers=signer.headers("GET", "/v1/jobs", "ada", "viewer"))
"""

from __future__ import annotations

import time
from typing import Any

import jwt

from gateway.assertion import AssertionSigner, publish_keys
from gateway.pass_keys import PassKeys
from gateway.principal import AccessRole, Principal
from pki.assertion_keys import assertion_keys_file
from pki.assertions import HEADER, PASS_AUDIENCE, Asserted, AssertionVerifier, decode_jwks
from pki.credential import Credential
from pki.home import Home


class AssertingGateway:
    """Signs as the gateway of ``home`` does; its public keys are published there."""

    def __init__(self, home: Home) -> None:
        self.keys = PassKeys.of(home)
        self.keys.refresh(time.time())
        publish_keys(home, self.keys)
        self.signer = AssertionSigner(self.keys)

    def headers(self, method: str, path: str, name: str = "ada", *roles: str) -> dict[str, str]:
        """The headers of one request by ``name``; ``roles`` default to ``submitter``."""
        return {HEADER: self.assertion(method, path, name, *roles)}

    def assertion(self, method: str, path: str, name: str = "ada", *roles: str) -> str:
        """The assertion alone."""
        held = tuple(AccessRole(role) for role in roles or ("submitter",))
        principal = Principal(name, held, "token", Credential("token", "id-1"))
        # As the default policy has it: everybody sees all jobs, and changes one's own.
        any_owner = AccessRole.ADMIN in held or method == "GET"
        return self.signer.sign(
            principal, method=method, path=path.partition("?")[0], request_id="request-1", any_owner=any_owner
        )

    def forged(self, text: str, *, key: Any = None, algorithm: str = "ES256", **claims: Any) -> str:
        """The same assertion with other claims (None: left out), or signed with another key; the key id stays."""
        payload = jwt.decode(text, options={"verify_signature": False}) | claims
        signing = self.keys.signing(time.time())
        return jwt.encode(
            {name: value for name, value in payload.items() if value is not None},
            signing.private if key is None else key,
            algorithm=algorithm,
            headers={"kid": signing.kid},
        )


def asserted_by(home: Home, text: str, *, method: str = "GET", path: str = "/v1/jobs", audience: str) -> Asserted:
    """What the gateway of ``home`` asserts with ``text``; fails unless it is good for this request."""
    keys = decode_jwks(assertion_keys_file(home).read_bytes())
    return AssertionVerifier(lambda _: keys, {audience, PASS_AUDIENCE}).verify([text], method=method, path=path)
