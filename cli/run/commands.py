"""``sluice run``: one process of the cluster in the foreground, for the launcher, containers and init systems."""

from __future__ import annotations

import signal
import sys
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from sluice.cli.cluster.identities import JOBMANAGER_NAME
from sluice.cli.options import (
    DEFAULT_HOME,
    ConfigOption,
    HomeOption,
    load_configuration,
)
from sluice.cli.published_routes import auth_address, publish_routes
from sluice.cli.run.agent import agent
from sluice.cli.run.application import application
from sluice.cli.run.joining import (
    CaOption,
    EdgeTokenFileOption,
    JobManagerOption,
    JoinDnsOption,
    JoinIpOption,
    TokenFileOption,
    gateway_identities,
    jobmanager_addresses,
    joined,
    joining,
    own_identity,
)
from sluice.cli.run.zookeeper import zookeeper
from sluice.cli.serving import process_of, serve
from sluice.gateway.config import AUTH_NAME, CONNECT_NAME, ENVOY_NAME
from sluice.pki.spiffe_id import Role
from sluice.runtime.taskmanager.errors import DRAINED_EXIT_CODE

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _run() -> None:
    """Run one process of the cluster in the foreground (SIGTERM ends it)."""
    # What prepares a process, joining first of all, can take long: it ends as what is running does, with code 0.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


@app.command()
def ca(
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    name: Annotated[str, typer.Option(help="Process name in its certificate.")] = "ca-1",
) -> None:
    """The online authority: enrolment by join token, renewal, identities of jobs. Needs `sluice pki init` first."""
    from sluice.pki.ca.process import run_ca

    located, configuration = load_configuration(home, config)
    serve(
        run_ca(located, configuration.pki, configuration.ca, name),
        process_of(located, configuration, Role.CA, name),
    )


app.command("agent")(agent)
app.command("application")(application)
app.command("zookeeper", epilog="Example: sluice run zookeeper --name zk-1 --ca ca.example.org:8444 …")(zookeeper)


@app.command(epilog="On another machine: sluice run jobmanager --ca ca.example.org:8444 --join-token-file token")
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
    from sluice.gateway.authn.credential_validity import check_in
    from sluice.runtime.node.child_process import allow_many_files
    from sluice.runtime.processes.jobmanager import run_jobmanager

    located, configuration = load_configuration(home, config)
    join = joining(ca, join_token_file, dns, ip)
    kept = own_identity(located, configuration.pki, join, Role.JOBMANAGER, name)
    locate = None if join is None else join.locate

    def main() -> Coroutine[Any, Any, None]:
        allow_many_files()  # a connection of each TaskManager and each driver
        elsewhere = auth_address(configuration)
        return run_jobmanager(
            located,
            configuration.runtime,
            configuration.pki,
            name,
            locate_ca=locate,
            auth=elsewhere,
            check_streams=check_in(located, configuration.gateway) if elsewhere is None else None,
        )

    serve(joined(located, join, kept, main), process_of(located, configuration, Role.JOBMANAGER, name))


@app.command(epilog="On another machine: sluice run taskmanager --name tm-7 --ca ca.example.org:8444 …")
def taskmanager(
    name: Annotated[str, typer.Option(help="Process name in its certificate.")],
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    ca: CaOption = None,
    join_token_file: TokenFileOption = None,
    dns: JoinDnsOption = None,
    ip: JoinIpOption = None,
    jobmanager: JobManagerOption = None,
) -> None:
    """Slots in which Spark executors run.

    Exit code 10: it was drained; a supervisor should not restart it.
    """
    from sluice.runtime.processes.taskmanager import run_taskmanager

    located, configuration = load_configuration(home, config)
    join = joining(ca, join_token_file, dns, ip)
    kept = own_identity(located, configuration.pki, join, Role.TASKMANAGER, name)
    addresses = jobmanager_addresses(jobmanager)

    left = []

    async def main() -> None:
        left.append(await run_taskmanager(located, configuration.runtime, name, jobmanagers=addresses))

    serve(joined(located, join, kept, main), process_of(located, configuration, Role.TASKMANAGER, name))
    if left:
        raise typer.Exit(DRAINED_EXIT_CODE)


