"""Renews one identity: loads it, renews it when due, retries after failures, and keeps the last valid one in memory."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from sluice.core import Clock, SluiceError, StoreError, write_public
from sluice.pki.agent.policy import ManagedIdentity
from sluice.pki.agent.published_identities import PublishedIdentities
from sluice.pki.identities import (
    LONGEST_RETRY,
    IdentityMaterial,
    Stamp,
    Urgency,
    is_due,
    is_superseded,
    read_identity,
    retry_at,
    stamp_of,
    urgency,
)
from sluice.pki.issuing import DirectoryIssuer
from sluice.pki.revocation import COMPLETE_LISTS_FILE, RevokedPeers
from sluice.pki.trust import Reporter
from sluice.pki.x509 import Validity, changed_lifetime

_LOG = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""How long a round waits for an issuer that does not answer, before it goes on with reading and warnings."""

_LEVELS = {Urgency.WARNING: logging.WARNING, Urgency.CRITICAL: logging.ERROR, Urgency.EXPIRED: logging.CRITICAL}


class IdentityRenewer:
    """One identity: its directory, and the last valid material in memory.

    Args:
        identity: what to keep.
        issuer: certifies it.
        published: where valid material is published.
        clock: the present.
        draw: a random number in [0, 1).
        patience: seconds that one round waits for the issuer, which continues and is not called twice.
        threads: the threads that call the issuer; None: the loop's own.
        reporter: gets what is served, in each round.
    """

    def __init__(
        self,
        identity: ManagedIdentity,
        issuer: DirectoryIssuer,
        published: PublishedIdentities,
        clock: Clock,
        draw: Callable[[], float],
        *,
        patience: float = PATIENCE_SECONDS,
        threads: Executor | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self.identity = identity
        self._issuer = issuer
        self._published = published
        self._clock = clock
        self._draw = draw
        self._patience = patience
        self._threads = threads
        self._reporter = reporter
        self._taken_at = clock()
        self._renewal: asyncio.Task[None] | None = None
        self._spread = draw()
        self._stamp: Stamp | None = None
        self._complaint = ""
        self._revoked: RevokedPeers | None = None
        self._lists_seen = 0
        self._told = Urgency.FRESH
        self._not_before: dt.datetime | None = None
        self.material: IdentityMaterial | None = None
        """The last valid material; None: there was none yet."""
        self.failures = 0
        """Failed renewals since the last that succeeded."""

    async def step(self) -> None:
        """Read the directory, renew if due, and warn; never raises for external errors."""
        self._take_in()
        now = self._clock()
        # A longer pause was not meant: the clock has been set back since.
        pausing = self._not_before is not None and now < self._not_before <= now + LONGEST_RETRY
        if self._renewal is None and self._is_due(now) and not pausing:
            self._renewal = asyncio.create_task(self._renew())
        if self._renewal is not None:
            await asyncio.wait({self._renewal}, timeout=self._patience)
            if self._renewal.done():
                finished, self._renewal = self._renewal, None
                finished.result()
        if self._reporter is not None and self.material is not None:
            self._reporter.tell(self.material, self._taken_at, {})
        self._warn(self._clock())

    def _is_due(self, now: dt.datetime) -> bool:
        if self.material is None or self._complaint or is_superseded(self.material):
            return True
        return is_due(_validity(self.material), now, self._spread)

    def _take_in(self) -> None:
        """Load the directory if it has changed; another process may have renewed it."""
        try:
            stamp = stamp_of(self.identity.directory)
            if stamp == self._stamp:
                self._take_in_lists()
                return
            material, self._stamp = read_identity(self.identity.directory)
            if material.spiffe_id != self.identity.spiffe_id:
                raise StoreError(f"{self.identity.directory} holds {material.spiffe_id}")  # noqa: TRY301  handled below
            material.check_valid_at(self._clock())
            revoked = self._revoked or self._first_lists(material)
        except StoreError as error:
            # Renew the directory; keep serving the material in memory meanwhile.
            if self._complaint != error.what:
                missing = self.material is None and not self.identity.directory.exists()
                _LOG.log(logging.INFO if missing else logging.WARNING, "%s: %s", self.identity.spiffe_id, error)
            self._complaint = error.what
            return
        self._complaint = ""
        self._not_before = None
        self.failures = 0
        self._spread = self._draw()
        self._told = Urgency.FRESH
        if self.material is None or _generation(material) != _generation(self.material):
            _LOG.info("%s is valid until %s", material.spiffe_id, material.leaf.not_valid_after_utc)
            if self.material is not None and (note := changed_lifetime(self.material.leaf, material.leaf)):
                _LOG.warning("%s: %s", material.spiffe_id, note)
            self.material, self._revoked, self._taken_at = material, revoked, self._clock()
            self._lists_seen = revoked.look()
            self._published.publish(material, revoked.lists)
        self._take_in_lists()

    def _first_lists(self, material: IdentityMaterial) -> RevokedPeers:
        """The CRLs beside the identity; an unusable one is a :class:`StoreError`, which renewal repairs."""
        directory, anchors = self.identity.directory, lambda: (self.material or material).anchors
        revoked = RevokedPeers(directory, anchors, clock=self._clock, pace_seconds=0)
        # Envoy and SPIFFE clients do not apply deltas: from now on CRLs are written here in complete form.
        write_public(directory / COMPLETE_LISTS_FILE, b"")
        if any(each.base is not None for each in revoked.lists):
            raise StoreError(f"{directory} holds a revocation list in parts", "issue the identity again")
        return revoked

    def _take_in_lists(self) -> None:
        """Notify waiting callers when the CRLs have changed."""
        if self.material is None or self._revoked is None:
            return
        if (version := self._revoked.look()) != self._lists_seen:
            self._lists_seen = version
            self._published.publish(self.material, self._revoked.lists)

    async def _renew(self) -> None:
        identity = self.identity
        try:
            issue = partial(
                self._issuer.issue_to,
                identity.directory,
                identity.spiffe_id,
                dns=identity.dns,
                ips=identity.ips,
                lifetime=identity.lifetime,
                accept=identity.accept,
            )
            await asyncio.get_running_loop().run_in_executor(self._threads, issue)
        except (SluiceError, OSError) as error:
            self._failed(str(error))
            return
        self._stamp = None
        self._take_in()
        if reason := self._complaint or _superseded(self.material):
            self._failed(reason)

    def _failed(self, reason: str) -> None:
        now = self._clock()
        self.failures += 1
        self._not_before = retry_at(now, self.failures, self._draw())
        wait = (self._not_before - now).total_seconds()
        _LOG.warning(
            "%s is not renewed (attempt %d, next in %.1f s): %s", self.identity.spiffe_id, self.failures, wait, reason
        )

    def _warn(self, now: dt.datetime) -> None:
        """Warn once per level that the certificate expires soon."""
        if self.material is None:
            return
        level = urgency(_validity(self.material), now)
        if level > self._told:
            end = self.material.leaf.not_valid_after_utc
            _LOG.log(
                _LEVELS[level],
                "%s %s at %s UTC and could not be renewed (%d attempts)",
                self.identity.spiffe_id,
                "expired" if level is Urgency.EXPIRED else "expires",
                f"{end:%Y-%m-%d %H:%M:%S}",
                self.failures,
            )
        self._told = level


async def renew_forever(renewer: IdentityRenewer, poll_seconds: float) -> None:
    """Step until cancelled."""
    while True:
        await renewer.step()
        await asyncio.sleep(poll_seconds)


def _validity(material: IdentityMaterial) -> Validity:
    return Validity(material.leaf.not_valid_before_utc, material.leaf.not_valid_after_utc)


def _generation(material: IdentityMaterial) -> tuple[bytes, bytes, bytes]:
    return material.key_pem, material.chain_pem, material.ca_pem


def _superseded(material: IdentityMaterial | None) -> str:
    """Why the new certificate is due again: then this counts as a failure, so that the next attempt waits."""
    if material is None or not is_superseded(material):
        return ""
    return "the issuer does not yet sign with the new authority"
