"""``sluice run zookeeper``: one server of the ensemble by which JobManagers and ShuffleManagers are elected."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli.run.member import MemberOptions, member_command
from sluice.pki import Role


@member_command
def zookeeper(
    *,
    name: Annotated[str, typer.Option(help="Process name in its certificate.")],
    host: Annotated[str, typer.Option(help="This server in ha.zookeeper_hosts; default: its name.")] = "",
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Where the other servers reach each of them, in the order of that list; default: there too."),
    ] = None,
    options: MemberOptions,
) -> None:
    """A server of the ZooKeeper ensemble in ha.zookeeper_hosts, with mutual TLS everywhere, from Spark's jars.

    Its address must be in its certificate, because the other servers check it.
    """
    from sluice.runtime.processes import run_zookeeper

    member = options.member(Role.ZOOKEEPER, name)
    hosts = member.configuration.ha.zookeeper_hosts
    member.serve(lambda: run_zookeeper(member.home, hosts, name, host or name, peer or ()))
