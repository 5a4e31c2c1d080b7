"""The configured attestors of an online authority, and publishing trust anchors and CRLs for pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from sluice.core import KubernetesMisconfigured, end_tasks, pod_namespace, repeat
from sluice.pki.attestation import (
    KUBERNETES,
    Attestor,
    PodAttestationConfig,
    PodAttestor,
    TrustConfigMap,
    api_of,
)
from sluice.pki.ca.protocol import TrustSide
from sluice.pki.errors import AttestationUnavailable

_LOG = logging.getLogger(__name__)

PUBLISH_SECONDS = 5.0
"""Seconds between two updates of trust anchors and CRLs for pods; the kubelet's own delay comes on top."""


@asynccontextmanager
async def attesting(config: PodAttestationConfig | None, trust_domain: str) -> AsyncIterator[Mapping[str, Attestor]]:
    """The attestors while the block lasts.

    Raises:
        AttestationUnavailable: the API server or its anchors are not known.
    """
    if config is None:
        yield {}
        return
    attestor = PodAttestor(api_of(config), config.identities, trust_domain, jobs=config.jobs)
    try:
        yield {KUBERNETES: attestor}
    finally:
        await attestor.close()


@asynccontextmanager
async def publishing_trust(
    config: PodAttestationConfig | None, read: Callable[[], Awaitable[TrustSide]]
) -> AsyncIterator[None]:
    """Keep the result of ``read`` in the configured ConfigMaps while the block lasts.

    Raises:
        AttestationUnavailable: the API server, its anchors or the namespace of this pod are not known.
    """
    if config is None:
        yield
        return
    async with AsyncExitStack() as stack:
        for namespace, name in _places(config):
            api = api_of(config)
            stack.push_async_callback(api.close)
            publish = partial(_publish, TrustConfigMap(api, namespace, name), read, f"{namespace}/{name}")
            failure = f"ConfigMap {namespace}/{name} with the trust anchors stays as it is; trying again"
            publishing = asyncio.create_task(repeat(publish, PUBLISH_SECONDS, failure))
            stack.push_async_callback(end_tasks, publishing)
        yield


def _places(config: PodAttestationConfig) -> list[tuple[str, str]]:
    """Namespace and name of each ConfigMap."""
    places = [(each.namespace, each.trust_config_map) for each in config.jobs if each.trust_config_map]
    if config.trust_config_map:
        try:
            places.append((pod_namespace(Path(config.account)), config.trust_config_map))
        except KubernetesMisconfigured as error:
            raise AttestationUnavailable(error.what, "see ca.kubernetes.account") from error
    return places


async def _publish(place: TrustConfigMap, read: Callable[[], Awaitable[TrustSide]], name: str) -> None:
    side = await read()
    if await place.publish(side.ca_pem, side.crl_pem):
        _LOG.info("ConfigMap %s has the trust anchors and CRLs", name)
