"""Addresses of online authorities: parsed from an option, or read from a file that each publishes in its home.

The file holds no secret and proves nothing: the server at the address must still show a certificate of role ``ca``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from sluice.core import Home, StoreError, held_alone, make_private_directory, read_bounded, url_host, write_public
from sluice.pki.errors import CaUnavailable
from sluice.pki.x509 import DAMAGED_JSON

DEFAULT_NAME = "ca-1"
MAX_ADDRESS_BYTES = 16 << 10
MAX_AUTHORITIES = 8
"""Most authorities that work for one home, and most addresses that a client takes."""

Address = tuple[str, int]
"""Host and port."""


class CaAddress(msgspec.Struct, frozen=True, kw_only=True):
    """``mutual`` is for clients with a certificate, ``enrolment`` for those with a join token, ``acme`` for ACME.

    ``pid`` is 0, and ``name`` empty, for an authority on another machine.
    """

    name: str = ""
    mutual: Address
    enrolment: Address
    pid: int = 0
    acme: Address | None = None


def publish_ca(home: Home, address: CaAddress) -> None:
    """Announce ``address``, at which the authority takes requests."""
    make_private_directory(home.run / "endpoints")
    write_public(announcement(home, address.name or DEFAULT_NAME), msgspec.json.encode(address))


def withdraw_ca(home: Home, address: CaAddress) -> None:
    """Remove the announcement, unless another process (its pid differs) has replaced it since."""
    path = announcement(home, address.name or DEFAULT_NAME)
    known = _published(path)
    if known is not None and known.pid == address.pid:
        path.unlink(missing_ok=True)


def announcement(home: Home, name: str) -> Path:
    """The announcement file of the authority of this name; that of the first keeps the name of older versions."""
    return home.run / "endpoints" / ("ca.json" if name == DEFAULT_NAME else f"ca-{name}.json")


def announcements(home: Home) -> list[Path]:
    """The announcement files of the authorities of ``home``, the first one first."""
    endpoints = home.run / "endpoints"
    return [*endpoints.glob("ca.json"), *sorted(endpoints.glob("ca-*.json"))]


def read_cas(home: Home) -> tuple[CaAddress, ...]:
    """The published addresses; raises :class:`CaUnavailable` when there is none, or all are damaged.

    A killed authority may still be among them.
    """
    found = tuple(each for path in announcements(home)[:MAX_AUTHORITIES] if (each := _published(path)) is not None)
    if not found:
        raise CaUnavailable(
            f"no online authority is announced in {home.run / 'endpoints'}", "start one: `sluice run ca`"
        )
    return found


def read_ca(home: Home) -> CaAddress:
    """The first published address; raises :class:`CaUnavailable`, as :func:`read_cas`."""
    return read_cas(home)[0]


def _published(path: Path) -> CaAddress | None:
    try:
        return msgspec.json.decode(read_bounded(path, MAX_ADDRESS_BYTES), type=CaAddress)
    except (StoreError, *DAMAGED_JSON):
        return None


@contextlib.contextmanager
def only_one_named(home: Home, name: str) -> Iterator[None]:
    """Hold the lock of the authority ``name``, which shows that it runs, until the process ends.

    Raises:
        StoreError: another process is this authority.
    """
    make_private_directory(home.run)
    with held_alone(home.run / f"ca-{name}.lock") as alone:
        if not alone:
            raise StoreError(f"another process is the authority {name} of {home.root}", "give this one another --name")
        yield


def presence_locks(home: Home) -> list[Path]:
    """The lock files of :func:`only_one_named`, held or not."""
    return sorted(home.run.glob("ca-*.lock"))


def parse_cas(texts: Sequence[str]) -> tuple[CaAddress, ...]:
    """:func:`parse_ca` for one or several equivalent authorities; raises :class:`StoreError`."""
    if len(texts) > MAX_AUTHORITIES:
        raise StoreError(f"{len(texts)} addresses of authorities", f"at most {MAX_AUTHORITIES}")
    return tuple(dict.fromkeys(parse_ca(each) for each in texts))


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
