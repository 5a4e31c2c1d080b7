"""Reads from a cluster and retries while it is unavailable, because jobs go on meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sluice.client.errors import AwayError
from sluice.client.jobs import PACE_SECONDS, POLL_SECONDS, WAIT_SECONDS, ChangeReader

_T = TypeVar("_T")

OUTAGE_SECONDS = 120.0
"""How long to wait for an unavailable cluster."""
STOPPED_SECONDS = 10.0
"""How long to wait for a cluster that was stopped: it may be restarting."""


@dataclass
class PatientReader:
    """Repeats a request while the cluster is unavailable, for a shorter time when ``stopped`` says that it was stopped.

    ``say`` gets a line when an outage begins.
    """

    client: ChangeReader
    job_id: str
    say: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    stopped: Callable[[], bool] = lambda: False

    async def get(self, path: str, **query: str | int) -> Any:  # noqa: ANN401  JSON is what it is
        """GET ``path``.

        Raises:
            AwayError: the cluster was away for :data:`OUTAGE_SECONDS`, or stopped for :data:`STOPPED_SECONDS`.
        """
        return await self._repeated(lambda: self.client.get(path, **query))

    async def states(self) -> AsyncIterator[dict[str, Any]]:
        """The job now, and then after each change or :data:`WAIT_SECONDS` without one; endless.

        Raises:
            AwayError: as :meth:`get`.
        """
        job: dict[str, Any] = {}
        version = ""

        def ask() -> Awaitable[tuple[Any, str]]:
            return self.client.newer(f"/v1/jobs/{self.job_id}", version, WAIT_SECONDS)

        while True:
            found, version = await self._repeated(ask)
            job = job if found is None else found
            yield job
            await self.pause(PACE_SECONDS if version else POLL_SECONDS)

    async def _repeated(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        since: float | None = None
        while True:
            try:
                return await ask()
            except AwayError as error:
                now = self.clock()
                if since is None:
                    since = now
                    self.say(f"{error.what}; still waiting, at most {OUTAGE_SECONDS:.0f} s")
                stopped = self.stopped()
                if now - since >= (STOPPED_SECONDS if stopped else OUTAGE_SECONDS):
                    raise self._given_up(now - since, error, stopped=stopped) from error
            await self.pause(POLL_SECONDS)

    def _given_up(self, seconds: float, error: AwayError, *, stopped: bool) -> AwayError:
        if stopped:
            return AwayError(
                f"the cluster was stopped before job {self.job_id} ended",
                f"start it with `sluice up`; `sluice jobs show {self.job_id}` then tells what became of the job",
            )
        return AwayError(
            f"no longer watching job {self.job_id} after {seconds:.0f} s without an answer: {error.what}",
            f"the job may go on; ask later: sluice jobs show {self.job_id}",
        )
