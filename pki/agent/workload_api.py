"""The SPIFFE Workload API (https://github.com/spiffe/spiffe/blob/main/standards/SPIFFE_Workload_API.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from grpclib.const import Status

from sluice.core import InvalidIdentity
from sluice.core.grpc import Call, Caller, CallRefused, Method
from sluice.pki.agent.messages import (
    InvalidMessage,
    JWTBundlesResponse,
    JWTSVIDRequest,
    JWTSVIDResponse,
    ValidateJWTSVIDRequest,
    ValidateJWTSVIDResponse,
    X509BundlesResponse,
    X509SVIDResponse,
    decode,
    encode,
)
from sluice.pki.agent.published_identities import PublishedIdentities
from sluice.pki.identities import IdentityMaterial
from sluice.pki.jwt import TokenRejected
from sluice.pki.spiffe_id import SpiffeId

MAX_REQUEST_BYTES = 64 << 10
MAX_AUDIENCES = 64
"""Most audiences in one request."""
SECURITY_HEADER = ("workload.spiffe.io", "true")
"""Every call must carry it, so that nobody can trick a browser or proxy into a call (SPIFFE Workload Endpoint, 6)."""


class Workloads(Protocol):
    """Maps callers to what they get; every method may raise :class:`~sluice.core.grpc.CallRefused`."""

    def identities(self, caller: Caller) -> tuple[SpiffeId, ...]:
        """The identities of a caller, in order; none: refuse."""
        ...

    async def issue(self, caller: Caller, audience: Sequence[str], wanted: str) -> list[tuple[SpiffeId, str]]:
        """Tokens for ``audience``, of the identity ``wanted``; empty: of all identities that may have one."""
        ...

    async def bundle(self) -> bytes:
        """The keys of tokens, as a SPIFFE bundle."""
        ...

    async def validate(self, token: str, audience: str) -> tuple[SpiffeId, Mapping[str, object]]:
        """Subject and claims of a token for ``audience``; raises ``TokenRejected`` or ``InvalidIdentity``."""
        ...


class WorkloadApi:
    """Gives each caller its identities according to ``workloads``."""

    def __init__(self, workloads: Workloads, published: PublishedIdentities, trust_domain: str) -> None:
        self._workloads = workloads
        self._published = published
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

    def _admit(self, call: Call) -> tuple[SpiffeId, ...]:
        # 1. The mandatory metadata (SPIFFE Workload Endpoint, section 6).
        name, value = SECURITY_HEADER
        if call.metadata.get(name) != value:
            raise CallRefused(Status.INVALID_ARGUMENT, f"security header missing from request: {name}: {value}")
        # 2. The caller, as the kernel reports it.
        identities = self._workloads.identities(call.caller)
        if not identities:
            raise CallRefused(Status.PERMISSION_DENIED, "no identity issued")
        return identities

    def _stream(self, render: Callable[[tuple[SpiffeId, ...]], Awaitable[bytes]]) -> Callable[[Call], Awaitable[None]]:
        """A streaming method: it answers at once, and again after each change."""

        async def serve(call: Call) -> None:
            identities = self._admit(call)
            await call.receive_one()
            sent = b""
            while True:
                seen = self._published.generation
                answer = await render(identities)
                if answer != sent:
                    await call.send(answer)
                    sent = answer
                await self._published.change(seen)

        return serve

    def _materials(self, identities: tuple[SpiffeId, ...]) -> list[IdentityMaterial]:
        materials = self._published.valid(identities)
        if not materials:
            raise CallRefused(Status.UNAVAILABLE, "no valid certificate at present; see the agent's log")
        return materials

    async def _x509_svids(self, identities: tuple[SpiffeId, ...]) -> bytes:
        materials = self._materials(identities)
        response = X509SVIDResponse(crl=[each.der for each in self._published.lists(materials)])
        for material in materials:
            response.svids.add(
                spiffe_id=str(material.spiffe_id),
                x509_svid=_der((material.leaf, *material.chain)),
                x509_svid_key=material.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
                bundle=_der(material.anchors),
            )
        return encode(response)

    async def _x509_bundles(self, identities: tuple[SpiffeId, ...]) -> bytes:
        materials = self._materials(identities)
        anchors = dict.fromkeys(anchor for one in materials for anchor in one.anchors)
        lists = [each.der for each in self._published.lists(materials)]
        return encode(X509BundlesResponse(crl=lists, bundles={self._domain: _der(tuple(anchors))}))

    async def _jwt_bundles(self, identities: tuple[SpiffeId, ...]) -> bytes:  # noqa: ARG002  one bundle for all
        return encode(JWTBundlesResponse(bundles={self._domain: await self._workloads.bundle()}))

    async def _fetch_jwt(self, call: Call) -> None:
        self._admit(call)
        request = _decoded(JWTSVIDRequest, await call.receive_one())
        audience = list(request.audience)
        if not 0 < len(audience) <= MAX_AUDIENCES or not all(audience):
            raise CallRefused(Status.INVALID_ARGUMENT, "audience must be specified")
        response = JWTSVIDResponse()
        for identity, token in await self._workloads.issue(call.caller, audience, request.spiffe_id):
            response.svids.add(spiffe_id=str(identity), svid=token)
        await call.send(encode(response))

    async def _validate_jwt(self, call: Call) -> None:
        self._admit(call)
        request = _decoded(ValidateJWTSVIDRequest, await call.receive_one())
        try:
            subject, claims = await self._workloads.validate(request.svid, request.audience)
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
    except InvalidMessage as error:
        raise CallRefused(Status.INVALID_ARGUMENT, error.what) from error
