"""``sluice run zookeeper``: one server of the ensemble by which JobManagers and ShuffleManagers are elected."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from sluice.cli.options import (
    DEFAULT_HOME,
    ConfigOption,
    HomeOption,
    load_configuration,
)
from sluice.cli.run.joining import (
    CaOption,
    JoinDnsOption,
    JoinIpOption,
    TokenFileOption,
    joined,
    joining,
    own_identity,
)


def zookeeper(
    name: Annotated[str, typer.Option(help="Process name in its certificate.")],
    host: Annotated[str, typer.Option(help="This server in ha.zookeeper_hosts; default: its name.")] = "",
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Where the other servers reach each of them, in the order of that list; default: there too."),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    ca: CaOption = None,
    join_token_file: TokenFileOption = None,
    dns: JoinDnsOption = None,
    ip: JoinIpOption = None,
) -> None:
    """A server of the ZooKeeper ensemble in ha.zookeeper_hosts, with mutual TLS everywhere, from Spark's jars.

    Where it is reached must be in its certificate: the other servers check that.
    """
    from sluice.cli.serving import process_of, serve
    from sluice.pki.spiffe_id import Role
    from sluice.runtime.processes.zookeeper import run_zookeeper

    located, configuration = load_configuration(home, config)
    join = joining(ca, join_token_file, dns, ip)
    kept = own_identity(located, configuration.pki, join, Role.ZOOKEEPER, name)

    def main() -> Coroutine[Any, Any, None]:
        return run_zookeeper(located, configuration.ha.zookeeper_hosts, name, host or name, peer or ())

    serve(joined(located, join, kept, main), process_of(located, configuration, Role.ZOOKEEPER, name))
