"""Reading the audit's TOML files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

import msgspec

from sluice.audit.errors import InputError
from sluice.core import StoreError, read_bounded

MAX_TOML_BYTES = 1 << 20
_T = TypeVar("_T")


def read_toml(path: Path, kind: type[_T]) -> _T:
    """Read and check ``path``; raises :class:`InputError` with what is wrong in it."""
    try:
        return msgspec.convert(tomllib.loads(read_bounded(path, MAX_TOML_BYTES).decode()), kind)
    except (StoreError, ValueError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: {error}", "see docs/howto/audit.md") from error
