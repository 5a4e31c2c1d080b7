"""Join token files: readable by their owner only, and removed once the token is used."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from sluice.core import read_secret
from sluice.pki.ca import CaAddress
from sluice.pki.enrolment import client
from sluice.pki.enrolment.credential import Wanted
from sluice.pki.errors import EnrolmentRefused
from sluice.pki.identities import MAX_TOKEN_BYTES

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JoinTokenFile:
    """Where a join token is expected."""

    path: Path
    pending: client.PendingKeys = field(default_factory=client.PendingKeys, repr=False, compare=False)
    """The key of an unanswered attempt, for the next one."""

    @property
    def present(self) -> bool:
        """Whether there is one."""
        return self.path.exists()

    def enrol(self, address: CaAddress, wanted: Wanted) -> None:
        """Have ``wanted`` certified for the token, and then remove the token; see :func:`client.enrol`."""
        client.enrol(
            wanted.directory,
            address.enrolment,
            self.read(),
            wanted.spiffe_id.role,
            wanted.spiffe_id.name,
            dns=wanted.dns,
            ips=wanted.ips,
            algorithm=wanted.algorithm,
            accept=wanted.accept,
            edge_server=wanted.edge_server,
            pending=self.pending,
        )
        self.used_up()

    def read(self) -> str:
        """The token.

        Raises:
            EnrolmentRefused: there is no such file.
            StoreError: others may read it, or it is larger than a token.
        """
        if not self.path.exists():
            raise EnrolmentRefused(
                f"there is no usable identity, and no join token in {self.path}",
                "make one with `sluice pki token create`",
            )
        return read_secret(self.path, MAX_TOKEN_BYTES + 2).decode("ascii", "replace").strip()

    def used_up(self) -> None:
        """Remove the used token; a file that is mounted read-only stays."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            _LOG.info("cannot remove the used join token %s: %s", self.path, error.strerror or error)
