"""Keys and certificates on their way to Envoy: from identity directories to the secrets that are served."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from sluice.core import SluiceError, repeat
from sluice.core.xds import SECRET, Message, Resources, certificate_secret
from sluice.gateway.proxy.certificate_files import CertificateFiles, FileCertificate
from sluice.gateway.proxy.envoy_status import UseReports
from sluice.gateway.proxy.secret_feed import Given, SecretFeed, Side
from sluice.gateway.upstreams import EDGE_FILE_SECRET
from sluice.gateway.xds import XdsService

_LOG = logging.getLogger(__name__)

POLL_SECONDS = 0.5
CERTIFICATE_FILE = "certificate of gateway.certificate_file"


class MoreResources(Protocol):
    """What Envoy is given besides, from the same process."""

    def update(self, now: dt.datetime) -> Mapping[str, Mapping[str, Message]] | None:
        """All of them by kind and name when they are others than before, else None."""


class Secrets:
    """The last secrets of each feed, published together; ``files`` (already read) are those of another authority.

    As long as the files hold nothing that can be used, Envoy shows the edge authority's certificate in their place.
    ``more`` are published with them.
    """

    def __init__(
        self,
        service: XdsService,
        first: Mapping[SecretFeed, Given],
        files: CertificateFiles | None = None,
        more: MoreResources | None = None,
    ) -> None:
        self._service = service
        self._given = dict(first)
        self._files = files
        self._more = more
        self._besides: Mapping[str, Mapping[str, Message]] = {}
        if more is not None:
            self._besides = more.update(dt.datetime.now(dt.UTC)) or {}
        self._publish()

    async def feed_forever(self, reports: UseReports) -> None:
        """Look for new identities, and for what Envoy has made of those it was given, until cancelled."""
        for feed, given in self._given.items():
            reports.await_loading(feed, given)
        await repeat(partial(self._look, reports), POLL_SECONDS, "Envoy is not given what is new")

    async def _look(self, reports: UseReports) -> None:
        for feed in tuple(self._given):
            self.look(feed, reports, dt.datetime.now(dt.UTC))
        if self._files is not None:
            self.look_at_files(self._files, dt.datetime.now(dt.UTC))
        if self._more is not None and (besides := self._more.update(dt.datetime.now(dt.UTC))) is not None:
            self._besides = besides
            self._publish()
        await reports.look(dt.datetime.now(dt.UTC))

    def look(self, feed: SecretFeed, reports: UseReports, now: dt.datetime) -> None:
        """Publish a new identity. One that fails the checks is reported, and the previous one stays."""
        what = f"{feed.side} identity"
        try:
            given = feed.update(now)
        except SluiceError as error:
            _LOG.warning("the new %s is invalid, the previous one stays: %s", what, error)
            self._service.status.refused(what, str(error))
            return
        if given is None:
            return
        self._given[feed] = given
        self._publish()
        self._service.status.fine(what)
        reports.await_loading(feed, given)
        _LOG.info(
            "Envoy got its %s, valid until %s, %d trust anchors, revocation lists %s",
            what,
            given.material.leaf.not_valid_after_utc,
            len(given.anchors),
            ", ".join(str(each.number) for each in given.lists) or "none",
        )

    def look_at_files(self, files: CertificateFiles, now: dt.datetime) -> None:
        """The same for the certificate of another authority."""
        try:
            new = files.update(now)
        except SluiceError as error:
            _LOG.warning("the new %s is not used, the previous one stays: %s", CERTIFICATE_FILE, error)
            self._service.status.refused(CERTIFICATE_FILE, str(error))
            new = None
        if new is not None:
            self._publish()
            self._service.status.fine(CERTIFICATE_FILE)
            _LOG.info("Envoy got the %s, valid until %s", CERTIFICATE_FILE, new.leaf.not_valid_after_utc)
        if warning := files.expiry_warning(now):
            _LOG.warning("%s", warning)

    def _publish(self) -> None:
        given: list[Given | FileCertificate] = list(self._given.values())
        secrets = {name: secret for each in given for name, secret in each.secrets.items()}
        if self._files is not None:
            secrets |= self._files.used.secrets if self._files.used is not None else self._in_place_of_files()
        kinds = {SECRET: secrets, **self._besides}
        kinds[SECRET] = {**secrets, **self._besides.get(SECRET, {})}
        self._service.board.publish({kind: Resources.of(messages) for kind, messages in kinds.items()})

    def _in_place_of_files(self) -> dict[str, Message]:
        edge = next(each.material for each in self._given.values() if each.side is Side.EDGE)
        return {EDGE_FILE_SECRET: certificate_secret(EDGE_FILE_SECRET, edge.chain_pem, edge.key_pem)}
