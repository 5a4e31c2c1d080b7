"""Arguments that verbs of ``sluice pki`` share: identities, lifetimes, places; and their JSON output."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import msgspec
import typer

from cli.errors import UsageError
from pki.errors import InvalidIdentity
from pki.home import Home
from pki.identity import NAMED_ROLES, SpiffeId
from pki.inventory import InventoryError, parse_duration


def spiffe_id_argument(text: str) -> SpiffeId:
    """A whole SPIFFE ID."""
    try:
        return SpiffeId.parse(text)
    except InvalidIdentity as error:
        raise UsageError(error.what, error.remedy) from error


def identity_argument(text: str, trust_domain: str) -> SpiffeId:
    """A whole SPIFFE ID, or its path in ``trust_domain``."""
    return spiffe_id_argument(text if text.startswith("spiffe://") else f"spiffe://{trust_domain}/{text}")


def directory_argument(home: Home, spiffe_id: SpiffeId, out: Path | None) -> Path:
    """Where an identity is written: ``--out``, else its place below the home."""
    if out is not None:
        return out
    if spiffe_id.role not in NAMED_ROLES:
        raise UsageError("an identity of a job has no place below the home", "say where to write it with --out")
    return home.identity(spiffe_id.role, spiffe_id.name)


def lifetime_argument(text: str) -> dt.timedelta:
    """A lifetime such as ``90m``, ``12h`` or ``30d``."""
    try:
        return parse_duration(text)
    except InventoryError as error:
        raise UsageError(error.what, error.remedy) from error


def print_json(document: object) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(msgspec.to_builtins(document)))
