"""Settings of the online authority (section ``[ca]`` of ``sluice.toml``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.pki.acme import AcmeConfig
from sluice.pki.attestation import PodAttestationConfig
from sluice.pki.ledger import DEFAULT_OVERLAP


class CaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Port 0 means: any free port (published under ``run/`` for the other processes)."""

    host: str = "127.0.0.1"
    port: int = 0
    """Renewal and job identities, over mutual TLS."""
    enrolment_port: int = 0
    """Enrolment of processes without a certificate."""
    renewal_overlap_minutes: Annotated[float, msgspec.Meta(ge=1, le=60)] = DEFAULT_OVERLAP.total_seconds() / 60
    """How long a certificate may still renew after a newer one was issued, for a process that did not receive or
    could not keep the answer. Never more than a quarter of its lifetime."""
    kubernetes: PodAttestationConfig | None = None
    """How pods enrol, as a table ``[ca.kubernetes]``; without it they need join tokens."""
    acme: AcmeConfig | None = None
    """An ACME server for host names, as a table ``[ca.acme]``; without it there is none."""
