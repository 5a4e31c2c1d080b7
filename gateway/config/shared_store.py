"""Settings of the database that auth services share (table ``[gateway.shared_store]``)."""

from __future__ import annotations

import msgspec

from sluice.gateway.config.checks import check_absolute, check_together, host_and_port

MAX_STORE_HOSTS = 8
MAX_STALE_SECONDS = 60.0


class SharedStoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A PostgreSQL database that auth services of several machines share, over TLS 1.3 with a verified certificate."""

    hosts: tuple[str, ...]
    """Servers as ``db.example.com:5432``. The first that accepts writes is used. Replicas must be synchronous."""
    database: str = "sluice"
    user: str = "sluice"
    ca_file: str = ""
    """CAs (PEM) for the servers' certificates; empty: the system's. Host names are checked."""
    certificate_file: str = ""
    """Client certificate chain (PEM) for the servers (method ``cert`` in pg_hba.conf); empty: none."""
    key_file: str = ""
    """Private key (PEM, mode 0600) of the client certificate."""
    password_file: str = ""
    """File (mode 0600) with the user's password (SCRAM-SHA-256 only); empty: none."""
    encryption_key_file: str
    """File (mode 0600) with the key that encrypts all stored data, the same on all machines. Create it with
    ``sluice shared-store create-key``. The database never sees it."""
    stale_after: float = 2.0
    """For how many seconds an auth service works without the database. After that it refuses everything (503)."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.hosts) <= MAX_STORE_HOSTS:
            raise ValueError(f"hosts must name 1 to {MAX_STORE_HOSTS} servers")
        for each in self.hosts:
            host_and_port("hosts", each)
        check_together(self, "certificate_file", "key_file")
        if not self.certificate_file and not self.password_file:
            raise ValueError("certificate_file or password_file must be set to sign in to the database")
        check_absolute(self, "ca_file", "certificate_file", "key_file", "password_file", "encryption_key_file")
        if not 0.5 <= self.stale_after <= MAX_STALE_SECONDS:
            raise ValueError(f"stale_after must be 0.5 to {MAX_STALE_SECONDS:.0f} seconds")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The servers as host and port."""
        return [host_and_port("hosts", each) for each in self.hosts]
