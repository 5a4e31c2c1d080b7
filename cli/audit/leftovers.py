"""Examines from outside what the insider audit's job left: through the gateway, and in the home."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from sluice.audit.insider import KEPT, Canaries, Place, Seen
from sluice.client import TERMINAL, ClientError, GatewayClient, JobLog
from sluice.core import Home, paths_matching

READ_SECONDS = 20.0
"""How long the gateway may take for one log or document of the job."""
REMOVAL_SECONDS = 20.0
"""How long the cluster may take to remove the files of an ended job."""
MAX_LOGS = 16
MAX_LOG_CHARACTERS = 4 << 20
MAX_WALKED = 20_000


async def leftovers_of(
    client: GatewayClient, job_id: str, homes: Sequence[Home], nonce: str, put_out: Canaries
) -> Seen:
    """Read all logs and documents of the job, and search for its leftovers."""
    names, leaked, hung = await _read_all(client, job_id, put_out.content)
    left = await _until_empty(lambda: [path for home in homes for path in _left(home, job_id)]) if homes else None
    running = await _until_empty(lambda: _running(nonce)) if homes else None
    return Seen(
        read=len(names),
        leaked=leaked,
        hung=hung,
        canary_gone=not all(file.exists() and (file.parent / KEPT).exists() for file in put_out.files),
        left=None if left is None else tuple(left),
        running=None if running is None else frozenset(Place(each) for each in running),
    )


async def losses_of(client: GatewayClient, victim: str) -> tuple[str, ...] | None:
    """The losses of the other job, which requested no more; None when it has ended, or is not visible."""
    try:
        job = await client.get(f"/v1/jobs/{victim}")
    except ClientError:
        return None
    if job["state"] in TERMINAL:
        return None
    lost = [f"executor {each['id']} is {each['state']}" for each in job["executors"] if each["state"] != "RUNNING"]
    return (*([] if job["attempt"] == 1 else [f"its attempt is {job['attempt']}"]), *lost)


async def _read_all(
    client: GatewayClient, job_id: str, content: str
) -> tuple[list[str], tuple[str, ...], tuple[str, ...]]:
    """The names of what was read; of those with the canary's content; and of those without an answer in time."""
    names = ["the job", "its connections", "its logs"]
    texts: dict[str, str | None] = {}
    for name, below in zip(names, ("", "/connections", "/logs"), strict=True):
        texts[name] = await _in_time(_document(client, f"/v1/jobs/{job_id}{below}"))
    with contextlib.suppress(ValueError, TypeError, KeyError):
        for name in json.loads(texts["its logs"] or "")["logs"][:MAX_LOGS]:
            names.append(str(name))
            texts[str(name)] = await _in_time(_log(client, job_id, str(name)))
    leaked = tuple(name for name, text in texts.items() if text is not None and content in text)
    return names, leaked, tuple(name for name, text in texts.items() if text is None)


async def _in_time(reading: Coroutine[Any, Any, str]) -> str | None:
    """The content; empty when it was refused, None without an answer in time."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            return await reading
    except TimeoutError:
        return None
    except ClientError as error:
        return f"refused: {error.what}"


async def _document(client: GatewayClient, path: str) -> str:
    return json.dumps(await client.get(path))


async def _log(client: GatewayClient, job_id: str, name: str) -> str:
    pieces: list[str] = []
    async for piece in JobLog(client, job_id, name).pieces():
        pieces.append(piece)
        if sum(map(len, pieces)) > MAX_LOG_CHARACTERS:
            break
    return "".join(pieces)


async def _until_empty(probe: Callable[[], list[str]]) -> list[str]:
    deadline = time.monotonic() + REMOVAL_SECONDS
    while True:
        found = probe()
        if not found or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.5)


def _left(home: Home, job_id: str) -> list[str]:
    """Files ``insider-…`` of the job's attempts below the directories of the job."""
    return [str(path) for root in _of_job(home, job_id) for path in _walk(root) if path.name.startswith("insider-")][:8]


def _of_job(home: Home, job_id: str) -> Iterator[Path]:
    for pattern in (f"jobs/{job_id}", f"work/*/jobs/{job_id}"):
        yield from paths_matching(home.root, pattern)


def _walk(root: Path) -> Iterator[Path]:
    """All paths below ``root`` down to the attempts' files, without following links."""
    walked = 0
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            walked += 1
            yield Path(folder) / name
        folders[:] = [name for name in folders if not name.startswith("insider-")]
        if walked > MAX_WALKED:
            return


def _running(nonce: str) -> list[str]:
    """The places whose leftover process still runs."""
    start = f"sluice-insider-left-{nonce}-"
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found += [each.removeprefix(start) for each in process.cmdline() if each.startswith(start)]
    return [each for each in found if each in set(Place)]
