"""Envoy's Secret Discovery Service, v3, state of the world (xDS protocol, ``secret.proto`` of the Envoy API).

Names of secrets: a SPIFFE ID, or ``default`` for the caller's first identity, is certificate and key;
``spiffe://<trust domain>`` or ``ROOTCA`` are the trust anchors
and their revocation lists.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any

from grpclib.const import Status

from sluice.pki.agent.board import Board
from sluice.pki.agent.grpc_server import (
    MAX_REQUEST_BYTES,
    Call,
    CallRefused,
    Method,
)
from sluice.pki.agent.messages import (
    SECRET_TYPE_URL,
    DiscoveryRequest,
    DiscoveryResponse,
    MessageDamaged,
    Secret,
    decode,
    encode,
)
from sluice.pki.agent.policy import AgentPolicy, ManagedIdentity
from sluice.pki.authorities.signing import to_pem
from sluice.pki.identities.directory import IdentityMaterial

_LOG = logging.getLogger(__name__)

MAX_NAMES = 64
"""Most secrets on one stream."""
DEFAULT_CERTIFICATE = "default"
DEFAULT_BUNDLE = "ROOTCA"
_SERVICE = "/envoy.service.secret.v3.SecretDiscoveryService"


class SecretDiscovery:
    """Hands to each Envoy the secrets that the policy gives its user."""

    def __init__(self, policy: AgentPolicy, board: Board, trust_domain: str) -> None:
        self._policy = policy
        self._board = board
        self._domain = f"spiffe://{trust_domain}"

    def methods(self) -> dict[str, Method]:
        """Path -> method, for the server."""
        return {
            f"{_SERVICE}/StreamSecrets": Method(self._stream, MAX_REQUEST_BYTES),
            f"{_SERVICE}/FetchSecrets": Method(self._fetch, MAX_REQUEST_BYTES),
        }

    def _admit(self, call: Call) -> tuple[ManagedIdentity, ...]:
        identities = self._policy.of(call.caller.uid)
        if not identities:
            raise CallRefused(Status.PERMISSION_DENIED, "no identity issued")
        return identities

    async def _fetch(self, call: Call) -> None:
        identities = self._admit(call)
        request = _decoded(await call.receive_one())
        names = self._names(request, identities)
        resources = self._resources(names, identities)
        if len(resources) != len(names):
            raise CallRefused(Status.UNAVAILABLE, "no valid certificate at present; see the agent's log")
        await call.send(encode(_response(resources, "")))

    async def _stream(self, call: Call) -> None:
        identities = self._admit(call)
        subscription = _Subscription()
        reading = asyncio.create_task(call.receive())
        seen = self._board.generation
        changing = asyncio.create_task(self._board.change(seen))
        try:
            while True:
                await asyncio.wait({reading, changing}, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    data = reading.result()
                    if data is None:
                        return
                    request = _decoded(data)
                    names = self._names(request, identities)
                    subscription.heard(request, names, call)
                    reading = asyncio.create_task(call.receive())
                if changing.done():
                    seen = changing.result()
                    changing = asyncio.create_task(self._board.change(seen))
                resources = self._resources(subscription.names, identities)
                if (answer := subscription.answer(resources)) is not None:
                    await call.send(answer)
        finally:
            reading.cancel()
            changing.cancel()
            await asyncio.gather(reading, changing, return_exceptions=True)

    def _names(self, request: Any, identities: tuple[ManagedIdentity, ...]) -> tuple[str, ...]:  # noqa: ANN401  a message
        if request.type_url not in {"", SECRET_TYPE_URL}:
            raise CallRefused(Status.INVALID_ARGUMENT, "only secrets are served here")
        names = tuple(dict.fromkeys(request.resource_names))
        if len(names) > MAX_NAMES:
            raise CallRefused(Status.INVALID_ARGUMENT, f"more than {MAX_NAMES} secrets")
        allowed = {DEFAULT_CERTIFICATE, DEFAULT_BUNDLE, self._domain, *(str(one.spiffe_id) for one in identities)}
        if foreign := [name for name in names if name not in allowed]:
            raise CallRefused(Status.PERMISSION_DENIED, f"the caller may not have the secret {foreign[0][:200]!r}")
        return names

    def _resources(self, names: tuple[str, ...], identities: tuple[ManagedIdentity, ...]) -> tuple[bytes, ...]:
        """The secrets that can be given now; what has no valid certificate at present is left out."""
        materials = {
            str(material.spiffe_id): material
            for material in self._board.valid([identity.spiffe_id for identity in identities])
        }
        found = []
        for name in names:
            if name in {DEFAULT_BUNDLE, self._domain}:
                if materials:
                    anchors = dict.fromkeys(anchor for one in materials.values() for anchor in one.anchors)
                    lists = b"".join(each.pem for each in self._board.lists(list(materials.values())))
                    found.append(_bundle(name, to_pem(*anchors), lists))
            elif material := materials.get(str(identities[0].spiffe_id) if name == DEFAULT_CERTIFICATE else name):
                found.append(_certificate(name, material))
        return tuple(found)


class _Subscription:
    """One stream's state: what is asked for, and what was sent last."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self._sent: tuple[bytes, ...] = ()
        self._nonce = 0

    def heard(self, request: Any, names: tuple[str, ...], call: Call) -> None:  # noqa: ANN401  a message
        """Take in a request: a subscription, an acknowledgement or a rejection."""
        if request.response_nonce and request.response_nonce != str(self._nonce):
            return  # about an answer that was overtaken (xDS protocol, "ACK and NACK semantics")
        if request.HasField("error_detail"):
            # Envoy keeps what it has; the same is not sent again.
            reason = "".join(c if c.isprintable() else "?" for c in request.error_detail.message[:300])
            _LOG.warning("Envoy of user id %d rejected its secrets: %s", call.caller.uid, reason)
        if names != self.names:
            self.names = names
            self._sent = ()

    def answer(self, resources: tuple[bytes, ...]) -> bytes | None:
        """The next response, if there is anything new."""
        if not resources or resources == self._sent:
            return None
        self._sent = resources
        self._nonce += 1
        return encode(_response(resources, str(self._nonce)))


