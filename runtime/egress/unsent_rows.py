"""Rows that a process could not tell of before it ended, for the next one of its name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sluice.core import EgressRow, StoreError, read_bounded, write_secret

_LOG = logging.getLogger(__name__)

MAX_BYTES = 32 << 20
"""More than a journal that is full."""


def save_unsent_rows(path: Path, rows: Sequence[EgressRow]) -> None:
    """Write them down."""
    try:
        write_secret(path, msgspec.json.encode(rows))
    except (OSError, StoreError) as error:
        _LOG.error("%d rows about connections out of jobs are lost: %s", len(rows), error)


def load_unsent_rows(path: Path) -> tuple[EgressRow, ...]:
    """Those that are written down, which are not any more then."""
    if not path.exists():
        return ()
    try:
        rows = msgspec.json.decode(read_bounded(path, MAX_BYTES), type=tuple[EgressRow, ...])
    except (StoreError, msgspec.MsgspecError) as error:
        _LOG.error("rows about connections out of jobs cannot be read: %s", error)
        rows = ()
    path.unlink(missing_ok=True)
    return rows
