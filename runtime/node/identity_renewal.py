"""Decides when the identity of a running process has to be renewed.

An identity is due after half of its certificate's remaining lifetime, with jitter. It is due at once when its
directory shows that another authority signs now.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from sluice.core import StoreError, read_bounded
from sluice.pki.identities import Stamp, is_superseded, read_identity, stamp_of

_LOG = logging.getLogger(__name__)

RENEWAL_JITTER = 0.1
"""Renewal is earlier than half of the remaining lifetime by up to this fraction of it, to spread the load."""

SHORTEST_RENEWAL_SECONDS = 1.0
LOOK_SECONDS = 2.0
"""The interval at which an identity is checked."""
RENEWAL_RETRY_SECONDS = 30.0
"""The delay before a failed renewal is tried again."""


def seconds_until_renewal(identity: Path, *, now: datetime | None = None) -> float:
    """Seconds until the certificate in directory ``identity`` is due for renewal; raises :class:`StoreError`."""
    try:
        leaf = x509.load_pem_x509_certificate(read_bounded(identity / "chain.pem"))
    except ValueError as error:
        raise StoreError(f"{identity / 'chain.pem'} is not a certificate") from error
    remaining = (leaf.not_valid_after_utc - (now or datetime.now(UTC))).total_seconds()
    share = 0.5 - random.uniform(0, RENEWAL_JITTER)  # noqa: S311  # jitter, not cryptography
    return max(SHORTEST_RENEWAL_SECONDS, remaining * share)


class RenewalWatch:
    """Watches one generation of the identity in directory ``identity``; create a new one after each renewal.

    Raises:
        StoreError: there is no certificate.
    """

    def __init__(self, identity: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._identity = identity
        self._monotonic = monotonic
        self._deadline = monotonic() + seconds_until_renewal(identity)
        self._seen: Stamp | None = None
        self._superseded = False

    def is_due(self) -> bool:
        """Whether the identity must be renewed now. Inconsistent files do not make it due: they are being replaced."""
        try:
            stamp = stamp_of(self._identity)
            if stamp != self._seen:
                material, self._seen = read_identity(self._identity)
                self._superseded = is_superseded(material)
        except StoreError:
            self._superseded = False
        return self._superseded or self._monotonic() >= self._deadline


async def keep_renewed(identity: Path, renew: Callable[[], Awaitable[None]], owner: str) -> None:
    """Renew the identity in directory ``identity`` whenever it is due, until cancelled.

    Args:
        identity: the identity directory of a running process.
        renew: replaces the identity by a new one.
        owner: the owner of the identity, for the log.
    """
    while True:
        try:
            watch = await asyncio.to_thread(RenewalWatch, identity)
        except StoreError as error:  # it is being replaced, or the disk fails: renew it anyway
            _LOG.error("cannot read the identity of %s: %s", owner, error)
            await asyncio.sleep(RENEWAL_RETRY_SECONDS)
        else:
            due = False
            while not due:
                await asyncio.sleep(LOOK_SECONDS)
                due = await asyncio.to_thread(watch.is_due)
        renewed = False
        while not renewed:
            try:
                await renew()
                renewed = True
            except Exception as error:  # noqa: BLE001  # whatever the error, the process keeps its present identity
                _LOG.error("cannot renew the identity of %s: %s", owner, error)
                await asyncio.sleep(RENEWAL_RETRY_SECONDS)
