"""Reports which certificates Envoy has loaded, according to its admin interface. A rotation waits for these reports.

After a certificate was sent, Envoy may not have read it yet, or may have refused it. A report is therefore written only
when the admin interface shows exactly the secrets that Envoy was sent; until then the previous report stays.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import logging
from collections.abc import Mapping
from typing import Any

import psutil
from cryptography.hazmat.primitives import hashes

from sluice.core import StoreError
from sluice.gateway.errors import EnvoyFailed
from sluice.gateway.proxy.envoy_admin import EnvoyAdmin
from sluice.gateway.proxy.secret_feed import Given, SecretFeed, Side
from sluice.gateway.upstreams import CERTIFICATE_SECRET, EDGE_SECRET, EDGE_TRUST_SECRET, TRUST_SECRET
from sluice.pki.authorities import to_pem
from sluice.pki.trust import DIRECTORY, TrustReport, remove_report, write_report
from sluice.pki.x509 import issuer_id, key_id

_LOG = logging.getLogger(__name__)

PROGRAM = "envoy"
SECRETS_QUERY = "config_dump?resource=dynamic_active_secrets"
CERTIFICATES_QUERY = "certs"


def has_loaded(given: Given, secrets: object, certificates: object) -> bool:
    """Whether Envoy has loaded exactly ``given``, according to its responses to the two queries of this module.

    ``secrets`` are the secrets that Envoy accepted; ``certificates`` are those of its TLS contexts, made from them.
    """
    leaf = given.material.leaf
    name = EDGE_SECRET if given.side is Side.EDGE else CERTIFICATE_SECRET
    if _part(secrets, name, "tls_certificate", "certificate_chain") != given.material.chain_pem:
        return False
    if f"{leaf.serial_number:x}" not in _serials(certificates):
        return False
    trust = EDGE_TRUST_SECRET if given.side is Side.EDGE else TRUST_SECRET
    trusted = _part(secrets, trust, "validation_context", "trusted_ca")
    lists = _part(secrets, trust, "validation_context", "crl")
    return trusted == to_pem(*given.anchors) and lists == b"".join(each.pem for each in given.lists)


def report_of(given: Given, pid: int, started: float, loaded_at: dt.datetime) -> TrustReport:
    """The report that the Envoy with this pid has loaded ``given``."""
    material = given.material
    numbers = {each.issuer_key: each.number for each in given.lists}
    return TrustReport(
        pid=pid,
        started=started,
        identity=str(material.spiffe_id),
        program=PROGRAM,
        leaf=material.leaf.fingerprint(hashes.SHA256()).hex(),
        issuer=issuer_id(material.leaf),
        anchors=tuple(key_id(anchor) for anchor in given.anchors),
        crls={
            key_id(anchor): numbers[subject]
            for anchor in given.anchors
            if (subject := anchor.subject.public_bytes()) in numbers
        },
        loaded_at=loaded_at,
    )


class LoadedCertificateReports:
    """The reports of one Envoy, one for each of its identity directories."""

    def __init__(self, envoy: EnvoyAdmin) -> None:
        self._envoy = envoy
        self._started = psutil.Process(envoy.pid).create_time()
        self._awaited: dict[SecretFeed, Given] = {}
        self._written: dict[SecretFeed, TrustReport] = {}
        self._last_error = ""

    def await_loading(self, feed: SecretFeed, given: Given) -> None:
        """Report ``given`` once Envoy has loaded it."""
        self._awaited[feed] = given

    async def look(self, now: dt.datetime) -> None:
        """Write the reports that are due. Failed queries and writes are retried on the next call."""
        try:
            if self._awaited:
                secrets = await self._envoy.ask(SECRETS_QUERY)
                certificates = await self._envoy.ask(CERTIFICATES_QUERY)
                for feed, given in list(self._awaited.items()):
                    if has_loaded(given, secrets, certificates):
                        self._write(feed, report_of(given, self._envoy.pid, self._started, now))
                        del self._awaited[feed]
            for feed, report in self._written.items():
                if not (feed.directory / DIRECTORY / f"{report.pid}.json").exists():
                    self._write(feed, report)
            self._last_error = ""
        except (EnvoyFailed, StoreError, OSError) as error:
            # An externally started Envoy may be down for long: log the same error only once.
            if str(error) != self._last_error:
                self._last_error = str(error)
                _LOG.warning("cannot find out which certificates Envoy uses: %s", error)

    def close(self) -> None:
        """Remove the reports, because Envoy has ended."""
        for feed in self._written:
            remove_report(feed.directory, self._envoy.pid)

    def _write(self, feed: SecretFeed, report: TrustReport) -> None:
        write_report(feed.directory, report)
        self._written[feed] = report


def _part(secrets: object, name: str, kind: str, part: str) -> bytes:
    """One PEM value of a secret in Envoy's response; empty when absent."""
    for entry in _entries(secrets, "configs"):
        if entry.get("name") == name:
            source = _mapping(_mapping(_mapping(entry.get("secret")).get(kind)).get(part))
            if isinstance(text := source.get("inline_string"), str):
                return text.encode()
            try:
                return base64.b64decode(str(source.get("inline_bytes", "")), validate=True)
            except binascii.Error:
                return b""
    return b""


def _serials(certificates: object) -> set[str]:
    return {
        str(each.get("serial_number", "")).lstrip("0")
        for context in _entries(certificates, "certificates")
        for each in _entries(context, "cert_chain")
    }


def _entries(document: object, key: str) -> list[Mapping[str, Any]]:
    found = _mapping(document).get(key)
    return [_mapping(each) for each in found] if isinstance(found, list) else []


def _mapping(document: object) -> Mapping[str, Any]:
    return document if isinstance(document, dict) else {}
