"""A pod's projected service account token as the credential of its process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sluice.core import read_bounded
from sluice.pki.attestation import KUBERNETES, MAX_POD_TOKEN_BYTES
from sluice.pki.ca import CaAddress
from sluice.pki.enrolment import client
from sluice.pki.enrolment.credential import Wanted
from sluice.pki.errors import CaUnavailable, EnrolmentRefused


@dataclass(frozen=True, slots=True)
class PodTokenFile:
    """The file that the kubelet keeps current, and the anchors of the authority that may see the token."""

    token: Path
    anchors: Path

    @property
    def present(self) -> bool:
        """Whether it is mounted."""
        return self.token.exists()

    def enrol(self, address: CaAddress, wanted: Wanted) -> None:
        """Have ``wanted`` certified as :func:`client.enrol_attested` does, reading the token for each attempt."""
        if not self.token.exists():
            raise EnrolmentRefused(
                f"there is no usable identity, and no service account token in {self.token}",
                "mount a projected one, see docs/howto/kubernetes.md",
            )
        if not self.anchors.exists():
            # The ConfigMap is mounted, but the authority, which starts at the same time, has not filled it yet.
            raise CaUnavailable(f"there are no trust anchors in {self.anchors} yet", "the authority publishes them")
        client.enrol_attested(
            wanted.directory,
            address.enrolment,
            read_bounded(self.anchors),
            KUBERNETES,
            read_bounded(self.token, MAX_POD_TOKEN_BYTES).decode("ascii", "replace").strip(),
            wanted.spiffe_id,
            dns=wanted.dns,
            ips=wanted.ips,
            algorithm=wanted.algorithm,
            accept=wanted.accept,
            edge_server=wanted.edge_server,
        )
