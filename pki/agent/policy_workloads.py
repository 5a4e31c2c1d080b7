"""The callers of a node's agent: each user gets what the agent's policy gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grpclib.const import Status

from sluice.core.grpc import Caller, CallRefused
from sluice.pki.agent.policy import AgentPolicy
from sluice.pki.jwt import JwtAuthority
from sluice.pki.spiffe_id import SpiffeId


class PolicyWorkloads:
    """The users of ``policy``; ``jwt`` signs their tokens."""

    def __init__(self, policy: AgentPolicy, jwt: JwtAuthority) -> None:
        self._policy = policy
        self._jwt = jwt

    def identities(self, caller: Caller) -> tuple[SpiffeId, ...]:
        """The identities of the caller's user."""
        return tuple(each.spiffe_id for each in self._policy.of(caller.uid))

    async def issue(self, caller: Caller, audience: Sequence[str], wanted: str) -> list[tuple[SpiffeId, str]]:
        """Tokens of the user's identities whose policy entries allow all of ``audience``."""
        # The policy names the audiences, so that no user presents a token to a service of their choice.
        allowed = [
            each.spiffe_id
            for each in self._policy.of(caller.uid)
            if each.audiences.issuperset(audience) and wanted in {"", str(each.spiffe_id)}
        ]
        if not allowed:
            raise CallRefused(Status.PERMISSION_DENIED, "no identity of the caller may have a token for this audience")
        lifetime = self._policy.jwt_lifetime
        return [(identity, self._jwt.sign(identity, audience, lifetime)) for identity in allowed]

    async def bundle(self) -> bytes:
        """The trust domain's keys."""
        return self._jwt.jwks()

    async def validate(self, token: str, audience: str) -> tuple[SpiffeId, Mapping[str, object]]:
        """Validate any token of the trust domain."""
        return self._jwt.validate(token, audience)
