"""The interface of attestors: who the requester is, and which identities it may have. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sluice.pki.errors import EnrolmentRefused
from sluice.pki.x509 import Names


@dataclass(frozen=True, slots=True)
class Grant:
    """One identity with its host names; ``edge_server``: the public certificate of a gateway."""

    names: Names
    edge_server: bool = False


@dataclass(frozen=True, slots=True)
class Attested:
    """A requester that was verified.

    Attributes:
        requester: for the ledger, as ``pod:NAMESPACE/SERVICE-ACCOUNT/POD/UID``. The text after the last slash
            distinguishes successive requesters of one name.
        grants: all that it may have.
    """

    requester: str
    grants: tuple[Grant, ...]

    @property
    def instance(self) -> str:
        """The part of the requester that no successor shares."""
        return self.requester.rpartition("/")[2]

    def grant(self, identity: str, *, edge_server: bool) -> Grant:
        """The grant of the requested identity; raises :class:`EnrolmentRefused`."""
        for each in self.grants:
            if str(each.names.spiffe_id) == identity and each.edge_server is edge_server:
                return each
        raise EnrolmentRefused(
            f"{self.requester} may not have this identity", "see the identities of this attestor in section [ca]"
        )


class Attestor(Protocol):
    """Verifies one kind of evidence."""

    async def attest(self, evidence: str) -> Attested:
        """Who shows ``evidence``, a secret that no message quotes.

        Raises:
            EnrolmentRefused: it proves nothing, or nobody that is to have an identity.
            AttestationUnavailable: it cannot be verified now.
        """

    async def close(self) -> None:
        """Close all connections."""
