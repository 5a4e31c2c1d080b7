"""Envoy's Secret Discovery Service, v3, for the identities of the agent.

A secret is named by a SPIFFE ID, or ``default`` for the caller's first identity (certificate and key), or by
``spiffe://<trust domain>`` or ``ROOTCA`` (trust anchors and their CRLs).
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from grpclib.const import Status

from sluice.core.grpc import MAX_REQUEST_BYTES, Call, Caller, CallRefused, Method
from sluice.core.xds import (
    SECRET,
    SECRET_SERVICE,
    Heard,
    Message,
    Resources,
    Subscription,
    certificate_secret,
    decoded,
    response,
    serve_stream,
    trust_secret,
)
from sluice.pki.agent.policy import AgentPolicy, ManagedIdentity
from sluice.pki.agent.published_identities import PublishedIdentities
from sluice.pki.authorities import to_pem

_LOG = logging.getLogger(__name__)

MAX_NAMES = 64
"""Most secrets on one stream."""
DEFAULT_CERTIFICATE = "default"
DEFAULT_BUNDLE = "ROOTCA"


class SecretDiscovery:
    """Hands to each Envoy the secrets that the policy gives its user."""

    def __init__(self, policy: AgentPolicy, published: PublishedIdentities, trust_domain: str) -> None:
        self._policy = policy
        self._published = published
        self._domain = f"spiffe://{trust_domain}"

    def methods(self) -> dict[str, Method]:
        """Path -> method, for the server."""
        return {
            f"{SECRET_SERVICE}/StreamSecrets": Method(self._stream, MAX_REQUEST_BYTES),
            f"{SECRET_SERVICE}/FetchSecrets": Method(self._fetch, MAX_REQUEST_BYTES),
        }

    def _source(self, caller: Caller) -> _CallersSecrets:
        identities = self._policy.of(caller.uid)
        if not identities:
            raise CallRefused(Status.PERMISSION_DENIED, "no identity issued")
        return _CallersSecrets(self._published, self._domain, identities, caller)

    async def _stream(self, call: Call) -> None:
        await serve_stream(call, self._source(call.caller), SECRET)

    async def _fetch(self, call: Call) -> None:
        source = self._source(call.caller)
        kind, request = decoded(await call.receive_one(), SECRET)
        names = tuple(dict.fromkeys(request.resource_names))
        source.check(kind, names)
        resources = source.get(kind)
        if not all(name in resources.by_name for name in names):
            raise CallRefused(Status.UNAVAILABLE, "no valid certificate at present; see the agent's log")
        selected = {name: resources.by_name[name] for name in names}
        await call.send(response(kind, selected, resources.version))


@dataclass(frozen=True, slots=True)
class _CallersSecrets:
    """The secrets of one caller's identities."""

    published: PublishedIdentities
    domain: str
    identities: tuple[ManagedIdentity, ...]
    caller: Caller

    def check(self, kind: str, names: tuple[str, ...]) -> None:  # noqa: ARG002  secrets alone are served
        names = tuple(dict.fromkeys(names))
        if len(names) > MAX_NAMES:
            raise CallRefused(Status.INVALID_ARGUMENT, f"more than {MAX_NAMES} secrets")
        allowed = {DEFAULT_CERTIFICATE, DEFAULT_BUNDLE, self.domain, *(str(one.spiffe_id) for one in self.identities)}
        if foreign := [name for name in names if name not in allowed]:
            raise CallRefused(Status.PERMISSION_DENIED, f"the caller may not have the secret {foreign[0][:200]!r}")

    def get(self, kind: str) -> Resources:  # noqa: ARG002  secrets alone are served
        """The available secrets; without those that have no valid certificate now."""
        return Resources.of(self._secrets())

    def _secrets(self) -> Mapping[str, Message]:
        materials = {
            str(material.spiffe_id): material
            for material in self.published.valid([identity.spiffe_id for identity in self.identities])
        }
        if not materials:
            return {}
        anchors = to_pem(*dict.fromkeys(anchor for one in materials.values() for anchor in one.anchors))
        lists = b"".join(each.pem for each in self.published.lists(list(materials.values())))
        secrets = {name: trust_secret(name, anchors, lists) for name in (DEFAULT_BUNDLE, self.domain)}
        named = {**materials, DEFAULT_CERTIFICATE: materials.get(str(self.identities[0].spiffe_id))}
        for name, material in named.items():
            if material is not None:
                secrets[name] = certificate_secret(name, material.chain_pem, material.key_pem)
        return secrets

    def change(self) -> Coroutine[Any, Any, object]:
        return self.published.change(self.published.generation)

    def sent(self, subscription: Subscription) -> None:
        pass

    def heard(self, subscription: Subscription, heard: Heard) -> None:
        if heard is Heard.REJECTED:
            # Envoy keeps its current secrets; the rejected ones are not sent again.
            _LOG.warning("Envoy of user id %d rejected its secrets: %s", self.caller.uid, subscription.rejected)
