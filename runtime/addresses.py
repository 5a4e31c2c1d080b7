"""Where the JobManager of a home can be reached: one small file, replaced atomically, gone when it stops.

TaskManagers read it each time they connect, so a JobManager that comes back on other ports is found again.
The file holds no secret and proves nothing: whoever answers there still has to show the JobManager's certificate.
"""

from __future__ import annotations

import msgspec

from pki.errors import SluiceError
from pki.files import make_private_directory, read_bounded, write_public
from pki.home import Home

MAX_ADDRESS_BYTES = 16 << 10
JOBMANAGER = "jobmanager"
"""Name of the JobManager's file below ``run/endpoints``."""


class AddressUnknown(SluiceError):
    """No JobManager has published its addresses in this home."""


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
