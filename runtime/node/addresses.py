"""Where the JobManager of a home can be reached: one small file, replaced atomically, gone when it stops.

TaskManagers read it each time they connect, so a JobManager that comes back on other ports is found again.
The file holds no secret and proves nothing: whoever answers there still has to show the JobManager's certificate.
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
"""Likewise of a TaskManager that is registered."""
SHUFFLE_MANAGER = "shuffle-manager"
SHUFFLE_WORKER = "shuffle-worker"
ZOOKEEPER = "zookeeper"


class AddressUnknown(SluiceError):
    """No JobManager has published its addresses in this home."""


class AddressUnusable(SluiceError):
    """A configured host that other machines could not connect to."""


class JobManagerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The published addresses: ``name`` is the process name in the certificate, ``rest`` a socket path.

    ``rest_tls`` is where REST listens over mutual TLS; None: it does not.
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
    """Where a ZooKeeper server listens, each place over mutual TLS; at ``quorum`` only while it leads the others."""

    name: str
    client: tuple[str, int]
    quorum: tuple[str, int]
    election: tuple[str, int]
    pid: int


@contextmanager
def listening_jobmanager(home: Home, address: JobManagerAddress) -> Iterator[None]:
    """Announce meanwhile that a JobManager listens, whether it leads or not."""
    name = f"{JOBMANAGER}-{address.name}"
    _publish(home, name, address)
    try:
        yield
    finally:
        (home.run / "endpoints" / f"{name}.json").unlink(missing_ok=True)


def publish_zookeeper(home: Home, address: ZooKeeperAddress) -> None:
    """Announce a ZooKeeper server that takes clients."""
    _publish(home, f"{ZOOKEEPER}-{address.name}", address)


def withdraw_zookeeper(home: Home, name: str) -> None:
    """Withdraw the address of a ZooKeeper server that stops."""
    (home.run / "endpoints" / f"{ZOOKEEPER}-{name}.json").unlink(missing_ok=True)


def publish_jobmanager(home: Home, address: JobManagerAddress) -> None:
    """Announce ``address``: the JobManager is ready for work."""
    _publish(home, JOBMANAGER, address)


def withdraw_jobmanager(home: Home, pid: int) -> None:
    """Remove the announcement, unless another process (``pid`` differs) has replaced it since."""
    _withdraw(home, JOBMANAGER, pid, read_jobmanager)


def read_jobmanager(home: Home) -> JobManagerAddress:
    """The published addresses; raises :class:`AddressUnknown` when there are none or they are damaged."""
    return _read(home, JOBMANAGER, JobManagerAddress, "JobManager")


def publish_shuffle_manager(home: Home, address: ShuffleManagerAddress) -> None:
    """Announce ``address``: this ShuffleManager leads."""
    _publish(home, SHUFFLE_MANAGER, address)


def publish_shuffle_listener(home: Home, address: ShuffleManagerAddress) -> None:
    """Announce that a ShuffleManager listens, whether it leads or not."""
    _publish(home, f"{SHUFFLE_MANAGER}-{address.name}", address)


def withdraw_shuffle_manager(home: Home, pid: int) -> None:
    """Remove the announcement, unless another process (``pid`` differs) has replaced it since."""
    _withdraw(home, SHUFFLE_MANAGER, pid, read_shuffle_manager)


def read_shuffle_manager(home: Home) -> ShuffleManagerAddress:
    """The published addresses; raises :class:`AddressUnknown` when there are none or they are damaged."""
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
        raise AddressUnknown(f"no {called} is announced in {path}", "is it running?") from error


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A TaskManager of this home that is registered: its name, who took it (a SPIFFE ID), how it isolates jobs, and
    what these may connect to."""

    name: str
    jobmanager: str
    isolation: IsolationLevel = IsolationLevel.NONE
    egress: EgressMode = EgressMode.OFF


class ShuffleRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A ShuffleWorker of this home that is registered: its name, who took it, and where it serves the data channel."""

    name: str
    manager: str
    data: tuple[str, int]


def publish_registration(home: Home, registration: Registration | ShuffleRegistration) -> None:
    """Announce that a TaskManager or ShuffleWorker is registered; for health checks."""
    kind = TASKMANAGER if isinstance(registration, Registration) else SHUFFLE_WORKER
    _publish(home, f"{kind}-{registration.name}", registration)


def withdraw_registration(home: Home, name: str, kind: str = TASKMANAGER) -> None:
    """The TaskManager, or process of another ``kind``, ``name`` is not registered any more."""
    (home.run / "endpoints" / f"{kind}-{name}.json").unlink(missing_ok=True)


def require_reachable(host: str, setting: str) -> None:
    """Raise :class:`AddressUnusable` unless ``host`` can be told to others: it is listened on, and dialed.

    Args:
        host: a host name or address.
        setting: where it comes from, for the message.
    """
    try:
        unspecified = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        unspecified = not host
    if unspecified:
        raise AddressUnusable(
            f"{setting} is {host!r}, which nobody can connect to",
            "set it to a name or an address that means this machine on the others too",
        )
