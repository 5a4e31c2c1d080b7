"""Whom this side trusts at the other end of a connection to a receiver."""

from __future__ import annotations

import ssl
from pathlib import Path

from sluice.core import StoreError
from sluice.pki.tls import edge_client_context


def receiver_context(ca_file: str) -> ssl.SSLContext:
    """TLS 1.3 with a receiver of the authorities in ``ca_file``, or of the system's; the host name is checked.

    Raises:
        StoreError: the file cannot be used.
    """
    try:
        return edge_client_context(Path(ca_file) if ca_file else None)
    except StoreError as error:
        raise StoreError(f"{ca_file} holds no certificate of an authority", "correct ca_file in [notify]") from error
