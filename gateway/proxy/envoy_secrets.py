"""Publishes keys and certificates of identity directories to Envoy as secrets (SDS)."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from sluice.core import SluiceError, repeat
from sluice.core.xds import SECRET, Message, Resources, certificate_secret
from sluice.gateway.proxy.certificate_files import CertificateFiles, FileCertificate
from sluice.gateway.proxy.envoy_status import LoadedCertificateReports
from sluice.gateway.proxy.secret_feed import Given, SecretFeed, Side
from sluice.gateway.upstreams import EDGE_FILE_SECRET
from sluice.gateway.xds import XdsService

_LOG = logging.getLogger(__name__)

POLL_SECONDS = 0.5
CERTIFICATE_FILE = "certificate of gateway.certificate_file"


class MoreResources(Protocol):
    """Other resources that the same process publishes to Envoy."""

    def update(self, now: dt.datetime) -> Mapping[str, Mapping[str, Message]] | None:
        """All resources by kind and name when they changed, otherwise None."""


class Secrets:
    """Publishes the latest secrets of all feeds together.

    ``files`` (already read) hold the certificate of another authority; while they are unusable, Envoy presents the edge
    authority's certificate instead. The resources of ``more`` are published with the secrets.
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
        self._others: Mapping[str, Mapping[str, Message]] = {}
        if more is not None:
            self._others = more.update(dt.datetime.now(dt.UTC)) or {}
        self._publish()

    async def feed_forever(self, reports: LoadedCertificateReports) -> None:
        """Publish new identities, and report those that Envoy has loaded, until cancelled."""
        for feed, given in self._given.items():
            reports.await_loading(feed, given)
        await repeat(partial(self._look, reports), POLL_SECONDS, "cannot publish new secrets to Envoy")

    async def _look(self, reports: LoadedCertificateReports) -> None:
        for feed in tuple(self._given):
            self.look(feed, reports, dt.datetime.now(dt.UTC))
        if self._files is not None:
            self.look_at_files(self._files, dt.datetime.now(dt.UTC))
        if self._more is not None and (others := self._more.update(dt.datetime.now(dt.UTC))) is not None:
            self._others = others
            self._publish()
        await reports.look(dt.datetime.now(dt.UTC))

    def look(self, feed: SecretFeed, reports: LoadedCertificateReports, now: dt.datetime) -> None:
        """Publish a new identity. An invalid one is reported, and the previous one stays."""
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
        self._service.status.accepted_input(what)
        reports.await_loading(feed, given)
        _LOG.info(
            "Envoy got its %s, valid until %s, %d trust anchors, CRL numbers %s",
            what,
            given.material.leaf.not_valid_after_utc,
            len(given.anchors),
            ", ".join(str(each.number) for each in given.lists) or "none",
        )

    def look_at_files(self, files: CertificateFiles, now: dt.datetime) -> None:
        """Publish a new certificate of another authority. An invalid one is reported, and the previous one stays."""
        try:
            new = files.update(now)
        except SluiceError as error:
            _LOG.warning("the new %s is not used, the previous one stays: %s", CERTIFICATE_FILE, error)
            self._service.status.refused(CERTIFICATE_FILE, str(error))
            new = None
        if new is not None:
            self._publish()
            self._service.status.accepted_input(CERTIFICATE_FILE)
            _LOG.info("Envoy got the %s, valid until %s", CERTIFICATE_FILE, new.leaf.not_valid_after_utc)
        if warning := files.expiry_warning(now):
            _LOG.warning("%s", warning)

    def _publish(self) -> None:
        given: list[Given | FileCertificate] = list(self._given.values())
        secrets = {name: secret for each in given for name, secret in each.secrets.items()}
        if self._files is not None:
            secrets |= self._files.used.secrets if self._files.used is not None else self._in_place_of_files()
        kinds = {SECRET: secrets, **self._others}
        kinds[SECRET] = {**secrets, **self._others.get(SECRET, {})}
        self._service.board.publish({kind: Resources.of(messages) for kind, messages in kinds.items()})

    def _in_place_of_files(self) -> dict[str, Message]:
        edge = next(each.material for each in self._given.values() if each.side is Side.EDGE)
        return {EDGE_FILE_SECRET: certificate_secret(EDGE_FILE_SECRET, edge.chain_pem, edge.key_pem)}
