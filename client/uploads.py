"""Uploads a large file in pieces: an interrupted upload resumes at the offset that the cluster reports."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO

from sluice.client.errors import AwayError, RefusedError

LARGE_BYTES = 8 << 20
"""Files from this size on are uploaded in pieces, before their job."""
PIECE_BYTES = 4 << 20
PATIENCE = 10
"""Failed tries in a row before giving up."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0


async def upload(
    file: Path,
    *,
    announce: Callable[[dict[str, object]], Awaitable[Any]],
    stands: Callable[[str], Awaitable[Any]],
    send: Callable[[str, int, bytes], Awaitable[Any]],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> str:
    """Upload ``file``; its id.

    Args:
        file: its digest detects changes during the upload.
        announce: begins an upload with a name, a size and a digest.
        stands: returns the state of an upload.
        send: sends a piece that begins at an offset; returns the new state.
        pause: waits.

    Raises:
        AwayError: :data:`PATIENCE` tries in a row made no progress.
        RefusedError: the cluster refuses the upload.
    """
    order = await asyncio.to_thread(_order, file)
    with file.open("rb") as opened:
        state = await announce(order)
        failures = 0
        while not state["complete"]:
            try:
                piece = await asyncio.to_thread(_read, opened, state["offset"])
                state, failures = await send(state["id"], state["offset"], piece), 0
            except (AwayError, RefusedError) as error:
                before, failures = state["offset"], failures + 1
                if failures >= PATIENCE:
                    raise
                if isinstance(error, AwayError):
                    await pause(min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS))
                try:
                    state = await stands(state["id"])
                except AwayError:
                    continue
                except RefusedError:
                    raise error from None  # its message says why the upload is gone
                if isinstance(error, RefusedError) and state["offset"] == before and not state["complete"]:
                    raise  # the error is not about the offset
    return str(state["id"])


def _order(file: Path) -> dict[str, object]:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return {"name": file.name, "size": opened.tell(), "sha256": digest}


def _read(opened: BinaryIO, offset: int) -> bytes:
    opened.seek(offset)
    return opened.read(PIECE_BYTES)
