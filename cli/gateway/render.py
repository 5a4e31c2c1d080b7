"""``sluice gateway render``: configuration for another reverse proxy, with the same auth service and policy."""

from __future__ import annotations

import enum
import os
import pwd
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, load_configuration
from sluice.core import make_private_directory, utc_now, write_public, write_secret
from sluice.gateway import ENVOY_NAME
from sluice.gateway.audit_log import access_file
from sluice.gateway.proxy import (
    CONFIGURATION,
    TRUST_FILE,
    CertificateFiles,
    EnvoyPaths,
    NginxPaths,
    render_nginx,
    upstreams_of,
)
from sluice.gateway.service import edge_directory
from sluice.pki import Role
from sluice.pki.authorities import trusted_pem
from sluice.pki.identities import read_identity


class Proxy(enum.StrEnum):
    """Reverse proxies that a configuration can be rendered for."""

    NGINX = "nginx"


def render_(
    proxy: Annotated[Proxy, typer.Option(help="The reverse proxy.")] = Proxy.NGINX,
    out: Annotated[
        Path | None, typer.Option(help="Write the configuration into this directory, which the proxy then uses.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
) -> None:
    """Render the configuration of a reverse proxy that replaces Envoy; without --out it is printed.

    It asks the same auth service about every request, and reads the gateway's certificates where they are.
    """
    located, configuration = load_configuration(home, config)
    if configuration.gateway.acme is not None:
        raise UsageError(
            f"{proxy.value} does not answer an ACME server, which [gateway.acme] needs",
            "remove that table; get the certificate with certbot and name it in gateway.certificate_file",
        )
    settings = configuration.jobmanager
    rest = (settings.rest_host, settings.rest_port) if settings.rest_host else None
    upstreams = upstreams_of(configuration.gateway, EnvoyPaths.of(located), rest)
    directory = (out or located.gateway / proxy.value).absolute()
    internal = located.identity(Role.GATEWAY, ENVOY_NAME)
    user = pwd.getpwuid(0).pw_name if os.geteuid() == 0 else ""
    paths = NginxPaths(directory, edge_directory(located), internal, access_file(located), user)
    text = render_nginx(configuration.gateway, paths, upstreams)
    if (files := CertificateFiles.of(configuration.gateway)) is not None:
        files.update(utc_now())
    if out is None:
        typer.echo(text, nl=False)
        return
    make_private_directory(directory)
    make_private_directory(paths.access_log.parent)
    if upstreams.any_tls:
        write_public(directory / TRUST_FILE, trusted_pem(read_identity(internal)[0].anchors))
    write_secret(directory / CONFIGURATION, text.encode())
    typer.echo(f"wrote {directory / CONFIGURATION}; check and start it as this user:", err=True)
    typer.echo(f"nginx -p {directory} -c {CONFIGURATION}")
