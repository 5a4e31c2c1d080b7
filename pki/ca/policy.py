"""Decides which certificates the online authority issues to which requester. No I/O.

Deny by default: a requester gets the one identity it is entitled to, with names that were fixed beforehand. A request
for more is refused, not trimmed (:mod:`sluice.pki.x509.csr`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from cryptography import x509

from sluice.core import InvalidIdentity
from sluice.pki.attestation import Attested
from sluice.pki.ca.possession import check_possession
from sluice.pki.config import PkiConfig
from sluice.pki.errors import CertificateSuperseded, EnrolmentRefused, IssuanceRefused
from sluice.pki.identities import ENROLLABLE, TokenRecord
from sluice.pki.issuing import LeafRequest, renewal_request
from sluice.pki.jwt import check_audiences
from sluice.pki.ledger import overlap_for
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509 import (
    MIN_LEAF_LIFETIME,
    Names,
    Purpose,
    certified_identity,
    edge_server_profile,
    purposes_of,
    workload_profile,
)

JOB_ROLES = frozenset({Role.DRIVER, Role.EXECUTOR})


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """A JWT-SVID that may be signed: its subject, audience and lifetime."""

    spiffe_id: SpiffeId
    audience: tuple[str, ...]
    lifetime: dt.timedelta


def _of_job(wanted: str, config: PkiConfig) -> SpiffeId:
    try:
        spiffe_id = SpiffeId.parse(wanted)
    except InvalidIdentity as error:
        raise IssuanceRefused(f"not the identity of a job: {error.what}", error.remedy) from error
    if spiffe_id.role not in JOB_ROLES or spiffe_id.trust_domain != config.trust_domain:
        raise IssuanceRefused(f"{spiffe_id} is not the identity of a job of {config.trust_domain}")
    return spiffe_id


def grant_enrolment(record: TokenRecord, csr_pem: bytes, config: PkiConfig) -> LeafRequest:
    """Grant the bearer of a checked token the identity that the token is bound to."""
    names = record.names()
    spiffe_id = names.spiffe_id
    if spiffe_id.role not in ENROLLABLE or spiffe_id.trust_domain != config.trust_domain:
        raise EnrolmentRefused(
            f"no process can enrol as {spiffe_id} here", "make a new token for a process of this domain"
        )
    return LeafRequest(
        names,
        (edge_server_profile if record.edge_server else workload_profile)(spiffe_id.role, config),
        kind="edge-enrolment" if record.edge_server else "enrolment",
        requester=f"token:{record.id}",
        token=record.id,
    ).for_csr(csr_pem)


def grant_attested(
    attested: Attested, identity: str, csr_pem: bytes, config: PkiConfig, *, edge_server: bool
) -> LeafRequest:
    """Grant a requester that an attestor has verified one of the identities that the attestor allows."""
    grant = attested.grant(identity, edge_server=edge_server)
    spiffe_id = grant.names.spiffe_id
    if spiffe_id.role not in ENROLLABLE | JOB_ROLES or spiffe_id.trust_domain != config.trust_domain:
        raise EnrolmentRefused(f"no process can enrol as {spiffe_id} here")
    return LeafRequest(
        grant.names,
        (edge_server_profile if edge_server else workload_profile)(spiffe_id.role, config),
        kind="edge-enrolment" if edge_server else "enrolment",
        requester=attested.requester,
    ).for_csr(csr_pem)


def grant_renewal(
    current: x509.Certificate,
    csr_pem: bytes,
    config: PkiConfig,
    *,
    now: dt.datetime,
    authority_ends: Collection[dt.datetime] = (),
) -> LeafRequest:
    """Grant the holder of ``current``, whose path the handshake verified, a successor for a new key.

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
    profile = workload_profile(spiffe_id.role, config)
    request = renewal_request(current, config, profile=profile, authority_ends=authority_ends)
    return replace(request, kind="renewal", requester=str(spiffe_id)).for_csr(csr_pem)


