"""Token files: written where the process can read them, and replaced at half of the token's lifetime."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from sluice.runtime.sandbox import write_for
from sluice.runtime.workload.place import TokenFile
from sluice.runtime.workload.tokens import ProcessTokens, Token, TokenUnavailable

_LOG = logging.getLogger(__name__)

RETRY_SECONDS = 15.0
"""Pause before a token is requested again after a failure."""
SHORTEST_PAUSE_SECONDS = 1.0


class TokenFiles:
    """The token files of one process.

    Args:
        directory: the directory of the files, which the process can read but not write.
        tokens: issues the tokens.
        files: the files to maintain.
        uid: the owner of the files; None: this user.
    """

    def __init__(self, directory: Path, tokens: ProcessTokens, files: tuple[TokenFile, ...], uid: int | None) -> None:
        self._directory = directory
        self._tokens = tokens
        self._files = files
        self._uid = uid

    async def write_all(self) -> None:
        """Write every file once; raises :class:`TokenUnavailable` with the audience that failed."""
        for file in self._files:
            try:
                await self._write(file)
            except TokenUnavailable as error:
                raise TokenUnavailable(f"no token for {file.audience!r}: {error.what}", error.remedy) from error

    async def keep_fresh(self) -> None:
        """Renew all files until cancelled."""
        async with asyncio.TaskGroup() as group:
            for file in self._files:
                group.create_task(self._keep(file))

    async def _keep(self, file: TokenFile) -> None:
        complaint = ""
        while True:
            try:
                pause = (await self._write(file)).lifetime / 2
                complaint = ""
            except (TokenUnavailable, OSError) as error:
                if str(error) != complaint:
                    _LOG.warning("cannot renew the token file %s: %s", file.name, error)
                complaint, pause = str(error), RETRY_SECONDS
            await asyncio.sleep(max(SHORTEST_PAUSE_SECONDS, pause))

    async def _write(self, file: TokenFile) -> Token:
        token = await self._tokens.token([file.audience])
        await asyncio.to_thread(write_for, self._uid, self._directory / file.name, token.text.encode())
        return token
