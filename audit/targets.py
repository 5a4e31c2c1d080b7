"""Listeners to examine, from a TOML file. One without a ``channel`` is foreign: our rules do not apply to it.

[[target]]
name = "spark-master"
host = "10.0.0.5"
port = 7077
expected = "mutual"          # mutual, server, http or local
channel = "rpc"              # optional: it is a listener of ours, on this channel of the channel table
server_name = "spark.example"  # optional: by which name or address clients know it
ca_file = "authority.pem"    # optional: who may vouch for it; relative to this file
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from cryptography import x509

from sluice.audit.errors import InputError
from sluice.audit.model import Kind, Listener, a_labels
from sluice.audit.toml import read_toml
from sluice.core import PkiError, is_ip_address
from sluice.pki import Channel
from sluice.pki.identities import read_certificates

MAX_TARGETS = 1000
MAX_PORT = 65535


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One listener; see the module's description."""

    name: str
    host: str
    port: int
    expected: Literal["mutual", "server", "http", "local"]
    channel: Channel | None = None
    server_name: str = ""
    ca_file: str = ""


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    target: tuple[Target, ...]


def read_anchors(path: Path) -> dict[str, tuple[x509.Certificate, ...]]:
    """The trust anchors of each target, by its name; raises :class:`InputError` for a file without certificates."""
    anchors: dict[str, tuple[x509.Certificate, ...]] = {}
    for target in read_toml(path, _Document).target:
        if target.ca_file:
            try:
                anchors[target.name] = tuple(read_certificates(path.parent / target.ca_file))
            except PkiError as error:
                raise InputError(f"{path}: ca_file of {target.name}: {error.what}", "name a PEM file") from error
    return anchors


def read_targets(path: Path) -> tuple[Listener, ...]:
    """Read the listeners; raises :class:`InputError` for an invalid file."""
    targets = read_toml(path, _Document).target
    if not 0 < len(targets) <= MAX_TARGETS:
        raise InputError(f"{path} has {len(targets)} targets", f"name 1 to {MAX_TARGETS} as [[target]]")
    names = [target.name for target in targets]
    for target in targets:
        if not target.name or names.count(target.name) > 1:
            raise InputError(f"{path}: the name {target.name!r} is empty or comes twice", "give each its own")
        if not 0 < target.port <= MAX_PORT:
            raise InputError(f"{path}: {target.name} has port {target.port}", "use 1 to 65535")
        if target.server_name and not is_ip_address(target.server_name):
            try:
                a_labels(target.server_name)
            except ValueError as error:
                raise InputError(
                    f"{path}: server_name of {target.name}: {error}", "name a host or an address"
                ) from error
    return tuple(
        Listener(
            name=target.name,
            kind=Kind(target.expected),
            host=target.host,
            port=target.port,
            channel=target.channel,
            server_name=target.server_name or _name_of(target.host),
            foreign=target.channel is None,
        )
        for target in targets
    )


def _name_of(host: str) -> str:
    """``host`` if it can be a server name."""
    try:
        return "" if is_ip_address(host) else a_labels(host)
    except ValueError:
        return ""
