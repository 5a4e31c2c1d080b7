"""``sluice run``: one process of the cluster in the foreground, for the launcher, containers and init systems."""

from __future__ import annotations

import signal
import sys
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from sluice.cli import audit_records
from sluice.cli.cluster import JOBMANAGER_NAME, prepare_authorities
from sluice.cli.options import (
    DEFAULT_HOME,
    ConfigOption,
    HomeOption,
    load_configuration,
)
from sluice.cli.published_routes import auth_addresses, operations, publish_routes
from sluice.cli.run.agent import agent
from sluice.cli.run.application import application
from sluice.cli.run.job_pod import job_pod
from sluice.cli.run.joining import (
    EdgeTokenFileOption,
    JobManagerOption,
    gateway_identities,
    jobmanager_addresses,
)
from sluice.cli.run.member import MemberOptions, member_command
from sluice.cli.run.zookeeper import zookeeper
from sluice.cli.serving import process_of, serve
from sluice.gateway import AUTH_NAME, CONNECT_NAME, ENVOY_NAME
from sluice.pki import Role
from sluice.runtime import DRAINED_EXIT_CODE

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _run() -> None:
    """Run one process of the cluster in the foreground (SIGTERM ends it)."""
    # Preparing a process, mainly joining, can take long: a signal ends it like a running one, with code 0.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


@app.command()
def ca(
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    name: Annotated[str, typer.Option(help="Process name in its certificate.")] = "ca-1",
    create_authorities: Annotated[
        bool,
        typer.Option("--create-authorities", help="Create the authorities that are missing, as `sluice pki init`."),
    ] = False,
) -> None:
    """The online authority: enrolment by join token or attestation, renewal, identities of jobs.

    Needs `sluice pki init` first, or --create-authorities. Several may run in one home, each with its own --name: any
    of them answers, and they share keys, ledger, revocations and join tokens.
    """
    from sluice.pki.ca import run_ca

    located, configuration = load_configuration(home, config)
    if create_authorities:
        located.create()
        for line in prepare_authorities(located, configuration):
            typer.echo(line, err=True)
    serve(
        run_ca(located, configuration.pki, configuration.ca, name),
        process_of(located, configuration, Role.CA, name),
    )


app.command("agent")(agent)
app.command("job-pod", context_settings={"ignore_unknown_options": True})(job_pod)
app.command("application")(application)
app.command("zookeeper", epilog="Example: sluice run zookeeper --name zk-1 --ca ca.example.org:8444 …")(zookeeper)


@app.command(epilog="On another machine: sluice run jobmanager --ca ca.example.org:8444 --join-token-file token")
@member_command
def jobmanager(
    *,
    name: Annotated[str, typer.Option(help="Process name in its certificate.")] = JOBMANAGER_NAME,
    options: MemberOptions,
) -> None:
    """Dispatcher, ResourceManager, JobMasters, blob server and REST."""
    from sluice.cli.run.receipts import proving
    from sluice.gateway import job_tokens_in
    from sluice.gateway.authn import check_in
    from sluice.gateway.egress_evidence import egress_evidence_in
    from sluice.runtime.node import allow_many_files
    from sluice.runtime.processes import run_jobmanager

    member = options.member(Role.JOBMANAGER, name)
    home, configuration = member.home, member.configuration

    def main() -> Coroutine[Any, Any, None]:
        allow_many_files()  # one connection for each TaskManager and each driver
        remote_auth = auth_addresses(configuration)
        return run_jobmanager(
            home,
            configuration.runtime,
            configuration.pki,
            name,
            locate_ca=member.locate_ca,
            auth=remote_auth,
            check_streams=check_in(home, configuration.gateway) if remote_auth is None else None,
            ask_tokens=job_tokens_in(home, configuration.gateway, operations) if remote_auth is None else None,
            ask_egress=egress_evidence_in(home, configuration.gateway, operations()) if remote_auth is None else None,
            record=audit_records.recording(home) if remote_auth is None else None,
            prove=proving(home) if remote_auth is None else None,
        )

    member.serve(main)


