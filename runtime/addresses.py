"""Where the JobManager of a home can be reached: one small file, replaced atomically, gone when it stops.

TaskManagers read it each time they connect, so a JobManager that comes back on other ports is found again.
The file holds no secret and proves nothing: whoever answers there still has to show the JobManager's certificate.
"""

from __future__ import annotations

import ipaddress

import msgspec

from pki.errors import SluiceError
from pki.files import make_private_directory, read_bounded, write_public
from pki.home import Home

MAX_ADDRESS_BYTES = 16 << 10
JOBMANAGER = "jobmanager"
"""Name of the JobManager's file below ``run/endpoints``."""
TASKMANAGER = "taskmanager"
"""Likewise of a TaskManager that is registered."""


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


def publish_jobmanager(home: Home, address: JobManagerAddress) -> None:
    """Announce ``address``: the JobManager is ready for work."""
    directory = make_private_directory(home.run / "endpoints")
    write_public(directory / f"{JOBMANAGER}.json", msgspec.json.encode(address))


def withdraw_jobmanager(home: Home, pid: int) -> None:
    """Remove the announcement, unless another process (``pid`` differs) has replaced it since."""
    try:
        if read_jobmanager(home).pid != pid:
            return
    except SluiceError:
        return
    (home.run / "endpoints" / f"{JOBMANAGER}.json").unlink(missing_ok=True)


def read_jobmanager(home: Home) -> JobManagerAddress:
    """The published addresses; raises :class:`AddressUnknown` when there are none or they are damaged."""
    path = home.run / "endpoints" / f"{JOBMANAGER}.json"
    try:
        return msgspec.json.decode(read_bounded(path, MAX_ADDRESS_BYTES), type=JobManagerAddress)
    except (SluiceError, msgspec.DecodeError) as error:
        raise AddressUnknown(f"no JobManager is announced in {path}", "is it running?") from error


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A TaskManager of this home that is registered: its name, and who took it (a SPIFFE ID)."""

    name: str
    jobmanager: str


def publish_registration(home: Home, registration: Registration) -> None:
    """Announce that a TaskManager is registered; for health checks."""
    directory = make_private_directory(home.run / "endpoints")
    write_public(directory / f"{TASKMANAGER}-{registration.name}.json", msgspec.json.encode(registration))


def withdraw_registration(home: Home, name: str) -> None:
    """The TaskManager ``name`` is not registered any more."""
    (home.run / "endpoints" / f"{TASKMANAGER}-{name}.json").unlink(missing_ok=True)


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
