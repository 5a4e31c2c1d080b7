"""The TLS context for connections to receivers."""

from __future__ import annotations

import ssl
from pathlib import Path

from sluice.core import StoreError
from sluice.pki.tls import edge_client_context


def receiver_context(ca_file: str) -> ssl.SSLContext:
    """A TLS 1.3 context that trusts the CA certificates in ``ca_file``, or the system's, and verifies the host name.

    Raises:
        StoreError: ``ca_file`` cannot be used.
    """
    try:
        return edge_client_context(Path(ca_file) if ca_file else None)
    except StoreError as error:
        raise StoreError(f"{ca_file} holds no CA certificate", "correct ca_file in [notify]") from error