@app.command("shuffle-manager", epilog="On another machine: sluice run shuffle-manager --ca ca.example.org:8444 …")
def shuffle_manager(
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    name: Annotated[str, typer.Option(help="Process name in its certificate.")] = "shuffle-manager-1",
    ca: CaOption = None,
    join_token_file: TokenFileOption = None,
    dns: JoinDnsOption = None,
    ip: JoinIpOption = None,
) -> None:
    """The ShuffleManager: registers ShuffleWorkers, assigns shuffles, removes data of ended jobs."""
    from sluice.runtime.node.child_process import allow_many_files
    from sluice.runtime.processes.shuffle_manager import run_shuffle_manager

    located, configuration = load_configuration(home, config)
    join = joining(ca, join_token_file, dns, ip)
    kept = own_identity(located, configuration.pki, join, Role.SHUFFLE_MANAGER, name)

    def main() -> Coroutine[Any, Any, None]:
        allow_many_files()
        return run_shuffle_manager(located, configuration.runtime, name)

    serve(joined(located, join, kept, main), process_of(located, configuration, Role.SHUFFLE_MANAGER, name))


@app.command(
    "shuffle-worker", epilog="On another machine: sluice run shuffle-worker --name sw-7 --ca ca.example.org:8444 …"
)
def shuffle_worker(
    name: Annotated[str, typer.Option(help="Process name in its certificate.")],
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    ca: CaOption = None,
    join_token_file: TokenFileOption = None,
    dns: JoinDnsOption = None,
    ip: JoinIpOption = None,
) -> None:
    """A ShuffleWorker: stores shuffles and serves them to their jobs. Its managers: shuffle.managers."""
    from sluice.pki.tls.openssl_settings import restart_without_tickets
    from sluice.runtime.node.child_process import allow_many_files
    from sluice.runtime.processes.shuffle_worker import run_shuffle_worker

    restart_without_tickets()
    located, configuration = load_configuration(home, config)
    join = joining(ca, join_token_file, dns, ip)
    kept = own_identity(located, configuration.pki, join, Role.SHUFFLE_WORKER, name)

    def main() -> Coroutine[Any, Any, None]:
        allow_many_files()  # connections, and a file of each partition that is written
        return run_shuffle_worker(located, configuration.shuffle, name)

    serve(joined(located, join, kept, main), process_of(located, configuration, Role.SHUFFLE_WORKER, name))


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
    """The auth service, which decides requests for Envoy."""
    from sluice.gateway.service.processes import run_auth

    located, configuration = load_configuration(home, config)
    publish_routes(located)
    join = joining(ca, join_token_file, dns, ip)
    kept = own_identity(located, configuration.pki, join, Role.AUTH, name)
    domain = configuration.pki.trust_domain
    settings = configuration.jobmanager
    rest = (settings.rest_host, settings.rest_port) if settings.rest_host else None
    locate = None if join is None else join.locate
    serve(
        joined(
            located,
            join,
            kept,
            lambda: run_auth(
                located,
                configuration.gateway,
                domain,
                name,
                rest=rest,
                locate_ca=locate,
                tracing=configuration.tracing,
            ),
        ),
        process_of(located, configuration, Role.AUTH, name),
    )


@app.command()
def envoy(
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    ca: CaOption = None,
    join_token_file: TokenFileOption = None,
    edge_token_file: EdgeTokenFileOption = None,
    dns: JoinDnsOption = None,
    ip: JoinIpOption = None,
    elsewhere: Annotated[
        bool,
        typer.Option(
            "--elsewhere",
            help="Start no Envoy, because it is started elsewhere: write its bootstrap, serve its secrets on a socket, "
            "and announce it while it serves.",
        ),
    ] = False,
) -> None:
    """Envoy, the gateway's proxy.

    With --ca it has two tokens: one for its internal identity, gateway/envoy, without names, and one made with
    --edge-server for its public certificate, gateway/edge, with the names given here by --dns and --ip.
    """
    from sluice.gateway.service.processes import run_envoy

    located, configuration = load_configuration(home, config)
    settings = configuration.jobmanager
    rest = (settings.rest_host, settings.rest_port) if settings.rest_host else None
    join = joining(ca, join_token_file, dns, ip)
    kept = gateway_identities(located, configuration.pki, join, edge_token_file)
    domain = configuration.pki.trust_domain
    gateway = configuration.gateway
    serve(
        joined(located, join, kept, lambda: run_envoy(located, gateway, domain, rest=rest, elsewhere=elsewhere)),
        process_of(located, configuration, Role.GATEWAY, ENVOY_NAME),
    )


@app.command()
def connect(home: HomeOption = DEFAULT_HOME, config: ConfigOption = None) -> None:
    """The relay for Spark Connect, beside the auth service and Envoy of the same home."""
    from sluice.gateway.service.connect_relay import run_connect

    located, configuration = load_configuration(home, config)
    settings = configuration.jobmanager
    rest = (settings.rest_host, settings.rest_port) if settings.rest_host else None
    serve(
        run_connect(located, configuration.gateway, rest=rest),
        process_of(located, configuration, Role.GATEWAY, CONNECT_NAME),
    )
