"""The online authority's address: parsed from an option, or read from a file that it publishes in its home.

The file holds no secret and proves nothing: whoever answers there still has to show the certificate of role ``ca``.
"""

from __future__ import annotations

import msgspec

from sluice.core import Home, StoreError, make_private_directory, read_bounded, url_host, write_public
from sluice.pki.errors import CaUnavailable
from sluice.pki.x509 import DAMAGED_JSON

MAX_ADDRESS_BYTES = 16 << 10

Address = tuple[str, int]
"""Host and port."""


class CaAddress(msgspec.Struct, frozen=True, kw_only=True):
    """``mutual`` is for those with a certificate, ``enrolment`` for those with a join token, ``acme`` for ACME clients.

    ``pid`` is 0, and ``name`` empty, for an authority on another machine.
    """

    name: str = ""
    mutual: Address
    enrolment: Address
    pid: int = 0
    acme: Address | None = None


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


def parse_ca(text: str) -> CaAddress:
    """``host:port[,enrolment port]``, the latter by default the next one; raises :class:`StoreError`."""
    whole, _, enrolment = text.partition(",")
    host, port = parse_address(whole)
    if not enrolment:
        return CaAddress(mutual=(host, port), enrolment=(host, min(port + 1, 65535)))
    return CaAddress(mutual=(host, port), enrolment=parse_address(f"{url_host(host)}:{enrolment.strip()}"))


def parse_address(text: str) -> Address:
    """``host:port``, ``[v6]:port``, or the same after ``https://``; raises :class:`StoreError`."""
    host, _, port = text.removeprefix("https://").rstrip("/").rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if (
        not bare
        or (":" in bare) != bracketed
        or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16)
    ):
        raise StoreError(
            f"{text[:200]!r} is not an address", "use host:port, as in ca.example.org:8443, or [v6-address]:port"
        )
    return bare, int(port)
