"""Obtains a process's own identity from a remote authority: first with a credential, then by renewal."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.core import CertificateRejected, Clock, StoreError, utc_now
from sluice.pki.enrolment import client
from sluice.pki.enrolment.credential import JoinCredential, Wanted
from sluice.pki.enrolment.failover import Failover, Locate
from sluice.pki.errors import CertificateSuperseded, EnrolmentRefused
from sluice.pki.identities import IdentityMaterial, read_identity
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.tls import TlsIdentity
from sluice.pki.x509 import DEFAULT_ALGORITHM

_LOG = logging.getLogger(__name__)


def usable(directory: Path, spiffe_id: SpiffeId, now: dt.datetime) -> IdentityMaterial | None:
    """The identity in ``directory`` when it is whole, of ``spiffe_id`` and valid at ``now``; else None."""
    try:
        material, _ = read_identity(directory)
        material.check_valid_at(now)
    except StoreError:
        return None
    return material if material.spiffe_id == spiffe_id else None


class EnrollingIssuer:
    """A ``DirectoryIssuer`` for the identity of a process, which the authority certifies.

    A usable identity is renewed with itself; without one, a credential for exactly these names is needed.

    Args:
        locate: where the authorities are.
        credentials: for each identity that has one: a join token, or what an attestor verifies.
        algorithm: of the keys made here.
        clock: the present, in UTC.
    """

    edge_server = False
    """Whether the credential is for a public certificate."""
    renews = True
    """Whether a usable certificate is enough to get the next one."""

    def __init__(
        self,
        locate: Locate,
        credentials: Mapping[SpiffeId, JoinCredential],
        *,
        algorithm: str = DEFAULT_ALGORITHM,
        clock: Clock = utc_now,
    ) -> None:
        self._authorities = Failover(locate)
        self._credentials = credentials
        self._algorithm = algorithm
        self._clock = clock

    def issue_to(
        self,
        directory: Path,
        spiffe_id: SpiffeId,
        *,
        dns: Sequence[str] = (),
        ips: Sequence[str] = (),
        lifetime: dt.timedelta | None = None,
        accept: Sequence[str] = (),
    ) -> None:
        """Renew the identity, or enrol it, as :meth:`sluice.pki.issuing.issuer.DirectoryIssuer.issue_to`.

        Raises:
            EnrolmentRefused: there is no usable identity, and the credential is missing or not valid.
            CertificateSuperseded: the certificate here is not the newest of the identity, and there is no credential.
            CaUnavailable: the authority cannot be reached; a token stays valid.
        """
        _refuse_lifetime(spiffe_id, lifetime)
        if self.renews and usable(directory, spiffe_id, self._clock()) is not None:
            try:
                self._renew(directory)
            except CertificateSuperseded:
                # The certificate here is not the newest: a new token means to enrol again, and a pod proves itself
                # again. In any case the authority has recorded that somebody showed a superseded certificate.
                if (again := self._credentials.get(spiffe_id)) is None or not again.present:
                    raise
                _LOG.warning("enrolling %s again: its certificate was superseded", spiffe_id)
            else:
                return
        if (credential := self._credentials.get(spiffe_id)) is None:
            raise EnrolmentRefused(
                f"there is no usable identity of {spiffe_id}, and no join token", "give one with --join-token-file"
            )
        wanted = Wanted(
            directory, spiffe_id, tuple(dns), tuple(ips), tuple(accept), self._algorithm, edge_server=self.edge_server
        )
        self._authorities.call(lambda address: credential.enrol(address, wanted))

    def _renew(self, directory: Path) -> None:
        self._authorities.call(lambda address: client.renew(directory, address.mutual, algorithm=self._algorithm))


class EdgeEnrollingIssuer(EnrollingIssuer):
    """An issuer of a gateway's public certificate: the internal identity of the gateway requests its renewal.

    Args:
        internal: the directory of that identity.
        locate: where the authorities are.
        credentials: the one for the public certificate.
        algorithm: of the keys made here, if browsers support it.
        clock: the present, in UTC.
    """

    def __init__(
        self,
        internal: Path,
        locate: Locate,
        credentials: Mapping[SpiffeId, JoinCredential],
        *,
        algorithm: str = DEFAULT_ALGORITHM,
        clock: Clock = utc_now,
    ) -> None:
        super().__init__(locate, credentials, algorithm=algorithm, clock=clock)
        self._internal = internal

    edge_server = True

    def _renew(self, directory: Path) -> None:
        gateway = TlsIdentity(self._internal, clock=self._clock)
        self._authorities.call(
            lambda address: client.renew_edge(directory, gateway, address.mutual, algorithm=self._algorithm)
        )


class AttestingIssuer(EnrollingIssuer):
    """An issuer for the driver or an executor of a job in a pod: each certificate needs the credential.

    The authority does not renew a job's certificate with itself, so that a job does not outlive its pods.
    """

    renews = False


def _refuse_lifetime(spiffe_id: SpiffeId, lifetime: dt.timedelta | None) -> None:
    if lifetime is not None:
        raise CertificateRejected(
            f"the lifetime of {spiffe_id} cannot be set here", "it is part of the authority's configuration"
        )
