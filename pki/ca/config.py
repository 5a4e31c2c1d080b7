"""Settings of the online authority (section ``[ca]`` of ``sluice.toml``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.pki.acme import AcmeConfig
from sluice.pki.attestation import PodAttestationConfig
from sluice.pki.ca.address import MAX_AUTHORITIES
from sluice.pki.ledger import DEFAULT_OVERLAP

PORTS_OF_ONE = 2
"""How far the ports of one authority are from those of the next, of those that ``sluice up`` starts."""


class CaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Port 0 means: any free port (published under ``run/`` for the other processes)."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_AUTHORITIES)] = 1
    """How many authorities ``sluice up`` starts, ca-1 and so on: they work on one home, and any of them answers."""
    host: str = "127.0.0.1"
    port: int = 0
    """Renewal and job identities, over mutual TLS. Of several, each takes a port of its own, 2 above the one before."""
    enrolment_port: int = 0
    """Enrolment of processes without a certificate; of several as ``port``."""
    renewal_overlap_minutes: Annotated[float, msgspec.Meta(ge=1, le=60)] = DEFAULT_OVERLAP.total_seconds() / 60
    """How long a certificate may still renew after a newer one was issued, for a process that did not receive or
    could not keep the answer. Never more than a quarter of its lifetime."""
    kubernetes: PodAttestationConfig | None = None
    """How pods enrol, as a table ``[ca.kubernetes]``; without it they need join tokens."""
    acme: AcmeConfig | None = None
    """An ACME server for host names, as a table ``[ca.acme]``; without it there is none."""

    def of(self, number: int) -> CaConfig:
        """The settings of the authority with this number, counted from 1, of those that ``sluice up`` starts.

        With fixed ports each has its own; an authority that was started alone (number 1) has those of the file. The
        first one alone serves ACME: its clients know one address.
        """
        above = PORTS_OF_ONE * (number - 1)
        return msgspec.structs.replace(
            self,
            port=self.port and self.port + above,
            enrolment_port=self.enrolment_port and self.enrolment_port + above,
            acme=self.acme if number == 1 else None,
        )
