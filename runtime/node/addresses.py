"""Address files: each process of a home publishes its addresses in a small file below ``run/endpoints``.

The file is replaced atomically and removed when the process stops. TaskManagers read the JobManager's file each time
they connect, so they find a JobManager that has restarted on other ports. The files hold no secrets and prove nothing:
the process that answers at an address must still present the JobManager's certificate.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from sluice.core import EgressMode, Home, SluiceError, make_private_directory, read_bounded, write_public
from sluice.runtime.sandbox import IsolationLevel

_T = TypeVar("_T", bound=msgspec.Struct)

MAX_ADDRESS_BYTES = 16 << 10
JOBMANAGER = "jobmanager"
"""Name of the JobManager's file below ``run/endpoints``."""
TASKMANAGER = "taskmanager"
"""Prefix of the file of a registered TaskManager."""
SHUFFLE_MANAGER = "shuffle-manager"
SHUFFLE_WORKER = "shuffle-worker"
ZOOKEEPER = "zookeeper"


class AddressUnknown(SluiceError):
    """No process of the kind in question has published its addresses in this home."""


class AddressUnusable(SluiceError):
    """A configured host that other machines cannot connect to."""


class JobManagerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a JobManager.

    Attributes:
        name: process name in its certificate.
        rpc: host and port of its RPC listener.
        blob: host and port of its blob server.
        rest: path of its REST socket.
        pid: its process ID.
        rest_tls: host and port at which it serves REST over mutual TLS, if it does.
    """

    name: str
    rpc: tuple[str, int]
    blob: tuple[str, int]
    rest: str
    pid: int
    rest_tls: tuple[str, int] | None = None


class ShuffleManagerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of the leading ShuffleManager."""

    name: str
    rpc: tuple[str, int]
    pid: int


class ZooKeeperAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The listeners of a ZooKeeper server, all with mutual TLS; it listens at ``quorum`` only while it leads."""

    name: str
    client: tuple[str, int]
    quorum: tuple[str, int]
    election: tuple[str, int]
    pid: int


@contextmanager
def listening_jobmanager(home: Home, address: JobManagerAddress) -> Iterator[None]:
    """Announce for the duration of the block that a JobManager listens, whether it leads or not."""
    name = f"{JOBMANAGER}-{address.name}"
    _publish(home, name, address)
    try:
        yield
    finally:
        (home.run / "endpoints" / f"{name}.json").unlink(missing_ok=True)


def publish_zookeeper(home: Home, address: ZooKeeperAddress) -> None:
    """Announce a ZooKeeper server that accepts clients."""
    _publish(home, f"{ZOOKEEPER}-{address.name}", address)


def withdraw_zookeeper(home: Home, name: str) -> None:
    """Remove the address file of a ZooKeeper server that stops."""
    (home.run / "endpoints" / f"{ZOOKEEPER}-{name}.json").unlink(missing_ok=True)


def publish_jobmanager(home: Home, address: JobManagerAddress) -> None:
    """Announce ``address``: the JobManager is ready for work."""
    _publish(home, JOBMANAGER, address)


def withdraw_jobmanager(home: Home, pid: int) -> None:
    """Remove the address file, unless another process (with another ``pid``) has replaced it."""
    _withdraw(home, JOBMANAGER, pid, read_jobmanager)


def read_jobmanager(home: Home) -> JobManagerAddress:
    """Return the published addresses; raise :class:`AddressUnknown` when there are none or they are damaged."""
    return _read(home, JOBMANAGER, JobManagerAddress, "JobManager")


def publish_shuffle_manager(home: Home, address: ShuffleManagerAddress) -> None:
    """Announce ``address``: this ShuffleManager leads."""
    _publish(home, SHUFFLE_MANAGER, address)


def publish_shuffle_listener(home: Home, address: ShuffleManagerAddress) -> None:
    """Announce that a ShuffleManager listens, whether it leads or not."""
    _publish(home, f"{SHUFFLE_MANAGER}-{address.name}", address)


def withdraw_shuffle_manager(home: Home, pid: int) -> None:
    """Remove the address file, unless another process (with another ``pid``) has replaced it."""
    _withdraw(home, SHUFFLE_MANAGER, pid, read_shuffle_manager)


def read_shuffle_manager(home: Home) -> ShuffleManagerAddress:
    """Return the published addresses; raise :class:`AddressUnknown` when there are none or they are damaged."""
    return _read(home, SHUFFLE_MANAGER, ShuffleManagerAddress, "ShuffleManager")


def _publish(home: Home, name: str, content: msgspec.Struct) -> None:
    directory = make_private_directory(home.run / "endpoints")
    write_public(directory / f"{name}.json", msgspec.json.encode(content))


def _withdraw(
    home: Home, name: str, pid: int, read: Callable[[Home], JobManagerAddress | ShuffleManagerAddress]
) -> None:
    try:
        if read(home).pid != pid:
            return
    except SluiceError:
        return
    (home.run / "endpoints" / f"{name}.json").unlink(missing_ok=True)


def _read(home: Home, name: str, kind: type[_T], called: str) -> _T:
    path = home.run / "endpoints" / f"{name}.json"
    try:
        return msgspec.json.decode(read_bounded(path, MAX_ADDRESS_BYTES), type=kind)
    except (SluiceError, msgspec.DecodeError) as error:
        raise AddressUnknown(f"no {called} is announced in {path}", "check that it is running") from error


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A registered TaskManager of this home.

    Attributes:
        name: process name in its certificate.
        jobmanager: SPIFFE ID of the JobManager that has registered it.
        isolation: how it isolates jobs.
        egress: which outbound connections its jobs may open.
    """

    name: str
    jobmanager: str
    isolation: IsolationLevel = IsolationLevel.NONE
    egress: EgressMode = EgressMode.OFF


class ShuffleRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A registered ShuffleWorker of this home.

    Attributes:
        name: process name in its certificate.
        manager: SPIFFE ID of the ShuffleManager that has registered it.
        data: host and port of its data channel.
    """

    name: str
    manager: str
    data: tuple[str, int]


def publish_registration(home: Home, registration: Registration | ShuffleRegistration) -> None:
    """Announce, for health checks, that a TaskManager or ShuffleWorker is registered."""
    kind = TASKMANAGER if isinstance(registration, Registration) else SHUFFLE_WORKER
    _publish(home, f"{kind}-{registration.name}", registration)


def withdraw_registration(home: Home, name: str, kind: str = TASKMANAGER) -> None:
    """Remove the announcement of the TaskManager, or process of another ``kind``, called ``name``."""
    (home.run / "endpoints" / f"{kind}-{name}.json").unlink(missing_ok=True)


def require_reachable(host: str, setting: str) -> None:
    """Raise :class:`AddressUnusable` unless other machines can connect to ``host``, which is also the listen address.

    Args:
        host: a host name or address.
        setting: the setting it comes from, for the message.
    """
    try:
        unspecified = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        unspecified = not host
    if unspecified:
        raise AddressUnusable(
            f"{setting} is {host!r}, which other machines cannot connect to",
            "set it to a name or an address of this machine that other machines can connect to",
        )
