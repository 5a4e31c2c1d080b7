"""Signs an assertion for each request that the gateway allows.

The auth service signs with the keys of :mod:`sluice.gateway.credentials.signing_keys`; ``pki.assertions.tokens``
defines format and verification. The public keys are published in a file of the home for processes on this machine, and
over mutual TLS (:mod:`sluice.gateway.service.auth_process`) for processes on other machines.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import jwt
import msgspec

from sluice.core import Home, write_public
from sluice.gateway.credentials.signing_keys import AccessTokenKeys, encode_jwks
from sluice.pki.assertions import (
    ALGORITHM,
    CONNECT_AUDIENCE,
    ISSUER,
    REST_AUDIENCE,
    AssertionClaims,
    Jti,
    Principal,
    assertion_keys_file,
    query_digest,
)

LIFETIME_SECONDS = 60
CONNECT_PREFIXES = ("/spark.connect.SparkConnectService/", "/arrow.flight.protocol.FlightService/")
"""Paths of the gRPC methods that the relay serves."""

_JTI_BYTES = 12
_ACCESS_TOKEN_ONLY = frozenset({"method", "all", "own"})
"""Claims of access tokens; assertions omit them."""


def publish_keys(home: Home, keys: AccessTokenKeys) -> None:
    """Write the public key set to its file, unless the file has the same content already."""
    path, data = assertion_keys_file(home), encode_jwks(keys)
    if not path.exists() or path.read_bytes() != data:
        write_public(path, data)


def audience_of(path: str) -> str:
    """The audience of a request for ``path``."""
    return CONNECT_AUDIENCE if path.startswith(CONNECT_PREFIXES) else REST_AUDIENCE


@dataclass(frozen=True, slots=True)
class AssertionSigner:
    """Signs assertions; ``clock`` returns seconds since the epoch."""

    keys: AccessTokenKeys
    clock: Callable[[], float] = time.time

    def sign(
        self,
        principal: Principal,
        *,
        method: str,
        target: str,
        operation: str,
        request_id: str,
        any_owner: bool = False,
        policy: str = "",
    ) -> str:
        """Sign a single-use assertion that ``principal`` sends ``method`` to ``target`` (path and query).

        Args:
            principal: the caller, or the principal of a caller's assertion when a gateway process acts for it.
            method: the method of the request.
            target: path and query of the request.
            operation: the operation that was granted.
            request_id: the request id in the audit log.
            any_owner: whether the operation is also granted on resources of other owners.
            policy: the SHA-256 of the policy file that granted it; empty when no policy did.

        Raises:
            AccessTokenKeyError: there is no signing key.
        """
        now = self.clock()
        path, _, query = target.partition("?")
        claims = AssertionClaims(
            iss=ISSUER,
            aud=audience_of(path),
            sub=principal.name,
            roles=principal.roles,
            groups=principal.groups,
            mth=principal.method,
            cred=principal.credential.id,
            kind=principal.credential.kind,
            rid=request_id,
            op=operation,
            any=any_owner,
            pol=policy,
            htm=method,
            htu=path,
            htq=query_digest(query),
            jti=Jti(secrets.token_hex(_JTI_BYTES)),
            iat=int(now),
            exp=int(now) + LIFETIME_SECONDS,
        )
        key = self.keys.signing(now)
        payload = {name: value for name, value in msgspec.to_builtins(claims).items() if name not in _ACCESS_TOKEN_ONLY}
        return jwt.encode(payload, key.private, algorithm=ALGORITHM, headers={"kid": key.kid})
