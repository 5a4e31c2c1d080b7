"""Settings of the online authority (section ``[ca]`` of ``sluice.toml``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.pki.acme import AcmeConfig
from sluice.pki.attestation import PodAttestationConfig
from sluice.pki.ca.address import MAX_AUTHORITIES
from sluice.pki.ledger import DEFAULT_OVERLAP

PORTS_OF_ONE = 2
"""Distance between the ports of successive authorities that ``sluice up`` starts."""


class CaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Port 0 means: any free port (published under ``run/`` for the other processes)."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_AUTHORITIES)] = 1
    """How many authorities ``sluice up`` starts, ca-1 and so on: they share one home, and any of them can answer."""
    host: str = "127.0.0.1"
    port: int = 0
    """Port for renewal and job identities, over mutual TLS. With several authorities, each port is 2 above the one
    before."""
    enrolment_port: int = 0
    """Port for enrolment of processes without a certificate; with several authorities as ``port``."""
    renewal_overlap_minutes: Annotated[float, msgspec.Meta(ge=1, le=60)] = DEFAULT_OVERLAP.total_seconds() / 60
    """How long a certificate may still be renewed after a newer one was issued, for a process that did not receive or
    could not store the answer. Never more than a quarter of its lifetime."""
    kubernetes: PodAttestationConfig | None = None
    """How pods enrol, as a table ``[ca.kubernetes]``; without it they need join tokens."""
    acme: AcmeConfig | None = None
    """An ACME server for host names, as a table ``[ca.acme]``; without it there is none."""

    def of(self, number: int) -> CaConfig:
        """The settings of the authority with this number, counted from 1, of those that ``sluice up`` starts.

        With fixed ports each has its own; number 1 has those of the file. Only the first one serves ACME, because ACME
        clients know one address.
        """
        above = PORTS_OF_ONE * (number - 1)
        return msgspec.structs.replace(
            self,
            port=self.port and self.port + above,
            enrolment_port=self.enrolment_port and self.enrolment_port + above,
            acme=self.acme if number == 1 else None,
        )
