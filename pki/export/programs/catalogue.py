"""The supported programs, and writing their configurations."""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from sluice.core import (
    SECRET_MODE,
    CertificateRejected,
    InvalidIdentity,
    StoreError,
    locked,
    make_private_directory,
    read_bounded,
    read_secret,
    remove_leftovers,
    replace_set,
)
from sluice.pki.export.programs import envoy, flink, kafka, nginx, spark, zookeeper
from sluice.pki.export.programs.sources import PASSWORD_FILE, Handover
from sluice.pki.identities import MAX_PASSWORD_BYTES, IdentityMaterial, read_identity
from sluice.pki.revocation import CRL_FILE, MAX_CRL_BYTES
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import Purpose, pkcs12 as keystore

MAX_PEERS = 256

_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@=-]+")
_PASSWORD = re.compile(rb"[A-Za-z0-9_-]{16,256}")
_BELOW = re.compile(r"(spiffe://[a-z0-9._-]+)((?:/[A-Za-z0-9._-]+)+)/\*")

BOTH = (Purpose.CLIENT, Purpose.SERVER)


class Program(enum.StrEnum):
    """A program that a configuration is written for."""

    SPARK = "spark"
    FLINK = "flink"
    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    ENVOY = "envoy"
    NGINX = "nginx"


@dataclass(frozen=True, slots=True)
class Entry:
    """The properties of a program.

    Attributes:
        purpose: what the configuration is for.
        tested_with: version that the configuration was tested with.
        render: makes the files, by name.
        needs: the purposes that the certificate must have.
        tells_peers_apart: whether it can admit some identities of an authority and refuse others.
    """

    purpose: str
    tested_with: str
    render: Callable[[Handover], dict[str, bytes]]
    needs: tuple[Purpose, ...] = BOTH
    tells_peers_apart: bool = False


CATALOGUE = {
    Program.SPARK: Entry("spark-defaults.conf: RPC, block transfer, web pages", spark.TESTED_WITH, spark.render),
    Program.FLINK: Entry("config.yaml: between its processes, REST endpoint", flink.TESTED_WITH, flink.render),
    Program.ZOOKEEPER: Entry("zoo.cfg and client.properties: clients, quorum", zookeeper.TESTED_WITH, zookeeper.render),
    Program.KAFKA: Entry("properties of brokers and clients, in Java and librdkafka", kafka.TESTED_WITH, kafka.render),
    Program.ENVOY: Entry(
        "transport sockets of a listener and a cluster, and their SDS files",
        envoy.TESTED_WITH,
        envoy.render,
        tells_peers_apart=True,
    ),
    Program.NGINX: Entry(
        "files to include in http and server blocks",
        nginx.TESTED_WITH,
        nginx.render,
        needs=(Purpose.SERVER,),
        tells_peers_apart=True,
    ),
}


def export_for(
    program: Program, source: Path, output: Path, *, now: dt.datetime, peers: Sequence[str] = ()
) -> list[Path]:
    """Write what ``program`` needs to use the identity directory ``source`` into the directory ``output``.

    All files have mode 0600. A second export replaces what has changed and keeps the stores' password, so that a
    program that reads its stores again can open them.

    Args:
        program: for whom.
        source: an identity directory; its ``crl.pem`` is included if the program can use it.
        output: created (0700) when missing; must be the caller's own and not writable by others.
        now: the certificate must be valid then.
        peers: SPIFFE IDs, or ``spiffe://…/*``, that are accepted as peers; none: all of the trust domain.

    Returns: the files, in the order in which they are replaced.

    Raises:
        StoreError: something cannot be read or written; nothing was changed.
        CertificateRejected: the program cannot use this identity or peer.
    """
    entry = CATALOGUE[program]
    place = output.absolute()
    if not _PLAIN_PATH.fullmatch(str(place)):
        raise StoreError(
            f"the path {str(place)[:200]!r} would need quoting in a configuration",
            "use letters, digits and ./_+@=- for the output directory",
        )
    if place.resolve() == source.resolve():
        raise StoreError(f"{place} is the identity itself", "choose another directory for the output")
    identity, _ = read_identity(source)
    identity.check_valid_at(now)
    _check_purposes(program, entry, identity)
    _check_peers(program, entry, identity, peers)
    crl = source / CRL_FILE
    crl_pem = read_bounded(crl, MAX_CRL_BYTES) if crl.exists() else b""
    _prepare(place)
    with locked(place):
        files = entry.render(Handover(identity, place, _password(place), crl_pem, tuple(peers)))
        for name in files:
            remove_leftovers(place, name)
        changed = {name: data for name, data in files.items() if not _is_there(place / name, data)}
        replace_set(place, {name: (data, SECRET_MODE) for name, data in changed.items()})
    return [place / name for name in files]


def _is_there(path: Path, data: bytes) -> bool:
    try:
        return read_secret(path, len(data)) == data
    except StoreError:
        return False


def _check_purposes(program: Program, entry: Entry, identity: IdentityMaterial) -> None:
    usage = identity.leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    for purpose in entry.needs:
        if purpose.oid not in usage:
            raise CertificateRejected(
                f"the certificate of {identity.spiffe_id} is not for a {purpose}, and {program} is one",
                "take the identity of a process",
            )


def _check_peers(program: Program, entry: Entry, identity: IdentityMaterial, peers: Sequence[str]) -> None:
    if peers and not entry.tells_peers_apart:
        raise CertificateRejected(
            f"{program} cannot tell identities of one authority apart", "leave --peer out, and see the file's comments"
        )
    if len(peers) > MAX_PEERS:
        raise CertificateRejected(f"more than {MAX_PEERS} peers")
    own = identity.spiffe_id.trust_domain
    for peer in peers:
        below = _BELOW.fullmatch(peer)
        domain = f"spiffe://{SpiffeId.parse(peer).trust_domain}" if below is None else below[1]
        if domain != f"spiffe://{own}":
            raise InvalidIdentity(f"{peer} is not of the trust domain {own}", "name identities of the same domain")


def _prepare(place: Path) -> None:
    try:
        info = place.stat()
    except FileNotFoundError:
        make_private_directory(place)
        return
    except OSError as error:
        raise StoreError(f"cannot use {place}: {error.strerror or error}", "choose another directory") from error
    # Not made private: an existing directory is the program's own, and others may have to read its other files.
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise StoreError(
            f"{place} is not a directory of yours that only you can write to", "use another one, or make it so"
        )


def _password(place: Path) -> str:
    with contextlib.suppress(StoreError):
        password = read_secret(place / PASSWORD_FILE, MAX_PASSWORD_BYTES)
        if _PASSWORD.fullmatch(password):
            return password.decode()
    return keystore.random_password().decode()
