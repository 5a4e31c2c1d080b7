"""The attestors of an online authority, as configured, and the trust anchors where pods find them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from sluice.core import KubernetesMisconfigured, pod_namespace, repeat
from sluice.pki.attestation import (
    KUBERNETES,
    Attestor,
    PodAttestationConfig,
    PodAttestor,
    TrustConfigMap,
    api_of,
)
from sluice.pki.errors import AttestationUnavailable

_LOG = logging.getLogger(__name__)

PUBLISH_SECONDS = 5.0
"""How soon pods see other trust anchors, besides the time that the kubelet takes."""


class HasAnchors(Protocol):
    """An authority, as far as others are told whom to trust."""

    def anchors(self) -> bytes:
        """The trusted authorities as PEM."""


@asynccontextmanager
async def attesting(
    config: PodAttestationConfig | None, trust_domain: str, authority: HasAnchors
) -> AsyncIterator[Mapping[str, Attestor]]:
    """The attestors while the block lasts.

    Raises:
        AttestationUnavailable: the API server, its anchors or the namespace of this pod are not known.
    """
    if config is None:
        yield {}
        return
    async with AsyncExitStack() as stack:
        attestor = PodAttestor(api_of(config), config.identities, trust_domain)
        stack.push_async_callback(attestor.close)
        if config.trust_config_map:
            api = api_of(config)
            stack.push_async_callback(api.close)
            try:
                namespace = pod_namespace(Path(config.account))
            except KubernetesMisconfigured as error:
                raise AttestationUnavailable(error.what, "see ca.kubernetes.account") from error
            place = TrustConfigMap(api, namespace, config.trust_config_map)

            async def publish() -> None:
                if await place.publish(authority.anchors()):
                    _LOG.info("the ConfigMap %s has the trust anchors", config.trust_config_map)

            failure = "the ConfigMap of the trust anchors stays as it is; trying again"
            publishing = asyncio.create_task(repeat(publish, PUBLISH_SECONDS, failure))
            stack.callback(publishing.cancel)
        yield {KUBERNETES: attestor}
