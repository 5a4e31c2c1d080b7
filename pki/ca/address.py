"""Where the online authority of a home can be reached: one small file, gone when it stops.

The file holds no secret and proves nothing: whoever answers there still has to show the certificate of role ``ca``.
"""

from __future__ import annotations

import msgspec

from sluice.core.errors import StoreError
from sluice.core.files import make_private_directory, read_bounded, write_public
from sluice.core.home import Home
from sluice.pki.errors import CaUnavailable
from sluice.pki.x509.parse_errors import DAMAGED_JSON

MAX_ADDRESS_BYTES = 16 << 10


class CaAddress(msgspec.Struct, frozen=True, kw_only=True):
    """``mutual`` is for those with a certificate, ``enrolment`` for those with a join token.

    ``pid`` is 0, and ``name`` empty, for an authority on another machine.
    """

    name: str = ""
    mutual: tuple[str, int]
    enrolment: tuple[str, int]
    pid: int = 0


def publish_ca(home: Home, address: CaAddress) -> None:
    """Announce ``address``: the authority takes requests."""
    make_private_directory(home.run / "endpoints")
    write_public(home.run / "endpoints" / "ca.json", msgspec.json.encode(address))


def withdraw_ca(home: Home, pid: int) -> None:
    """Remove the announcement, unless another process (``pid`` differs) has replaced it since."""
    try:
        if read_ca(home).pid != pid:
            return
    except CaUnavailable:
        return
    (home.run / "endpoints" / "ca.json").unlink(missing_ok=True)


def read_ca(home: Home) -> CaAddress:
    """The published address; raises :class:`CaUnavailable` when there is none or it is damaged."""
    path = home.run / "endpoints" / "ca.json"
    try:
        return msgspec.json.decode(read_bounded(path, MAX_ADDRESS_BYTES), type=CaAddress)
    except (StoreError, *DAMAGED_JSON) as error:
        raise CaUnavailable(f"no online authority is announced in {path}", "start it: `sluice run ca`") from error
