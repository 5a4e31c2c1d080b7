"""What the online authority grants, as decisions: who asks, for what, with which request. No I/O.

Deny by default: a requester gets the one identity it is entitled to, with the names that were fixed before it asked.
A request that asks for more is refused, not trimmed (:mod:`pki.csr`).
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from cryptography import x509

from pki.ca.errors import EnrolmentRefused, IssuanceRefused
from pki.ca.ledger import IssuanceKind
from pki.ca.tokens import ENROLLABLE, TokenRecord
from pki.config import PkiConfig
from pki.csr import check_csr
from pki.errors import InvalidIdentity
from pki.identity import Role, SpiffeId
from pki.keys import PublicKey
from pki.peer import certified_identity
from pki.profiles import MIN_LEAF_LIFETIME, Names, workload_profile

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


def grant_enrolment(record: TokenRecord, csr_pem: bytes, config: PkiConfig) -> Grant:
    """For the bearer of the token with this record, which was checked: the identity that the token is bound to."""
    names = record.names()
    spiffe_id = names.spiffe_id
    if spiffe_id.role not in ENROLLABLE or spiffe_id.trust_domain != config.trust_domain:
        raise EnrolmentRefused(f"nobody can enrol as {spiffe_id} here", "make a new token for a process of this domain")
    lifetime = workload_profile(spiffe_id.role, config).lifetime
    return Grant("enrolment", names, check_csr(csr_pem, names), lifetime, f"token:{record.id}", record.id)


def grant_renewal(current: x509.Certificate, csr_pem: bytes, config: PkiConfig, *, now: dt.datetime) -> Grant:
    """For the holder of ``current``, whose path the handshake verified: the same names again, for another key."""
    # 1. A connection may outlive the certificate it was opened with.
    if not current.not_valid_before_utc <= now <= current.not_valid_after_utc:
        raise IssuanceRefused("the certificate of this connection is not valid now", "enrol again with a join token")
    # 2. Processes only: job identities are renewed by their JobMaster, users and the edge by the edge authority.
    spiffe_id = certified_identity(current)
    if spiffe_id.role not in ENROLLABLE or spiffe_id.trust_domain != config.trust_domain:
        raise IssuanceRefused(f"{spiffe_id} is not renewed here")
    # 3. The names it has, and no other.
    names = names_of(current)
    lifetime = workload_profile(spiffe_id.role, config).lifetime
    return Grant("renewal", names, check_csr(csr_pem, names), lifetime, str(spiffe_id))


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


def names_of(certificate: x509.Certificate) -> Names:
    """The identity and the host names of a leaf; raises :class:`pki.errors.PkiError` when it is none of ours."""
    spiffe_id = certified_identity(certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return Names.checked(
        spiffe_id,
        names.get_values_for_type(x509.DNSName),
        [str(address) for address in names.get_values_for_type(x509.IPAddress)],
    )
