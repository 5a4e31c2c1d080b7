"""A whole gateway with the real Envoy, an identity provider on another site, and a real Chromium."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.gateway.config import GatewayConfig, OidcConfig
from sluice.pki.spiffe_id import Role
from tests.free_ports import free_port
from tests.identity_provider import CLIENT_ID, IdentityProvider, identity_provider, provider_tls
from tests.integration.gateway.conftest import BackgroundLoop, EdgeAuthority, Gateway

from .chromium import Tab, chromium, pin

POLICY = b"""
version = 1
[roles.submitter]
allow = ["*.read", "jobs.list", "jobs.submit"]
[groups]
staff = ["submitter"]
"""


@dataclass
class Scene:
    """The environment of a test: a gateway, a provider and a browser tab."""

    gateway: Gateway
    provider: IdentityProvider
    tab: Tab
    url: str


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    tls = provider_tls(tmp_path / "provider")
    home = Path(tempfile.mkdtemp(prefix="slc"))
    loop = BackgroundLoop()
    # Another host than the gateway's: to a browser, another site.
    async with identity_provider(tls, "127.0.0.1") as provider:
        provider.user = None
        port = free_port()
        url = f"https://localhost:{port}"
        oidc = OidcConfig(issuer=provider.issuer, client_id=CLIENT_ID, ca_file=str(provider.ca_file))
        config = GatewayConfig(port=port, public_url=url, oidc=oidc, authorization_timeout=10.0)
        gateway = Gateway(Home.at(home).create(), EdgeAuthority(tmp_path / "pki"), loop, config)
        write_secret(gateway.home.gateway / "policy.toml", POLICY)
        try:
            await asyncio.to_thread(gateway.start)
            own = gateway.home.identity(Role.GATEWAY, "edge") / "chain.pem"
            pins = [pin(own), pin(tls / "chain.pem")]
            async with chromium(tmp_path / "profile", pins) as tab:
                yield Scene(gateway, provider, tab, url)
        finally:
            await asyncio.to_thread(gateway.stop)
            loop.close()
            shutil.rmtree(home)
