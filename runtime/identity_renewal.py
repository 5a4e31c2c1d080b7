"""When the identity of something that runs has to be renewed: at half of what is left of it, with jitter."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from pki.errors import StoreError
from pki.files import read_bounded

RENEWAL_JITTER = 0.1
"""Renewal comes earlier than half of the remaining life by up to this fraction of it, so that many do not coincide."""

SHORTEST_RENEWAL_SECONDS = 1.0


def seconds_until_renewal(identity: Path, *, now: datetime | None = None) -> float:
    """How long the certificate in directory ``identity`` may stay in use; raises :class:`StoreError`."""
    try:
        leaf = x509.load_pem_x509_certificate(read_bounded(identity / "chain.pem"))
    except ValueError as error:
        raise StoreError(f"{identity / 'chain.pem'} is not a certificate") from error
    remaining = (leaf.not_valid_after_utc - (now or datetime.now(UTC))).total_seconds()
    share = 0.5 - random.uniform(0, RENEWAL_JITTER)  # noqa: S311  # spreads load, protects nothing
    return max(SHORTEST_RENEWAL_SECONDS, remaining * share)
