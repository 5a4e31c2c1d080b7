"""Settings of audit log exports (tables ``[[gateway.audit_exports]]``)."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from sluice.gateway.config.checks import check_together, check_url, is_tls_url


class AuditExportConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A receiver that gets a copy of the audit log: every signed record, in order, at least once."""

    name: str
    """Name of the export in metrics, log lines and the file with its position: a-z, 0-9 and -."""
    kind: Literal["syslog", "webhook", "otlp"]
    """syslog over TLS (RFC 5425), JSON lines by POST, or OpenTelemetry logs (OTLP over HTTP, JSON)."""
    url: str
    """``tls://siem.example.com:6514`` for syslog; ``https://siem.example.com/ingest`` for the others."""
    ca_file: str = ""
    """CAs (PEM) for the receiver's certificate; empty: the system's. Its host name is checked; TLS must be 1.3."""
    certificate_file: str = ""
    """Client certificate chain (PEM) for the receiver; empty: none. Read again for each connection."""
    key_file: str = ""
    """Private key (PEM, mode 0600) of the client certificate."""
    token_file: str = ""
    """File (mode 0600) with a bearer token for webhook and otlp. Read again for each request."""
    requests: bool = True
    """Whether to also send each request of the proxy's access log. The audit log itself only has their digests."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?", self.name):
            raise ValueError(f"name {self.name[:64]!r} must have 1 to 32 of a-z, 0-9 and -, with no - at an end")
        check_together(self, "certificate_file", "key_file")
        if self.kind == "syslog":
            if self.token_file:
                raise ValueError("syslog has no token: use certificate_file")
            if not is_tls_url(self.url):
                raise ValueError(f"url {self.url[:200]!r} must be as in tls://siem.example.com:6514")
        else:
            check_url("url", self.url)
