"""Settings of the online authority (section ``[ca]`` of ``sluice.toml``)."""

from __future__ import annotations

import msgspec


class CaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Port 0 means: any free port (published under ``run/`` for the other processes)."""

    host: str = "127.0.0.1"
    port: int = 0
    """Renewal and job identities, over mutual TLS."""
    enrolment_port: int = 0
    """Enrolment, for those who have no certificate yet."""
