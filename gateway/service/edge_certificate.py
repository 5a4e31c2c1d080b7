"""The certificate for browsers: from files of another program, or from an ACME server while Envoy serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from sluice.core import CERTIFICATE_FILE_NOT_AFTER, Home, SluiceError, end_tasks, utc_now
from sluice.gateway.acme import AcmeAgent, issued_files
from sluice.gateway.config import EDGE_NAME, ENVOY_NAME, GatewayConfig
from sluice.gateway.envoy_config import ACME_HTTP
from sluice.gateway.listening import require_free_port
from sluice.gateway.proxy import CertificateFiles, EnvoyAdmin
from sluice.gateway.service.announcements import acme_announcement, publish
from sluice.gateway.xds import XdsStatus
from sluice.pki import Role

_LOG = logging.getLogger(__name__)

ACME_CERTIFICATE = "certificate of gateway.acme"
"""Its name in the status report."""


def edge_directory(home: Home) -> Path:
    """The directory of the public certificate; homes of earlier versions keep it in place of the internal one."""
    directory = home.identity(Role.GATEWAY, EDGE_NAME)
    return directory if directory.exists() else home.identity(Role.GATEWAY, ENVOY_NAME)


def require_free_challenge_port(config: GatewayConfig) -> None:
    """Raise :class:`ListenError` when http-01 is configured and its port is in use."""
    if config.acme is not None and config.acme.challenge == "http-01":
        require_free_port(config.host, config.acme.http_port)


def certificate_files(home: Home, config: GatewayConfig) -> CertificateFiles | None:
    """The files of another authority's certificate, read once; None when there are none.

    Files of another program must be valid at the start. The gateway's own ACME certificate may be missing, or may have
    expired while the gateway was down: the gateway can order the next one only while it runs.
    """
    if config.acme is None:
        files = CertificateFiles.of(config)
        if files is not None:
            files.update(utc_now())
        return files
    chain, key = issued_files(home)
    files = CertificateFiles(chain, key, config.server_names)
    try:
        files.update(utc_now())
    except SluiceError as error:
        # Triggers the alert on certificates that were not renewed.
        CERTIFICATE_FILE_NOT_AFTER.labels(str(chain)).set(0)
        _LOG.warning("Envoy presents the edge authority's certificate until the ACME server has issued one: %s", error)
    return files


@contextlib.asynccontextmanager
async def renewing(home: Home, config: GatewayConfig, envoy: EnvoyAdmin, status: XdsStatus) -> AsyncIterator[None]:
    """Order certificates from the ACME server, if configured, while ``envoy`` serves; announce the http-01 port."""
    if config.acme is None:
        yield
        return

    def report(problem: str) -> None:
        if problem:
            status.refused(ACME_CERTIFICATE, problem)
        else:
            status.accepted_input(ACME_CERTIFICATE)

    with contextlib.ExitStack() as announced:
        if config.acme.challenge == "http-01":
            port = await envoy.until_listening(ACME_HTTP)
            announced.callback(publish(acme_announcement(home), config.host, port))
            _LOG.info("Envoy answers ACME challenges on %s:%d, and nothing else there", config.host, port)
        agent = AcmeAgent(home, config.acme, config.server_names, report)
        running = asyncio.create_task(agent.run(), name="acme")
        try:
            yield
        finally:
            await end_tasks(running)