def grant_edge_renewal(
    requester: SpiffeId,
    current: x509.Certificate,
    csr_pem: bytes,
    proof: bytes,
    config: PkiConfig,
    *,
    now: dt.datetime,
    authority_ends: Collection[dt.datetime] = (),
) -> LeafRequest:
    """Grant a gateway a successor of its public certificate ``current``, whose path was verified, for a new key.

    A certificate of the edge opens no internal channel, so a gateway connects with its internal identity. It proves
    with ``proof`` that it holds the public one, which contains the granted host names.
    """
    # 1. Gateways only, for gateways only.
    if requester.role is not Role.GATEWAY or requester.trust_domain != config.trust_domain:
        raise IssuanceRefused(f"{requester} has no public certificate", "only a gateway has one")
    spiffe_id = certified_identity(current)
    if spiffe_id.role is not Role.GATEWAY or spiffe_id.trust_domain != config.trust_domain:
        raise IssuanceRefused(f"the certificate is of {spiffe_id}, which is not a gateway of {config.trust_domain}")
    # 2. It is valid now, and a server certificate: the same authority signs those of users.
    if not current.not_valid_before_utc <= now <= current.not_valid_after_utc:
        raise IssuanceRefused("the public certificate is not valid now", "enrol again with a join token")
    if purposes_of(current) != (Purpose.SERVER,):
        raise IssuanceRefused("this is not the public certificate of a server")
    # 3. A certificate is public: only its key proves that the requester holds it. The proof covers this request.
    check_possession(current, csr_pem, proof)
    # 4. The names it has, and no other.
    profile = edge_server_profile(requester.role, config)
    request = renewal_request(current, config, profile=profile, authority_ends=authority_ends)
    return replace(request, kind="edge-renewal", requester=str(requester)).for_csr(csr_pem)


def grant_job(
    requester: SpiffeId, wanted: str, csr_pem: bytes, lifetime: dt.timedelta | None, config: PkiConfig
) -> LeafRequest:
    """Grant a JobManager an identity of a driver or executor, without host names, within its profile's lifetime."""
    # 1. JobManagers only.
    if requester.role is not Role.JOBMANAGER or requester.trust_domain != config.trust_domain:
        raise IssuanceRefused(f"{requester} may not ask for identities of jobs", "only a JobManager may")
    # 2. Identities of jobs only: a JobManager cannot make itself another process.
    spiffe_id = _of_job(wanted, config)
    # 3. At most the profile's lifetime.
    profile = workload_profile(spiffe_id.role, config)
    if lifetime is not None and not MIN_LEAF_LIFETIME <= lifetime <= profile.lifetime:
        raise IssuanceRefused(
            f"{spiffe_id} cannot live {lifetime}", f"ask for {MIN_LEAF_LIFETIME} to {profile.lifetime}"
        )
    names = Names.checked(spiffe_id, (), ())
    return LeafRequest(names, profile, lifetime, kind="job", requester=str(requester)).for_csr(csr_pem)


def grant_token(requester: SpiffeId, wanted: str, audience: Sequence[str], config: PkiConfig) -> TokenGrant:
    """Grant a JobManager a JWT-SVID of a driver or executor, for audiences that the gateway's policy gave to the job.

    A JobManager can have any job identity certified, so it is trusted about audiences, too.
    """
    if requester.role is not Role.JOBMANAGER or requester.trust_domain != config.trust_domain:
        raise IssuanceRefused(f"{requester} may not ask for tokens of jobs", "only a JobManager may")
    return TokenGrant(_of_job(wanted, config), check_audiences(audience), dt.timedelta(minutes=config.token_minutes))


def check_newest(
    shown: x509.Certificate,
    superseded_since: dt.datetime | None,
    *,
    now: dt.datetime,
    overlap: dt.timedelta,
    lost_at: dt.datetime | None = None,
) -> None:
    """Refuse a certificate that was superseded longer ago than ``overlap``, or may have been.

    Args:
        shown: whose holder asks.
        superseded_since: see :meth:`sluice.pki.ledger.generations.Generations.superseded_since`.
        now: with time zone, by the clock that ``superseded_since`` is of.
        overlap: as configured; see :func:`sluice.pki.ledger.generations.overlap_for`.
        lost_at: see :meth:`sluice.pki.ledger.generations.Generations.lost_at`.

    Raises:
        CertificateSuperseded: somebody has a newer one, or might have.
    """
    if lost_at is not None:
        raise CertificateSuperseded(
            f"the certificate {shown.serial_number:x} of {certified_identity(shown)} is older than the restoration of "
            f"the authority from a backup at {lost_at:%Y-%m-%d %H:%M:%S} UTC: whether it was superseded is not known",
            "enrol the process again with a join token: see docs/howto/back-up-and-restore.md",
        )
    if superseded_since is None or now - superseded_since <= overlap_for(shown, overlap):
        return
    raise CertificateSuperseded(
        f"the certificate {shown.serial_number:x} of {certified_identity(shown)} was superseded at "
        f"{superseded_since:%Y-%m-%d %H:%M:%S} UTC: it is not the newest of this identity",
        "its key may be in two hands: see docs/howto/stolen-key.md; if it is this process that lost its newest "
        "certificate, enrol it again with a join token",
    )