def _response(resources: tuple[bytes, ...], nonce: str) -> Any:  # noqa: ANN401  a message
    version = hashlib.sha256(b"".join(resources)).hexdigest()[:16]
    response = DiscoveryResponse(version_info=version, type_url=SECRET_TYPE_URL, nonce=nonce)
    for resource in resources:
        response.resources.add(type_url=SECRET_TYPE_URL, value=resource)
    return response


def _certificate(name: str, material: IdentityMaterial) -> bytes:
    secret = Secret(name=name)
    secret.tls_certificate.certificate_chain.inline_bytes = material.chain_pem
    secret.tls_certificate.private_key.inline_bytes = material.key_pem
    return encode(secret)


def _bundle(name: str, anchors_pem: bytes, crls_pem: bytes) -> bytes:
    # No names of peers in here: Envoy adds them to those of its own configuration, and any one that matches is
    # enough, so a matcher from here could only widen what the configuration demands.
    secret = Secret(name=name)
    secret.validation_context.trusted_ca.inline_bytes = anchors_pem
    if crls_pem:
        # The anchors are intermediates: whether they are revoked is said by the root's list, which is not here. With
        # lists, Envoy refuses whoever's issuer has none, and everybody once a list has expired.
        secret.validation_context.crl.inline_bytes = crls_pem
        secret.validation_context.only_verify_leaf_cert_crl = True
    return encode(secret)


def _decoded(data: bytes) -> Any:  # noqa: ANN401  a message
    try:
        return decode(DiscoveryRequest, data)
    except MessageDamaged as error:
        raise CallRefused(Status.INVALID_ARGUMENT, error.what) from error
