"""``sluice run``: one process of the cluster in the foreground, for the launcher, containers and init systems."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from cli.identities import JOBMANAGER_NAME
from cli.joining import CaOption, JoinDnsOption, JoinIpOption, TokenFileOption, joined, joining, own_identity
from cli.options import DEFAULT_HOME, ConfigOption, HomeOption, load_configuration
from cli.routes import publish_routes
from gateway.config import AUTH_NAME
from pki.identity import Role

app = typer.Typer(no_args_is_help=True, help="Run one process of the cluster in the foreground (SIGTERM ends it).")


def configure_logging() -> None:
    """One line per event on standard error, with time and level."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )


def serve(main: Coroutine[Any, Any, None]) -> None:
    """Run ``main`` until it ends or SIGTERM/SIGINT cancels it."""
    configure_logging()
    asyncio.run(_until_signal(main))


async def _until_signal(main: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(main)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


@app.command()
def ca(
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    name: Annotated[str, typer.Option(help="Process name in its certificate.")] = "ca-1",
) -> None:
    """The online authority: enrolment by join token, renewal, identities of jobs. Needs `sluice pki init` first."""
    from pki.ca.process import run_ca

    located, configuration = load_configuration(home, config)
    serve(run_ca(located, configuration.pki, configuration.ca, name))


@app.command()
def jobmanager(
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    name: Annotated[str, typer.Option(help="Process name in its certificate.")] = JOBMANAGER_NAME,
    ca: CaOption = None,
    join_token_file: TokenFileOption = None,
    dns: JoinDnsOption = None,
    ip: JoinIpOption = None,
) -> None:
    """Dispatcher, ResourceManager, JobMasters, blob server and REST."""
    from runtime.jobmanager.process import run_jobmanager

    located, configuration = load_configuration(home, config)
    join = joining(ca, join_token_file, dns, ip)
    if join is None:
        serve(run_jobmanager(located, configuration.runtime, configuration.pki, name))
        return
    kept = own_identity(located, configuration, join, Role.JOBMANAGER, name)

    def main() -> Coroutine[Any, Any, None]:
        return run_jobmanager(located, configuration.runtime, configuration.pki, name, locate_ca=join.locate)

    serve(joined(located, join, [kept], main))


@app.command()
def taskmanager(
    name: Annotated[str, typer.Option(help="Process name in its certificate.")],
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    ca: CaOption = None,
    join_token_file: TokenFileOption = None,
    dns: JoinDnsOption = None,
    ip: JoinIpOption = None,
) -> None:
    """Slots in which Spark executors run."""
    from runtime.taskmanager.process import run_taskmanager

    located, configuration = load_configuration(home, config)
    join = joining(ca, join_token_file, dns, ip)
    if join is None:
        serve(run_taskmanager(located, configuration.runtime, name))
        return
    kept = own_identity(located, configuration, join, Role.TASKMANAGER, name)
    serve(joined(located, join, [kept], lambda: run_taskmanager(located, configuration.runtime, name)))


@app.command()
def auth(
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    name: Annotated[str, typer.Option(help="Process name in its certificate, where it listens over TLS.")] = AUTH_NAME,
    ca: CaOption = None,
    join_token_file: TokenFileOption = None,
    dns: JoinDnsOption = None,
    ip: JoinIpOption = None,
) -> None:
    """The auth service that Envoy asks about every request."""
    from gateway.process import run_auth

    located, configuration = load_configuration(home, config)
    publish_routes(located)
    join = joining(ca, join_token_file, dns, ip)
    domain = configuration.pki.trust_domain
    if join is None:
        serve(run_auth(located, configuration.gateway, domain, name))
        return
    kept = own_identity(located, configuration, join, Role.AUTH, name)
    serve(joined(located, join, [kept], lambda: run_auth(located, configuration.gateway, domain, name)))


@app.command()
def envoy(home: HomeOption = DEFAULT_HOME, config: ConfigOption = None) -> None:
    """Envoy, the only door."""
    from gateway.process import run_envoy

    located, configuration = load_configuration(home, config)
    settings = configuration.jobmanager
    rest = (settings.rest_host, settings.rest_port) if settings.rest_host else None
    serve(run_envoy(located, configuration.gateway, configuration.pki.trust_domain, rest=rest))
