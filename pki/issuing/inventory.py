"""The inventory of a cluster: one TOML file that lists its identities.

::

    trust_domain = "sluice.local"        # optional: must be the configured one

    [defaults]                           # optional: for entries that do not say otherwise
    lifetime = "24h"

    [[identity]]
    id = "jobmanager/jm-1"
    dns = ["jm-1.example.org"]
    ips = ["10.0.0.1"]

    [[identity]]                         # four hundred of a kind: {n} is 1, 2, ... 400
    id = "taskmanager/tm-{n}"
    dns = ["tm-{n}.example.org"]
    count = 400

    [[identity]]
    id = "gateway/edge"
    edge_server = true                   # the gateway's public certificate
    dns = ["cluster.example.org"]

Takes text and returns values; no I/O.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from collections.abc import Iterator

import msgspec

from sluice.core import InvalidIdentity, PkiError
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.leaf import LeafRequest
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import Names, edge_server_profile, leaf_validity, workload_profile

MAX_INVENTORY_BYTES = 16 << 20
"""Largest inventory that is read, in bytes."""
MAX_IDENTITIES = 100_000
"""Most identities in one inventory."""
NUMBER = "{n}"
"""Placeholder for the number in an entry with ``count``."""

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}
_DURATION = re.compile(r"([1-9][0-9]{0,5})([mhd])")


class InventoryError(PkiError):
    """An inventory that cannot be carried out; nothing has been issued."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()
    lifetime: str | None = None
    accept: tuple[str, ...] = ()
    edge_server: bool = False
    count: int | None = None
    first: int = 1


class _Defaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    lifetime: str | None = None
    accept: tuple[str, ...] = ()


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    identity: list[_Entry]
    trust_domain: str | None = None
    defaults: _Defaults = _Defaults()


class Inventory:
    """A checked inventory; iterating makes the requests one by one, so that it stays small in memory."""

    def __init__(self, document: _Document, config: PkiConfig, size: int) -> None:
        self._document = document
        self._config = config
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[LeafRequest]:
        for number, entry in enumerate(self._document.identity, 1):
            yield from _requests(entry, number, self._document.defaults, self._config)

    def samples(self) -> Iterator[LeafRequest]:
        """The first identity of each entry; the others differ only in their number."""
        for number, entry in enumerate(self._document.identity, 1):
            yield _request(entry, entry.first, number, self._document.defaults, self._config)


