"""The interface of credentials: how a process without a certificate proves its identity, and what it requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sluice.pki.ca import CaAddress
from sluice.pki.spiffe_id import SpiffeId


@dataclass(frozen=True, slots=True)
class Wanted:
    """The identity to enrol, and its directory."""

    directory: Path
    spiffe_id: SpiffeId
    dns: tuple[str, ...]
    ips: tuple[str, ...]
    accept: tuple[str, ...]
    algorithm: str
    edge_server: bool


class JoinCredential(Protocol):
    """A join token, or evidence for an attestor."""

    @property
    def present(self) -> bool:
        """Whether the credential exists now."""

    def enrol(self, address: CaAddress, wanted: Wanted) -> None:
        """Have ``wanted`` certified for a new key, and written to its directory.

        Raises:
            EnrolmentRefused: the credential is missing or not valid.
            CertificateRejected: it is for other names.
            CaUnavailable: no answer from a trusted authority; the credential stays valid.
        """
