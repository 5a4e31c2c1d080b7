"""Orders a certificate whenever one is due. Runs in the process beside Envoy; each attempt is a subprocess."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

import msgspec

from sluice.core import Clock, Home, SluiceError, repeat, utc_now
from sluice.gateway.acme.schedule import Due, Lifetime, due
from sluice.gateway.acme.store import AcmeStore, issued_files, settings_digest
from sluice.gateway.acme.worker import ATTEMPT_SECONDS, Job, Result
from sluice.gateway.config import AcmeConfig
from sluice.gateway.errors import AcmeError
from sluice.gateway.proxy import CertificateFiles

_LOG = logging.getLogger(__name__)

POLL_SECONDS = 5.0
"""How often the agent checks whether a certificate is due. A check reads two small files."""
PAUSE_SECONDS = 300.0
"""Pause after a failed attempt of this process. It applies even if the result cannot be stored (full disk)."""
MAX_RESULT_BYTES = 64 << 10

Attempt = Callable[[], Awaitable[str]]
"""Makes one attempt. Returns the error message, or an empty string on success."""


def next_order(home: Home, config: AcmeConfig, names: tuple[str, ...], now: dt.datetime) -> Due:
    """When the next certificate is to be ordered, according to the files on disk."""
    return due(
        AcmeStore(home).state(),
        settings_digest(config, names),
        config.directory,
        lifetime_in_use(home, names, now),
        now,
    )


def lifetime_in_use(home: Home, names: tuple[str, ...], now: dt.datetime) -> Lifetime | None:
    """The lifetime of the certificate in use if it passes all checks for ``names``, else None."""
    files = CertificateFiles(*issued_files(home), names)
    with contextlib.suppress(SluiceError):
        if (found := files.update(now)) is not None:
            leaf = found.leaf
            return Lifetime(leaf.not_valid_before_utc, leaf.not_valid_after_utc, leaf.serial_number)
    return None


class AcmeAgent:
    """Checks regularly whether a certificate is due, and orders it.

    Args:
        home: where the certificate is stored.
        config: the ACME server.
        names: DNS names for the certificate.
        report: called with the error that keeps the gateway from getting its certificate, or with an empty string if
            there is none.
        attempt: makes one attempt; None runs it in a subprocess.
        clock: returns the current time.
        monotonic: measures the pause between attempts.
    """

    def __init__(
        self,
        home: Home,
        config: AcmeConfig,
        names: tuple[str, ...],
        report: Callable[[str], None],
        *,
        attempt: Attempt | None = None,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._config = config
        self._names = names
        self._report = report
        self._attempt = attempt or self._in_subprocess
        self._clock = clock
        self._monotonic = monotonic
        self._not_before = float("-inf")

    async def run(self) -> NoReturn:
        """Run until cancelled. The first check is immediate."""
        with contextlib.suppress(SluiceError, OSError):
            await self.check()
        await repeat(self.check, POLL_SECONDS, "cannot order a certificate")

    async def check(self) -> None:
        """Order a certificate if one is due."""
        now = self._clock()
        if self._monotonic() < self._not_before:
            return
        wanted = await asyncio.to_thread(next_order, self._home, self._config, self._names, now)
        if not wanted.is_due(now):
            state = AcmeStore(self._home).state()
            self._report(state.last_error if state.failures else "")
            return
        _LOG.info("ordering a certificate from %s: %s", self._config.directory, wanted.reason)
        problem = await self._attempt()
        if problem:
            self._not_before = self._monotonic() + PAUSE_SECONDS
            _LOG.warning("cannot get a new certificate, the current one stays in use: %s", problem)
        else:
            _LOG.info("got a new certificate from %s", self._config.directory)
        self._report(problem)

    async def _in_subprocess(self) -> str:
        job = Job(home=str(self._home.root), config=self._config, names=self._names)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "sluice.gateway.acme.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                answer, _ = await process.communicate(msgspec.json.encode(job))
            return msgspec.json.decode(answer[:MAX_RESULT_BYTES], type=Result).problem
        except TimeoutError:
            return f"the attempt at the ACME server timed out after {ATTEMPT_SECONDS} s"
        except msgspec.MsgspecError:
            return f"the ACME worker process exited with status {process.returncode}; see the log"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def require_acme(config: AcmeConfig | None) -> AcmeConfig:
    """The ACME settings. Raises :class:`AcmeError`, which says how to configure them, if there are none."""
    if config is None:
        raise AcmeError("[gateway.acme] is not configured", "set the ACME server there, see docs/howto/acme.md")
    return config