def parse_inventory(data: bytes, config: PkiConfig) -> Inventory:
    """Read an inventory and check all of it; an :class:`InventoryError` names the entry and what is wrong with it."""
    if len(data) > MAX_INVENTORY_BYTES:
        raise InventoryError(f"the inventory is larger than {MAX_INVENTORY_BYTES} bytes", "split it")
    try:
        document = msgspec.convert(tomllib.loads(data.decode("utf-8")), _Document)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InventoryError(f"the inventory is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise InventoryError(f"the inventory is wrong: {error}", "known: id, dns, ips, lifetime, accept …") from error
    if document.trust_domain not in {None, config.trust_domain}:
        raise InventoryError(
            f"the inventory is of trust domain {str(document.trust_domain)[:80]!r}, not {config.trust_domain!r}",
            "use the home of that trust domain, or set pki.trust_domain",
        )
    size = sum(_count(entry, number) for number, entry in enumerate(document.identity, 1))
    if size > MAX_IDENTITIES:
        raise InventoryError(f"{size} identities are more than {MAX_IDENTITIES}", "split the inventory")
    inventory = Inventory(document, config, size)
    seen: set[str] = set()
    for number, entry in enumerate(document.identity, 1):
        _check_numbering(entry, number)
        # The identities of a numbered entry differ only in their number: checking the first and the last is enough.
        for at in {entry.first, entry.first + _count(entry, number) - 1}:
            _request(entry, at, number, document.defaults, config)
        for at in range(entry.first, entry.first + _count(entry, number)):
            name = entry.id.replace(NUMBER, str(at)).removeprefix(f"spiffe://{config.trust_domain}/")
            if name in seen:
                raise InventoryError(f"entry {number}: {name} is there twice", "list each identity once")
            seen.add(name)
    return inventory


def parse_duration(text: str) -> dt.timedelta:
    """A lifetime such as ``90m``, ``12h``, ``30d``; else an :class:`InventoryError`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InventoryError(f"{text[:40]!r} is not a lifetime", "write a number and a unit: 90m, 12h, 30d")
    return dt.timedelta(**{_UNITS[match.group(2)]: int(match.group(1))})


def _count(entry: _Entry, number: int) -> int:
    count = 1 if entry.count is None else entry.count
    if not 1 <= count <= MAX_IDENTITIES or not 0 <= entry.first <= MAX_IDENTITIES:
        raise InventoryError(f"entry {number}: {count} identities from {entry.first} on", f"at most {MAX_IDENTITIES}")
    return count


def _check_numbering(entry: _Entry, number: int) -> None:
    if entry.count is not None and NUMBER not in entry.id:
        raise InventoryError(f"entry {number}: it has a count, and no {NUMBER} in its id", f"as in tm-{NUMBER}")
    if entry.count is None and (entry.first != 1 or any(NUMBER in text for text in (entry.id, *entry.dns))):
        raise InventoryError(f"entry {number}: {NUMBER} or first without a count", "say how many there are")


def _requests(entry: _Entry, number: int, defaults: _Defaults, config: PkiConfig) -> Iterator[LeafRequest]:
    first = _request(entry, entry.first, number, defaults, config)
    yield first
    # The others differ only in their number, and parsing checked the largest.
    templates = list(dict.fromkeys(name.lower() for name in entry.dns))
    identity = entry.id if entry.id.startswith("spiffe://") else f"spiffe://{config.trust_domain}/{entry.id}"
    for at in map(str, range(entry.first + 1, entry.first + _count(entry, number))):
        dns = [template.replace(NUMBER, at) for template in templates]
        unique = tuple(dns) if len(dns) < 2 else tuple(dict.fromkeys(dns))
        names = Names(SpiffeId.parse(identity.replace(NUMBER, at)), unique, first.names.ips)
        yield LeafRequest(names, first.profile, first.lifetime, first.accept)


def _request(entry: _Entry, at: int, number: int, defaults: _Defaults, config: PkiConfig) -> LeafRequest:
    numbered = entry.count is not None
    try:
        spiffe_id = _identity(entry.id.replace(NUMBER, str(at)) if numbered else entry.id, config.trust_domain)
        dns = [name.replace(NUMBER, str(at)) for name in entry.dns] if numbered else entry.dns
        names = Names.checked(spiffe_id, dns, entry.ips)
        if entry.edge_server and not dns and not entry.ips:
            raise InventoryError("a public certificate without a host name", "give it dns or ips")
        profile = (edge_server_profile if entry.edge_server else workload_profile)(spiffe_id.role, config)
        duration = entry.lifetime or defaults.lifetime
        names.check_wildcards(profile.purposes)
        lifetime = None if duration is None else parse_duration(duration)
        _check_lifetime(lifetime)
    except PkiError as error:
        raise InventoryError(f"entry {number} ({entry.id[:80]}): {error.what}", error.remedy) from error
    return LeafRequest(names, profile, lifetime, entry.accept or defaults.accept)


def _check_lifetime(lifetime: dt.timedelta | None) -> None:
    if lifetime is not None:
        start = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
        leaf_validity(start, lifetime, backdate=dt.timedelta(), issuer_end=start + dt.timedelta(days=1))


def _identity(text: str, trust_domain: str) -> SpiffeId:
    spiffe_id = SpiffeId.parse(text if text.startswith("spiffe://") else f"spiffe://{trust_domain}/{text}")
    if spiffe_id.trust_domain != trust_domain:
        raise InvalidIdentity(f"{spiffe_id} is not of trust domain {trust_domain}")
    return spiffe_id