@app.command(epilog="On another machine: sluice run taskmanager --name tm-7 --ca ca.example.org:8444 …")
@member_command
def taskmanager(
    *,
    name: Annotated[str, typer.Option(help="Process name in its certificate.")],
    options: MemberOptions,
    jobmanager: JobManagerOption = None,
) -> None:
    """Slots in which Spark executors run.

    Exit code 10: it was drained; a supervisor should not restart it.
    """
    from sluice.runtime.processes import run_taskmanager

    member = options.member(Role.TASKMANAGER, name)
    addresses = jobmanager_addresses(jobmanager)
    left = []

    async def main() -> None:
        runtime = member.configuration.runtime
        left.append(await run_taskmanager(member.home, runtime, name, jobmanagers=addresses))

    member.serve(main)
    if left:
        raise typer.Exit(DRAINED_EXIT_CODE)


@app.command("shuffle-manager", epilog="On another machine: sluice run shuffle-manager --ca ca.example.org:8444 …")
@member_command
def shuffle_manager(
    *,
    name: Annotated[str, typer.Option(help="Process name in its certificate.")] = "shuffle-manager-1",
    options: MemberOptions,
) -> None:
    """The ShuffleManager: registers ShuffleWorkers, assigns shuffles, removes data of ended jobs."""
    from sluice.runtime.node import allow_many_files
    from sluice.runtime.processes import run_shuffle_manager

    member = options.member(Role.SHUFFLE_MANAGER, name)

    def main() -> Coroutine[Any, Any, None]:
        allow_many_files()
        return run_shuffle_manager(member.home, member.configuration.runtime, name)

    member.serve(main)


@app.command(
    "shuffle-worker", epilog="On another machine: sluice run shuffle-worker --name sw-7 --ca ca.example.org:8444 …"
)
@member_command
def shuffle_worker(
    *,
    name: Annotated[str, typer.Option(help="Process name in its certificate.")],
    options: MemberOptions,
) -> None:
    """A ShuffleWorker: stores shuffles and serves them to their jobs. Its managers: shuffle.managers."""
    from sluice.pki.tls import restart_without_tickets
    from sluice.runtime.node import allow_many_files
    from sluice.runtime.processes import run_shuffle_worker

    restart_without_tickets()
    member = options.member(Role.SHUFFLE_WORKER, name)

    def main() -> Coroutine[Any, Any, None]:
        allow_many_files()  # connections, and a file for each partition being written
        return run_shuffle_worker(member.home, member.configuration.shuffle, name)

    member.serve(main)


@app.command()
@member_command
def auth(
    *,
    name: Annotated[str, typer.Option(help="Process name in its certificate, where it listens over TLS.")] = AUTH_NAME,
    options: MemberOptions,
) -> None:
    """The auth service, which decides requests for Envoy."""
    from sluice.gateway.service import run_auth

    member = options.member(Role.AUTH, name)
    publish_routes(member.home)
    configuration = member.configuration
    member.serve(
        lambda: run_auth(
            member.home,
            configuration.gateway,
            configuration.pki.trust_domain,
            name,
            rest=member.rest_address,
            locate_ca=member.locate_ca,
            tracing=configuration.tracing,
            egress=configuration.gateway_egress,
        )
    )


@app.command()
@member_command
def envoy(
    *,
    name: Annotated[
        str, typer.Option(help="Which Envoy of this home: envoy, or envoy-2 and so on where gateway.envoys says so.")
    ] = ENVOY_NAME,
    options: MemberOptions,
    edge_token_file: EdgeTokenFileOption = None,
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

    With --ca it has two tokens: one for its internal identity, gateway/NAME, without names, and one made with
    --edge-server for its public certificate, gateway/edge, with the names given here by --dns and --ip. A pod's token
    is for both.
    """
    from sluice.gateway.service import run_envoy

    member = options.member(Role.GATEWAY, name)
    gateway, domain, rest = member.configuration.gateway, member.configuration.pki.trust_domain, member.rest_address
    egress = member.configuration.gateway_egress
    identities = gateway_identities(member.home, member.configuration.pki, member.join, edge_token_file, name)
    member.serve(
        lambda: run_envoy(member.home, gateway, domain, name, rest=rest, elsewhere=elsewhere, egress=egress),
        identities,
    )


@app.command()
def connect(home: HomeOption = DEFAULT_HOME, config: ConfigOption = None) -> None:
    """The relay for Spark Connect and Flight SQL, on the machine of the auth service and Envoy of the same home."""
    from sluice.gateway.service import run_connect

    member = MemberOptions(home, config, None, None, None, None).member(Role.GATEWAY, CONNECT_NAME)
    member.serve(lambda: run_connect(member.home, member.configuration.gateway, rest=member.rest_address))
