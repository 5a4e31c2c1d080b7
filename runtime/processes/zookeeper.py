"""Runs one ZooKeeper server of an ensemble from Spark's jars, with mutual TLS for clients and between servers only.

Its configuration is that of ``sluice pki export --for zookeeper``. The key and trust stores are rewritten whenever the
certificate or the trust anchors change, and ZooKeeper reloads them without a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sluice.core import Home, SluiceError, make_private_directory, utc_now, write_public
from sluice.pki import Role
from sluice.pki.ca import parse_address
from sluice.pki.export.programs import SECURE_CLIENT_PORT, Program, export_for
from sluice.pki.tls import TlsIdentity
from sluice.pki.trust import reporting
from sluice.runtime.ha import HaError, HaMisconfigured
from sluice.runtime.node import ChildProcess, ZooKeeperAddress, publish_zookeeper, require_reachable, withdraw_zookeeper
from sluice.runtime.spark import ensure_plugin, find_java, find_spark

_LOG = logging.getLogger(__name__)

QUORUM_PORT = 2888
"""The port at which followers connect to the leading server."""
ELECTION_PORT = 3888
TICK_MS = 2000
"""ZooKeeper's tick. A session timeout is at least two ticks and at most twenty."""
LIBRARIES = (
    "zookeeper-",
    "netty-",
    "slf4j-",
    "log4j-",
    "metrics-core-",
    "snappy-java-",
    "commons-",
    "jackson-",
    "scala-library-",
)
JVM_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=INFO")
STOP_GRACE_SECONDS = 10.0
EXPORT_CHECK_SECONDS = 5.0
POLL_SECONDS = 0.2
_MAIN = "io.sluice.zookeeper.EnsembleServer"
_QUORUM_CONTEXT = "io.sluice.zookeeper.PunctualContext"


async def run_zookeeper(home: Home, hosts: Sequence[str], name: str, host: str, peers: Sequence[str] = ()) -> None:
    """Run the server at ``host`` of the ensemble ``hosts`` (``host:port``) until cancelled.

    ``peers`` are the hosts at which the servers reach each other, in the order of ``hosts``; by default the same hosts.

    Its identity must exist at ``home.identity(Role.ZOOKEEPER, name)``, with the host name in its certificate.

    Raises:
        StoreError: there is no usable identity.
        HaMisconfigured: this host is not in the ensemble.
        HaError: the server process has ended.
    """
    require_reachable(host, "--host")
    home.create()
    directory = home.identity(Role.ZOOKEEPER, name)
    identity = TlsIdentity(directory)
    place = make_private_directory(home.root / "zookeeper") / name
    export_for(Program.ZOOKEEPER, directory, place, now=utc_now())
    settings = place / "server.cfg"
    exported = (place / "zoo.cfg").read_text() + quorum_settings(identity.spiffe_id.trust_domain)
    text, number, port = server_settings(exported, place / "data", hosts, host, peers)
    write_public(make_private_directory(place / "data") / "myid", str(number).encode())
    write_public(settings, text.encode())
    among = peers[number - 1] if peers else host
    address = ZooKeeperAddress(
        name=name, client=(host, port), quorum=(among, QUORUM_PORT), election=(among, ELECTION_PORT), pid=os.getpid()
    )
    async with reporting(identity, "zookeeper"):
        server = await ChildProcess.start(
            await asyncio.to_thread(_command, settings),
            env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            cwd=place,
            stdout=sys.stderr.fileno(),  # the server logs to this process's log
            stderr=asyncio.subprocess.STDOUT,
        )
        beside = [
            asyncio.create_task(_export_forever(identity, place), name="export"),
            asyncio.create_task(_announce(home, address), name="announce"),
        ]
        try:
            ended = await server.wait()
            raise HaError(f"the ZooKeeper server has ended: {ended}", "see its log")
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            withdraw_zookeeper(home, name)
            await server.stop(STOP_GRACE_SECONDS)


def quorum_settings(trust_domain: str) -> str:
    """The settings for connections between the servers: mutual TLS with deadlines."""
    return (
        f"ssl.quorum.context.supplier.class={_QUORUM_CONTEXT}\nssl.quorum.peers=spiffe://{trust_domain}/zookeeper/*\n"
    )


def server_settings(
    exported: str, data: Path, hosts: Sequence[str], host: str, peers: Sequence[str] = ()
) -> tuple[str, int, int]:
    """Return the configuration of the server at ``host``, its number in the ensemble, and its client port."""
    ensemble = [parse_address(each) for each in hosts]
    names = [name for name, _ in ensemble]
    if host not in names:
        raise HaMisconfigured(
            f"{host[:120]!r} is not in ha.zookeeper_hosts ({', '.join(names)})",
            "give --host this server's host from that list",
        )
    if peers and len(peers) != len(names):
        raise HaMisconfigured(
            f"{len(peers)} peers for {len(names)} servers in ha.zookeeper_hosts", "give each a --peer, in that order"
        )
    number = names.index(host) + 1
    port = ensemble[number - 1][1]
    servers = "".join(
        f"server.{n}={each}:{QUORUM_PORT}:{ELECTION_PORT}\n" for n, each in enumerate(peers or names, start=1)
    )
    lines = exported.replace(f"secureClientPort={SECURE_CLIENT_PORT}\n", f"secureClientPort={port}\n")
    own = f"secureClientPortAddress={host}\ndataDir={data}\ntickTime={TICK_MS}\ninitLimit=15\nsyncLimit=5\n"
    purge = "autopurge.snapRetainCount=3\nautopurge.purgeInterval=1\n"
    return f"{lines}{own}{purge}{servers}", number, port


def _command(settings: Path) -> list[str]:
    java, spark = find_java(), find_spark()
    plugin = ensure_plugin(java=java, spark=spark)
    jars = [str(jar) for jar in (plugin, *spark.jars) if jar.name.startswith(LIBRARIES) or jar == plugin]
    return [str(java.executable), *JVM_OPTIONS, "-cp", os.pathsep.join(jars), _MAIN, str(settings)]


async def _announce(home: Home, address: ZooKeeperAddress) -> None:
    """Announce the server, with resolved addresses, as soon as clients can connect."""
    while True:
        with contextlib.suppress(OSError):  # the server does not listen yet, or a name cannot be resolved now
            client = await _resolved(address.client)
            _, writer = await asyncio.open_connection(*client)
            writer.close()
            quorum, election = await _resolved(address.quorum), await _resolved(address.election)
            break
        await asyncio.sleep(POLL_SECONDS)
    publish_zookeeper(home, msgspec.structs.replace(address, client=client, quorum=quorum, election=election))
    _LOG.info("ZooKeeper server %s serves clients at %s:%d", address.name, *client)


async def _resolved(place: tuple[str, int]) -> tuple[str, int]:
    found = await asyncio.get_running_loop().getaddrinfo(*place, type=socket.SOCK_STREAM)
    return str(found[0][4][0]), place[1]


async def _export_forever(identity: TlsIdentity, place: Path) -> None:
    exported = identity.material
    while True:
        await asyncio.sleep(EXPORT_CHECK_SECONDS)
        present = identity.material
        if present is exported:
            continue
        try:
            await asyncio.to_thread(export_for, Program.ZOOKEEPER, identity.directory, place, now=utc_now())
        except (SluiceError, OSError) as error:
            _LOG.error("cannot export the new certificate of %s, trying again: %s", identity.spiffe_id, error)
            continue
        exported = present
        _LOG.info("the stores of %s have its new certificate", identity.spiffe_id)
