"""The SPIFFE Workload API for one process of a job, on a socket of its own: it serves only its identity and tokens.

The socket, which no other job sees, and the user id that the kernel reports authenticate the caller. The process
chooses the audience of a token, but not the identity in it. Rate limits bound the time that the TaskManager (or the
driver's agent) spends on requests, whatever the process sends.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from grpclib.const import Status

from sluice.core import Clock, StoreError, end_tasks, made_in_thread, utc_now
from sluice.core.grpc import Caller, CallRefused, GrpcServer, Pace
from sluice.pki import SpiffeId
from sluice.pki.agent import PublishedIdentities, WorkloadApi
from sluice.runtime.workload.files import TokenFiles
from sluice.runtime.workload.identity import IdentityWatch
from sluice.runtime.workload.place import TokenFile, WorkloadPlace, listen_for_job
from sluice.runtime.workload.tokens import KEYS_SECONDS, AskKeys, AskToken, ProcessTokens, TokenUnavailable

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""How often the identity and the CRLs are checked for changes."""
PACE = Pace(connections_per_second=20, burst_bytes=256 << 10, bytes_per_second=32 << 10, max_connections=16)


class WorkloadServer:
    """Serves one process of a job.


    Args:
        place: a directory of this process alone, private before the start.
        identity: the directory of its X.509 identity, which the parent of the process renews.
        spiffe_id: its identity.
        ask: asks the JobManager for a token.
        ask_keys: asks the JobManager for the public keys of tokens.
        files: the token files to maintain.
        clock: the present, for validity checks.
    """

    def __init__(
        self,
        place: WorkloadPlace,
        identity: Path,
        spiffe_id: SpiffeId,
        *,
        ask: AskToken,
        ask_keys: AskKeys,
        files: tuple[TokenFile, ...] = (),
        clock: Clock = utc_now,
    ) -> None:
        self.place = place
        self.environment = place.environment(files)
        """Environment variables with which the process finds the socket and the files."""
        self._spiffe_id = spiffe_id
        self._tokens = ProcessTokens(spiffe_id, ask, ask_keys, clock=clock)
        self._files = TokenFiles(place.tokens, self._tokens, files, place.uid)
        self._board = PublishedIdentities(clock)
        self._watch = IdentityWatch(identity, self._board, clock)
        self._server = GrpcServer(
            WorkloadApi(self, self._board, spiffe_id.trust_domain).methods(), self._admits, pace=PACE
        )
        self._keeping: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Write the token files and listen.


        Raises:
            TokenUnavailable: the policy refuses the token of a file, or the JobManager does not answer.
            StoreError: the socket cannot be opened, or there is no identity.
        """
        await asyncio.to_thread(self.place.make)
        await self._files.write_all()
        self._watch.publish(await asyncio.to_thread(self._watch.read))
        listening = await made_in_thread(lambda: listen_for_job(self.place))
        try:
            await self._server.start(listening)
        except BaseException:
            listening.close()
            raise
        self._keeping = [
            asyncio.create_task(self._look(), name=f"identity of {self._spiffe_id}"),
            asyncio.create_task(self._files.keep_fresh(), name=f"token files of {self._spiffe_id}"),
        ]

    async def close(self) -> None:
        """Stop serving; this process gets no more tokens. The directory stays."""
        await end_tasks(*self._keeping)
        await self._server.close()
        await self._tokens.close()

    # --- what the Workload API asks -------------------------------------------------------------------------

    def identities(self, caller: Caller) -> tuple[SpiffeId, ...]:
        """The identity of this process, if ``caller`` has its uid."""
        return (self._spiffe_id,) if self._admits(caller) else ()

    async def issue(self, caller: Caller, audience: Sequence[str], wanted: str) -> list[tuple[SpiffeId, str]]:
        """A token for ``audience``. If the caller names an identity, it must be that of this process."""
        if (wanted and wanted != str(self._spiffe_id)) or not self._admits(caller):
            raise CallRefused(Status.PERMISSION_DENIED, "the caller does not have this identity")
        try:
            token = await self._tokens.token(list(audience))
        except TokenUnavailable as error:
            raise CallRefused(Status.PERMISSION_DENIED, str(error)) from error
        return [(self._spiffe_id, token.text)]

    async def bundle(self) -> bytes:
        """The public keys of tokens, as a SPIFFE bundle."""
        try:
            return (await self._tokens.bundle()).encode()
        except TokenUnavailable as error:
            raise CallRefused(Status.UNAVAILABLE, str(error)) from error

    async def validate(self, token: str, audience: str) -> tuple[SpiffeId, dict[str, object]]:
        """Subject and claims of a token of any workload."""
        try:
            return await self._tokens.validate(token, audience)
        except TokenUnavailable as error:
            raise CallRefused(Status.UNAVAILABLE, str(error)) from error

    def _admits(self, caller: Caller) -> bool:
        return caller.uid == (os.geteuid() if self.place.uid is None else self.place.uid)

    async def _look(self) -> None:
        complaint, told = "", asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if (now := asyncio.get_running_loop().time()) >= told + KEYS_SECONDS:
                told = now
                self._board.touch()  # makes clients that follow the token keys fetch them again
            try:
                self._watch.publish(await asyncio.to_thread(self._watch.read))
                complaint = ""
            except StoreError as error:
                if str(error) != complaint:
                    _LOG.warning("%s: %s", self._spiffe_id, error)
                complaint = str(error)
