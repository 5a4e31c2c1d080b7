"""What the online authority grants, as decisions: who asks, for what, with which request. No I/O.

Deny by default: a requester gets the one identity it is entitled to, with the names that were fixed before it asked.
A request that asks for more is refused, not trimmed (:mod:`sluice.pki.x509.csr`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass

from cryptography import x509

from sluice.core.errors import InvalidIdentity
from sluice.pki.ca.possession import check_possession
from sluice.pki.config import PkiConfig
from sluice.pki.errors import CertificateSuperseded, EnrolmentRefused, IssuanceRefused
from sluice.pki.identities.due import purposes_of
from sluice.pki.identities.join_tokens import ENROLLABLE, TokenRecord
from sluice.pki.ledger.generations import overlap_for
from sluice.pki.ledger.records import IssuanceKind
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import check_csr, check_edge_key
from sluice.pki.x509.keys import PublicKey
from sluice.pki.x509.peer_identity import certified_identity
from sluice.pki.x509.profiles import (
    MIN_LEAF_LIFETIME,
    Names,
    Profile,
    Purpose,
    edge_server_profile,
    kept_lifetime,
    workload_profile,
)

JOB_ROLES = frozenset({Role.DRIVER, Role.EXECUTOR})


@dataclass(frozen=True, slots=True)
class Grant:
    """What is to be signed, and what the ledger says about it."""

    kind: IssuanceKind
    names: Names
    key: PublicKey
    lifetime: dt.timedelta
    requester: str
    token: str = ""
    edge_server: bool = False

    def profile(self, config: PkiConfig) -> Profile:
        """Who signs it, and what it may be used for."""
        return (edge_server_profile if self.edge_server else workload_profile)(self.names.spiffe_id.role, config)


def grant_enrolment(record: TokenRecord, csr_pem: bytes, config: PkiConfig) -> Grant:
    """For the bearer of the token with this record, which was checked: the identity that the token is bound to."""
    names = record.names()
    spiffe_id = names.spiffe_id
    if spiffe_id.role not in ENROLLABLE or spiffe_id.trust_domain != config.trust_domain:
        raise EnrolmentRefused(f"nobody can enrol as {spiffe_id} here", "make a new token for a process of this domain")
    key, requester = check_csr(csr_pem, names), f"token:{record.id}"
    if record.edge_server:
        check_edge_key(key)
        lifetime = edge_server_profile(spiffe_id.role, config).lifetime
        return Grant("edge-enrolment", names, key, lifetime, requester, record.id, edge_server=True)
    return Grant("enrolment", names, key, workload_profile(spiffe_id.role, config).lifetime, requester, record.id)


def grant_renewal(
    current: x509.Certificate,
    csr_pem: bytes,
    config: PkiConfig,
    *,
    now: dt.datetime,
    authority_ends: Collection[dt.datetime] = (),
) -> Grant:
    """For the holder of ``current``, whose path the handshake verified: the same again, for another key.

    The same names, and the same lifetime (see :func:`sluice.pki.x509.profiles.kept_lifetime`).
    """
    # 1. A connection may outlive the certificate it was opened with.
    if not current.not_valid_before_utc <= now <= current.not_valid_after_utc:
        raise IssuanceRefused("the certificate of this connection is not valid now", "enrol again with a join token")
    # 2. Processes only: job identities are renewed by their JobMaster, users and the edge by the edge authority.
    spiffe_id = certified_identity(current)
    if spiffe_id.role not in ENROLLABLE or spiffe_id.trust_domain != config.trust_domain:
        raise IssuanceRefused(f"{spiffe_id} is not renewed here")
    # 3. The names it has, and no other.
    names = names_of(current)
    lifetime = _kept(current, workload_profile(spiffe_id.role, config), config, authority_ends)
    return Grant("renewal", names, check_csr(csr_pem, names), lifetime, str(spiffe_id))


def grant_edge_renewal(
    requester: SpiffeId,
    current: x509.Certificate,
    csr_pem: bytes,
    proof: bytes,
    config: PkiConfig,
    *,
    now: dt.datetime,
    authority_ends: Collection[dt.datetime] = (),
) -> Grant:
    """For a gateway: its public certificate ``current``, of which the path was verified, again for another key.

    A certificate of the edge opens no internal door, so a gateway comes in by its internal identity, and shows by
    ``proof`` that it holds the public one, which says what host names were granted.
    """
    # 1. Gateways only, for gateways only.
    if requester.role is not Role.GATEWAY or requester.trust_domain != config.trust_domain:
        raise IssuanceRefused(f"{requester} has no public certificate", "only a gateway has one")
    spiffe_id = certified_identity(current)
    if spiffe_id.role is not Role.GATEWAY or spiffe_id.trust_domain != config.trust_domain:
        raise IssuanceRefused(f"the certificate is of {spiffe_id}, which is no gateway of {config.trust_domain}")
    # 2. It counts now, and is what it is said to be: a user's certificate is of the same authority.
    if not current.not_valid_before_utc <= now <= current.not_valid_after_utc:
        raise IssuanceRefused("the public certificate is not valid now", "enrol again with a join token")
    if purposes_of(current) != (Purpose.SERVER,):
        raise IssuanceRefused("this is no public certificate of a server")
    # 3. A certificate is public: only its key shows that the requester is its holder. The proof is of this request.
    check_possession(current, csr_pem, proof)
    # 4. The names it has, and no other.
    names = names_of(current)
    key = check_csr(csr_pem, names)
    check_edge_key(key)
    lifetime = _kept(current, edge_server_profile(requester.role, config), config, authority_ends)
    return Grant("edge-renewal", names, key, lifetime, str(requester), edge_server=True)


def grant_job(
    requester: SpiffeId, wanted: str, csr_pem: bytes, lifetime: dt.timedelta | None, config: PkiConfig
) -> Grant:
    """For a JobManager: the identity of a driver or executor, without host names, for no longer than its profile."""
    # 1. JobManagers only.
    if requester.role is not Role.JOBMANAGER or requester.trust_domain != config.trust_domain:
        raise IssuanceRefused(f"{requester} may not ask for identities of jobs", "only a JobManager may")
    # 2. Identities of jobs only: a JobManager cannot make itself another process.
    try:
        spiffe_id = SpiffeId.parse(wanted)
    except InvalidIdentity as error:
        raise IssuanceRefused(f"no identity of a job: {error.what}", error.remedy) from error
    if spiffe_id.role not in JOB_ROLES or spiffe_id.trust_domain != config.trust_domain:
        raise IssuanceRefused(f"{spiffe_id} is no identity of a job of {config.trust_domain}")
    # 3. Shorter than the profile if it likes, never longer.
    longest = workload_profile(spiffe_id.role, config).lifetime
    granted = longest if lifetime is None else lifetime
    if not MIN_LEAF_LIFETIME <= granted <= longest:
        raise IssuanceRefused(f"{spiffe_id} cannot live {granted}", f"ask for {MIN_LEAF_LIFETIME} to {longest}")
    names = Names.checked(spiffe_id, (), ())
    return Grant("job", names, check_csr(csr_pem, names), granted, str(requester))


def check_newest(
    shown: x509.Certificate, superseded_since: dt.datetime | None, *, now: dt.datetime, overlap: dt.timedelta
) -> None:
    """Refuse who shows a certificate that was superseded longer ago than ``overlap``.

    Args:
        shown: whose holder asks.
        superseded_since: see :meth:`sluice.pki.ledger.generations.Generations.superseded_since`.
        now: with time zone, by the clock that ``superseded_since`` is of.
        overlap: as configured; see :func:`sluice.pki.ledger.generations.overlap_for`.

    Raises:
        CertificateSuperseded: somebody has a newer one.
    """
    if superseded_since is None or now - superseded_since <= overlap_for(shown, overlap):
        return
    raise CertificateSuperseded(
        f"the certificate {shown.serial_number:x} of {certified_identity(shown)} was superseded at "
        f"{superseded_since:%Y-%m-%d %H:%M:%S} UTC: it is not the newest of this identity",
        "its key may be in two hands: see docs/howto/stolen-key.md; if it is this process that lost its newest "
        "certificate, enrol it again with a join token",
    )


def _kept(
    current: x509.Certificate, profile: Profile, config: PkiConfig, authority_ends: Collection[dt.datetime]
) -> dt.timedelta:
    backdate = dt.timedelta(minutes=config.backdate_minutes)
    return kept_lifetime(current, profile, backdate=backdate, authority_ends=authority_ends)


def names_of(certificate: x509.Certificate) -> Names:
    """The identity and the host names of a leaf; raises ``PkiError`` when it is none of ours."""
    spiffe_id = certified_identity(certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return Names.checked(
        spiffe_id,
        names.get_values_for_type(x509.DNSName),
        [str(address) for address in names.get_values_for_type(x509.IPAddress)],
    )
