"""The SPIFFE Workload API (https://github.com/spiffe/spiffe/blob/main/standards/SPIFFE_Workload_API.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from grpclib.const import Status

from sluice.core import InvalidIdentity
from sluice.core.grpc import Call, CallRefused, Method
from sluice.pki.agent.jwt_keys import JwtAuthority
from sluice.pki.agent.jwt_svid import TokenRejected
from sluice.pki.agent.messages import (
    JWTBundlesResponse,
    JWTSVIDRequest,
    JWTSVIDResponse,
    MessageDamaged,
    ValidateJWTSVIDRequest,
    ValidateJWTSVIDResponse,
    X509BundlesResponse,
    X509SVIDResponse,
    decode,
    encode,
)
from sluice.pki.agent.policy import MAX_AUDIENCES, AgentPolicy, ManagedIdentity
from sluice.pki.agent.published_identities import PublishedIdentities
from sluice.pki.identities import IdentityMaterial

MAX_REQUEST_BYTES = 64 << 10
SECURITY_HEADER = ("workload.spiffe.io", "true")
"""Every call must carry it, so that no browser or proxy can be talked into making one (SPIFFE Workload Endpoint, 6)."""


class WorkloadApi:
    """Hands to each caller the identities that the policy gives its user."""

    def __init__(self, policy: AgentPolicy, board: PublishedIdentities, jwt: JwtAuthority, trust_domain: str) -> None:
        self._policy = policy
        self._board = board
        self._jwt = jwt
        self._domain = f"spiffe://{trust_domain}"

    def methods(self) -> dict[str, Method]:
        """Path -> method, for the server."""
        served = {
            "FetchX509SVID": self._stream(self._x509_svids),
            "FetchX509Bundles": self._stream(self._x509_bundles),
            "FetchJWTBundles": self._stream(self._jwt_bundles),
            "FetchJWTSVID": self._fetch_jwt,
            "ValidateJWTSVID": self._validate_jwt,
        }
        return {f"/SpiffeWorkloadAPI/{name}": Method(serve, MAX_REQUEST_BYTES) for name, serve in served.items()}

    def _admit(self, call: Call) -> tuple[ManagedIdentity, ...]:
        # 1. The mandatory metadata (SPIFFE Workload Endpoint, section 6).
        name, value = SECURITY_HEADER
        if call.metadata.get(name) != value:
            raise CallRefused(Status.INVALID_ARGUMENT, f"security header missing from request: {name}: {value}")
        # 2. The caller's user id, from the kernel.
        identities = self._policy.of(call.caller.uid)
        if not identities:
            raise CallRefused(Status.PERMISSION_DENIED, "no identity issued")
        return identities

    def _stream(self, render: Callable[[tuple[ManagedIdentity, ...]], bytes]) -> Callable[[Call], Awaitable[None]]:
        """A method that answers at once and again whenever the answer changes."""

        async def serve(call: Call) -> None:
            identities = self._admit(call)
            await call.receive_one()
            sent = b""
            seen = self._board.generation
            while True:
                answer = render(identities)
                if answer != sent:
                    await call.send(answer)
                    sent = answer
                seen = await self._board.change(seen)

        return serve

    def _materials(self, identities: tuple[ManagedIdentity, ...]) -> list[IdentityMaterial]:
        materials = self._board.valid([identity.spiffe_id for identity in identities])
        if not materials:
            raise CallRefused(Status.UNAVAILABLE, "no valid certificate at present; see the agent's log")
        return materials

    def _x509_svids(self, identities: tuple[ManagedIdentity, ...]) -> bytes:
        materials = self._materials(identities)
        response = X509SVIDResponse(crl=[each.der for each in self._board.lists(materials)])
        for material in materials:
            response.svids.add(
                spiffe_id=str(material.spiffe_id),
                x509_svid=_der((material.leaf, *material.chain)),
                x509_svid_key=material.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
                bundle=_der(material.anchors),
            )
        return encode(response)

    def _x509_bundles(self, identities: tuple[ManagedIdentity, ...]) -> bytes:
        materials = self._materials(identities)
        anchors = dict.fromkeys(anchor for one in materials for anchor in one.anchors)
        lists = [each.der for each in self._board.lists(materials)]
        return encode(X509BundlesResponse(crl=lists, bundles={self._domain: _der(tuple(anchors))}))

    def _jwt_bundles(self, identities: tuple[ManagedIdentity, ...]) -> bytes:  # noqa: ARG002  one bundle for all
        return encode(JWTBundlesResponse(bundles={self._domain: self._jwt.jwks()}))

    async def _fetch_jwt(self, call: Call) -> None:
        identities = self._admit(call)
        request = _decoded(JWTSVIDRequest, await call.receive_one())
        audience = list(request.audience)
        if not 0 < len(audience) <= MAX_AUDIENCES or not all(audience):
            raise CallRefused(Status.INVALID_ARGUMENT, "audience must be specified")
        if request.spiffe_id:
            identities = tuple(one for one in identities if str(one.spiffe_id) == request.spiffe_id)
        # A token is for those whom the policy names, so that nobody presents it to a service of his choice.
        allowed = [one for one in identities if one.audiences.issuperset(audience)]
        if not allowed:
            raise CallRefused(Status.PERMISSION_DENIED, "no identity of the caller may have a token for this audience")
        response = JWTSVIDResponse()
        for identity in allowed:
            token = self._jwt.sign(identity.spiffe_id, audience, self._policy.jwt_lifetime)
            response.svids.add(spiffe_id=str(identity.spiffe_id), svid=token)
        await call.send(encode(response))

    async def _validate_jwt(self, call: Call) -> None:
        self._admit(call)
        request = _decoded(ValidateJWTSVIDRequest, await call.receive_one())
        try:
            subject, claims = self._jwt.validate(request.svid, request.audience)
        except (TokenRejected, InvalidIdentity) as error:
            raise CallRefused(Status.INVALID_ARGUMENT, error.what) from error
        response = ValidateJWTSVIDResponse(spiffe_id=str(subject))
        response.claims.update(claims)
        await call.send(encode(response))


def _der(certificates: Sequence[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.DER) for certificate in certificates)


def _decoded(kind: object, data: bytes) -> Any:  # noqa: ANN401  messages have no static type
    try:
        return decode(kind, data)
    except MessageDamaged as error:
        raise CallRefused(Status.INVALID_ARGUMENT, error.what) from error
