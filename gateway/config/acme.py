"""Settings of the ACME client (table ``[gateway.acme]``)."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from sluice.gateway.config.checks import check_absolute, check_together, check_url

_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,253}")


class AcmeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An ACME server (RFC 8555) that issues the certificate for server_names, such as a public CA. Only with Envoy."""

    directory: str
    """URL of the server's directory: ``https://acme-v02.api.letsencrypt.org/directory``."""
    terms_of_service_agreed: bool = False
    """Whether you agree to the server's terms of service. Must be true, else the server is not used."""
    email: str = ""
    """Contact address of the account, to which some servers send mail; empty: none."""
    challenge: Literal["tls-alpn-01", "http-01"] = "tls-alpn-01"
    """How the server validates the names: in a TLS handshake on port 443 (RFC 8737), or by a plain HTTP request on
    port 80. For the latter, Envoy listens on that port and answers nothing else there."""
    http_port: int = 80
    """Port of the listener for http-01. The ACME server must reach it as port 80."""
    ca_file: str = ""
    """CAs (PEM) for the ACME server's own HTTPS certificate; empty: the system's CAs."""
    eab_key_id: str = ""
    """Key identifier for external account binding, from the server's operator; empty: none."""
    eab_key_file: str = ""
    """File (mode 0600) with the HMAC key for external account binding, in base64url."""
    key_type: Literal["ecdsa-p256", "ecdsa-p384", "rsa-3072", "rsa-4096"] = "ecdsa-p256"
    """Key type of the certificate. Each renewal generates a new key."""

    def __post_init__(self) -> None:
        check_url("directory", self.directory)
        if not self.terms_of_service_agreed:
            raise ValueError(
                "terms_of_service_agreed must be true: read the terms of service of the ACME server in directory"
            )
        check_together(self, "eab_key_id", "eab_key_file")
        check_absolute(self, "ca_file", "eab_key_file")
        if self.email and not _EMAIL.fullmatch(self.email):
            raise ValueError(f"email {self.email[:200]!r} must be one address, as in ops@example.com")
        if not 0 < self.http_port < 65536:
            raise ValueError("http_port must be 1 to 65535")
