"""Arguments that verbs of ``sluice pki`` share: identities, lifetimes, places; and their JSON output."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from sluice.cli.errors import UsageError
from sluice.cli.token_uris import key_argument
from sluice.core import Home, PkiError
from sluice.pki import NAMED_ROLES, SpiffeId
from sluice.pki.issuing import parse_duration
from sluice.pki.pkcs11 import TokenUri, is_token_uri
from sluice.pki.x509 import ALGORITHMS, MAX_LEAF_LIFETIME, MIN_LEAF_LIFETIME, AuthorityKind, Names

KeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="[KIND=]pkcs11:...",
        help="Make the keys in a token, named by a PKCS#11 URI (RFC 7512) with module-path and pin-source=file:/FILE; "
        "KIND=: only that of root, internal or edge; repeatable.",
    ),
]


@contextlib.contextmanager
def arguments() -> Iterator[None]:
    """Turn errors about arguments into wrong usage (exit code 2), not a negative answer (1)."""
    try:
        yield
    except PkiError as error:
        raise UsageError(error.what, error.remedy) from error


def spiffe_id_argument(text: str) -> SpiffeId:
    """A whole SPIFFE ID."""
    with arguments():
        return SpiffeId.parse(text)


def names_argument(spiffe_id: SpiffeId, dns: Sequence[str] | None, ips: Sequence[str] | None) -> Names:
    """The identity with its host names and addresses."""
    with arguments():
        return Names.checked(spiffe_id, tuple(dns or ()), tuple(ips or ()))


def algorithm_argument(text: str) -> str:
    """The name of a key algorithm."""
    if text not in ALGORITHMS:
        raise UsageError(f"unknown key algorithm {text[:40]!r}", f"use one of {', '.join(ALGORITHMS)}")
    return text


def keys_argument(texts: Sequence[str] | None, kinds: Sequence[AuthorityKind]) -> dict[AuthorityKind, TokenUri]:
    """The token for the key of each authority; an option without a kind applies to ``kinds``."""
    places: dict[AuthorityKind, TokenUri] = {}
    shared: TokenUri | None = None
    for text in texts or ():
        name, equals, uri = text.partition("=")
        if not equals or is_token_uri(text):
            if shared is not None:
                raise UsageError("--key is given twice without KIND=", "say which is whose: --key root=pkcs11:...")
            shared = key_argument(text)
        elif name not in set(AuthorityKind):
            raise UsageError(f"--key for {name[:40]!r}", f"use one of {', '.join(AuthorityKind)}, or pkcs11:...")
        elif (kind := AuthorityKind(name)) in places:
            raise UsageError(f"--key is given twice for {kind}", "leave out one")
        else:
            places[kind] = key_argument(uri)
    return ({} if shared is None else dict.fromkeys(kinds, shared)) | places


def address_argument(text: str) -> tuple[str, int]:
    """``HOST:PORT`` of an online CA."""
    from sluice.pki.ca import parse_address

    with arguments():
        return parse_address(text)


def identity_argument(text: str, trust_domain: str) -> SpiffeId:
    """A whole SPIFFE ID, or its path in ``trust_domain``."""
    return spiffe_id_argument(text if text.startswith("spiffe://") else f"spiffe://{trust_domain}/{text}")


def directory_argument(home: Home, spiffe_id: SpiffeId, out: Path | None) -> Path:
    """The directory of an identity: ``--out``, else its place below the home."""
    if out is not None:
        return out
    if spiffe_id.role not in NAMED_ROLES:
        raise UsageError("an identity of a job has no place below the home", "say where to write it with --out")
    return home.identity(spiffe_id.role, spiffe_id.name)


def lifetime_argument(text: str) -> dt.timedelta:
    """Parse the lifetime of a leaf, such as ``90m``, ``12h`` or ``30d``."""
    with arguments():
        lifetime = parse_duration(text)
    if not MIN_LEAF_LIFETIME <= lifetime <= MAX_LEAF_LIFETIME:
        raise UsageError(f"a lifetime of {text} is not possible", f"use 1m to {MAX_LEAF_LIFETIME.days}d")
    return lifetime


def print_json(document: object) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(msgspec.to_builtins(document)))
