"""TLS for clients of the gateway's public listener, outside the cluster.

Clients outside know the host name, so it is checked here (RFC 9525); inside, the SPIFFE ID is checked instead.
"""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

from sluice.core import FileStamp, StoreError, file_stamp


def edge_client_context(ca_file: Path | None) -> ssl.SSLContext:
    """A context that trusts ``ca_file`` alone (the edge authority's certificate), or the system's when None.

    TLS 1.3 only. The edge authority is an intermediate and yet the anchor, hence the partial chain.

    Raises:
        StoreError: ``ca_file`` is missing or holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise StoreError(
            f"cannot use {ca_file} as the gateway's authority: {error}",
            "name the edge authority's certificate with --ca, or start the cluster with `sluice up`",
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class EdgeTrust:
    """Trust for a client that outlives a rotation of the edge authority: reads ``ca_file`` again after changes.

    Raises:
        StoreError: ``ca_file`` is missing or holds no certificate.
    """

    def __init__(self, ca_file: Path | None) -> None:
        self._ca_file = ca_file
        self._stamp = self._look()
        self._context = edge_client_context(ca_file)

    def context(self) -> ssl.SSLContext:
        """The context for the next connection; a missing or damaged file changes nothing."""
        stamp = self._look()
        if stamp not in {None, self._stamp}:
            self._stamp = stamp
            with contextlib.suppress(StoreError):
                self._context = edge_client_context(self._ca_file)
        return self._context

    def _look(self) -> FileStamp | None:
        with contextlib.suppress(StoreError):
            return None if self._ca_file is None else file_stamp(self._ca_file)
        return None
