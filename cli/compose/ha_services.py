"""Several JobManagers and the ZooKeeper ensemble that elects their leader, as services of a cluster of containers."""

from __future__ import annotations

from sluice.cli.compose.services import HOME, Joining, ResourceLimits, Service
from sluice.pki.export.programs import SECURE_CLIENT_PORT

RPC_PORT = 6123
MAX_JOBMANAGERS = 8
ZOOKEEPERS = ("zookeeper-1", "zookeeper-2", "zookeeper-3")
STORAGE = f"{HOME}/ha-storage"
REST_HOST = "rest.jobmanager.internal"
"""REST address of any JobManager: a standby forwards to the leader."""
SHARED_BY_JOBMANAGERS = f"ha-storage:{STORAGE}"


def process_name(number: int) -> str:
    """The name in its certificate."""
    return f"jobmanager-{number}"


def service_name(number: int) -> str:
    """The service name; the first one has the name of a single one."""
    return "jobmanager" if number == 1 else process_name(number)


def rpc_host(number: int) -> str:
    """The name for RPC. A JobManager has a name for each network, so that each port is on one network only."""
    return f"rpc.{process_name(number)}.internal"


def rest_host(number: int) -> str:
    """The name for REST, on the network `gateway`."""
    return f"rest.{process_name(number)}.internal"


def client_host(name: str) -> str:
    """The name of a ZooKeeper server for its clients, JobManagers and ShuffleManagers."""
    return f"clients.{name}.internal"


def peer_host(name: str) -> str:
    """The name of a ZooKeeper server for the other servers."""
    return f"peers.{name}.internal"


def jobmanager_addresses(count: int) -> str:
    """The addresses for TaskManagers."""
    return ",".join(f"{rpc_host(number)}:{RPC_PORT}" for number in range(1, count + 1))


def ha_settings(jobmanagers: int) -> str:
    """The section of ``sluice.toml``; empty for a single JobManager, which uses a lock in its home."""
    if jobmanagers == 1:
        return ""
    hosts = ", ".join(f'"{client_host(name)}:{SECURE_CLIENT_PORT}"' for name in ZOOKEEPERS)
    names = ", ".join(f'"{process_name(number)}"' for number in range(1, jobmanagers + 1))
    return f"""
[ha]
mode = "zookeeper"
storage = "{STORAGE}"
session_timeout = 20.0                # seconds; containers share their processors with each other
lease = 60.0                          # seconds that a job goes on without a leader: two elections, one after the other
zookeeper_hosts = [{hosts}]
jobmanagers = [{names}]
"""


def ha_networks(jobmanagers: int) -> tuple[str, ...]:
    """The network between ZooKeeper's servers, without jobs."""
    return () if jobmanagers == 1 else ("ensemble",)


def ha_volumes(jobmanagers: int) -> tuple[str, ...]:
    """The volume with submissions and results, for the next leading JobManager."""
    return () if jobmanagers == 1 else ("ha-storage",)


def jobmanager_services(count: int) -> tuple[Service, ...]:
    """``count`` JobManagers, and with several the ZooKeeper ensemble."""
    managers = tuple(_jobmanager(number, shares=count > 1) for number in range(1, count + 1))
    return managers if count == 1 else (*managers, *(_zookeeper(name) for name in ZOOKEEPERS))


def _jobmanager(number: int, *, shares: bool) -> Service:
    name, rpc, rest = process_name(number), rpc_host(number), rest_host(number)
    return Service(
        name=service_name(number),
        command=("run", "jobmanager", f"--name={name}", f"--dns={rpc}", f"--dns={rest}", f"--dns={REST_HOST}"),
        endpoint=f"jobmanager-{name}",
        networks={"gateway": (rest, REST_HOST), "cluster": (rpc,)},
        joining=(Joining(f"jobmanager/{name}", (rpc, rest, REST_HOST)),),
        environment={"SLUICE__JOBMANAGER__HOST": rpc, "SLUICE__JOBMANAGER__REST_HOST": rest},
        limits=ResourceLimits("1g", pids=512),
        mounts=(SHARED_BY_JOBMANAGERS,) if shares else (),
    )


def _zookeeper(name: str) -> Service:
    clients, peers = client_host(name), peer_host(name)
    return Service(
        name=name,
        command=(
            *("run", "zookeeper", f"--name={name}", f"--host={clients}"),
            *(f"--peer={peer_host(each)}" for each in ZOOKEEPERS),
            *(f"--dns={clients}", f"--dns={peers}"),
        ),
        endpoint=f"zookeeper-{name}",
        networks={"cluster": (clients,), "ensemble": (peers,)},
        joining=(Joining(f"zookeeper/{name}", (clients, peers)),),
        limits=ResourceLimits("512m", pids=512),  # a JVM with many simultaneous handshakes
    )
