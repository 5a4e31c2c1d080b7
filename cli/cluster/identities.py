"""The identities of a local cluster, from the online authority: first by join token, then by renewal.

Only the gateway's public certificate is signed here, by the edge authority. It is ``gateway/edge``; inside, Envoy shows
``gateway/envoy``. Homes of earlier versions had the public one there: it is replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cryptography import x509

from sluice.cli.config import Configuration
from sluice.core import CertificateRejected, Home, PkiError, StoreError, is_ip_address, utc_now
from sluice.gateway import CONNECT_NAME, EDGE_NAME, auth_names, envoy_names
from sluice.pki import CertificateSuperseded, Role, SpiffeId
from sluice.pki.authorities import AuthorityStore, TrustStore
from sluice.pki.ca import DEFAULT_NAME, CaAddress, TokenStore, read_cas
from sluice.pki.enrolment import Failover, PendingKeys, enrol, renew
from sluice.pki.identities import (
    CHAIN_FILE,
    ENROLLABLE,
    leaf_in,
    mint,
    read_certificates,
    read_identity,
    read_peers,
    renewal_reason,
)
from sluice.pki.issuing import (
    Action,
    DirectoryDestination,
    IssuingEngine,
    LocalIssuer,
    issue_all,
    names_of,
    renewal_request,
)
from sluice.pki.revocation import identity_directories, push_crls
from sluice.pki.trust import is_running, push_trust
from sluice.pki.x509 import (
    ISSUING,
    AuthorityKind,
    Names,
    Purpose,
    certified_identity,
    changed_lifetime,
    issuer_id,
    key_id,
    purposes_of,
)
from sluice.runtime.shuffle import ShuffleConfig

_LOG = logging.getLogger(__name__)

JOBMANAGER_NAME = "jobmanager-1"


def ca_names(count: int) -> list[str]:
    """The names of the authorities that ``sluice up`` starts."""
    return [DEFAULT_NAME if number == 1 else f"ca-{number}" for number in range(1, count + 1)]


def jobmanager_names(count: int) -> list[str]:
    """The names of the JobManagers that ``sluice up`` starts, the first of which is :data:`JOBMANAGER_NAME`."""
    return [f"jobmanager-{number}" for number in range(1, count + 1)]


def taskmanager_names(count: int) -> list[str]:
    """The names of the TaskManagers that ``sluice up`` starts."""
    return [f"taskmanager-{number}" for number in range(1, count + 1)]


def shuffle_manager_names(shuffle: ShuffleConfig) -> list[str]:
    """The names of the ShuffleManagers that ``sluice up`` starts."""
    return [f"shuffle-manager-{number}" for number in range(1, shuffle.manager_count + 1)] if shuffle.local else []


def shuffle_worker_names(shuffle: ShuffleConfig) -> list[str]:
    """The names of the ShuffleWorkers that ``sluice up`` starts."""
    return [f"shuffle-worker-{number}" for number in range(1, shuffle.workers + 1)] if shuffle.local else []


@dataclass(frozen=True, slots=True)
class _Wanted:
    role: Role
    name: str
    edge: bool = False


def _wanted(configuration: Configuration, taskmanagers: Iterable[str]) -> list[_Wanted]:
    """The wanted identities, the edge's first because it does not need the online authority."""
    return [
        _Wanted(Role.GATEWAY, EDGE_NAME, edge=True),
        *(_Wanted(Role.GATEWAY, name) for name in envoy_names(configuration.gateway)),
        _Wanted(Role.GATEWAY, CONNECT_NAME),
        *(_Wanted(Role.AUTH, name) for name in auth_names(configuration.gateway)),
        *(_Wanted(Role.JOBMANAGER, name) for name in jobmanager_names(configuration.jobmanager.count)),
        *(_Wanted(Role.TASKMANAGER, name) for name in taskmanagers),
        *(_Wanted(Role.SHUFFLE_MANAGER, name) for name in shuffle_manager_names(configuration.shuffle)),
        *(_Wanted(Role.SHUFFLE_WORKER, name) for name in shuffle_worker_names(configuration.shuffle)),
    ]


def prepare_authorities(home: Home, configuration: Configuration) -> list[str]:
    """Create missing authorities, and sign the CRLs that are due; returns what it did.

    The CRLs come before any process, because none starts with an expired one.
    """
    issuer = LocalIssuer(home.pki, configuration.pki)
    lines = [f"created the {name} authority" for name in issuer.ensure_authorities()]
    return lines + refresh_lists(home, configuration)


def refresh_lists(home: Home, configuration: Configuration) -> list[str]:
    """Sign the CRLs that are due, and install them in every identity directory, including those of jobs."""
    revocations = LocalIssuer(home.pki, configuration.pki).revocations
    signed, problems = revocations.refresh_all()
    TrustStore(home.pki).publish()
    problems += push_trust(home)[1]  # before the CRLs: only those of a trusted issuer are accepted
    _, failed = push_crls(home, revocations.lists(), utc_now())
    lines = [f"signed the revocation list of the {kind} authority" for kind in signed]
    return lines + [f"revocation lists: {each}" for each in (*problems, *failed)]


def _due(home: Home, directory: Path, spiffe_id: SpiffeId, kind: AuthorityKind, issuer: LocalIssuer) -> str:
    """Why to issue an identity now; empty when it is valid, or stays revoked."""
    if directory.exists() and issuer.revocations.barred(kind, spiffe_id) is not None:
        return ""
    if reason := renewal_reason(directory, spiffe_id, utc_now()):
        return reason
    leaf = read_certificates(directory / CHAIN_FILE)[0]
    if issuer_id(leaf) != key_id(AuthorityStore(home.pki).certificate(kind)):
        return f"it is not of today's {kind} authority"
    return "it was revoked" if issuer.revocations.is_revoked(kind, leaf.serial_number) else ""


def issue_due(home: Home, configuration: Configuration, taskmanagers: Iterable[str] | None = None) -> list[str]:
    """Issue missing identities, and renew those past half of their life; returns what it did.

    ``taskmanagers``: the names of the running ones; by default as many as ``taskmanager.count``.

    Running processes pick the new files up by themselves. The online authority must be running.
    """
    issuer = LocalIssuer(home.pki, configuration.pki)
    lines = []
    names = taskmanager_names(configuration.taskmanager.count) if taskmanagers is None else taskmanagers
    for wanted in _wanted(configuration, names):
        directory = home.identity(wanted.role, wanted.name)
        spiffe_id = SpiffeId.process(configuration.pki.trust_domain, wanted.role, wanted.name)
        existed = directory.exists()
        before = leaf_in(directory)
        kind = AuthorityKind.EDGE if wanted.edge else AuthorityKind.INTERNAL
        reason = _due(home, directory, spiffe_id, kind, issuer)
        if not reason:
            continue
        if wanted.edge:
            host = configuration.gateway.host
            dns_names = [name for name in (*configuration.gateway.server_names, host) if not is_ip_address(name)]
            addresses = sorted({host, "127.0.0.1"} if is_ip_address(host) else {"127.0.0.1"})
            issuer.issue_edge_server(directory, spiffe_id, dns=dns_names, ips=addresses)
        else:
            host = _host_of(wanted.role, configuration)
            dns, ips = ((), (host,)) if is_ip_address(host) else ((host,) if host else (), ())
            _certify(home, configuration, directory, Names.checked(spiffe_id, dns, ips), issuer)
        note = "" if before is None else changed_lifetime(before, read_certificates(directory / CHAIN_FILE)[0])
        told = f"renewed {spiffe_id}: {reason}" if existed else f"issued {spiffe_id}"
        lines.append(f"{told}; {note}" if note else told)
    return lines


def _host_of(role: Role, configuration: Configuration) -> str:
    """The host name of a process of ``role``; empty when nothing connects to it by name."""
    match role:
        case Role.JOBMANAGER:
            return configuration.jobmanager.host
        case Role.TASKMANAGER:
            return configuration.taskmanager.host
        case Role.SHUFFLE_MANAGER | Role.SHUFFLE_WORKER:
            return configuration.shuffle.host
        case Role.AUTH:
            gateway = configuration.gateway
            return gateway.auth_host or (gateway.ext_authz.host if gateway.ext_authz is not None else "")
        case _:
            return ""


def renew_superseded(home: Home, configuration: Configuration) -> list[str]:
    """Renew identities of another authority than the signing one; returns what it did.

    If the online authority runs, it signs, and renews its own identity itself; otherwise the authorities of the home
    sign. Drivers and executors are renewed by their JobManager and TaskManagers.
    """
    authorities = AuthorityStore(home.pki)
    bundles = [TrustStore(home.pki).anchors(kind) for kind in ISSUING if authorities.exists(kind)]
    today = {key_id(bundle[0]) for bundle in bundles}
    trusted = {key_id(anchor) for bundle in bundles for anchor in bundle}
    running = _running_cas(home)
    authorities_online = Failover(lambda: running)
    lines = []
    for directory in identity_directories(home):
        if not directory.is_relative_to(home.pki):
            continue
        try:
            leaf = read_certificates(directory / CHAIN_FILE)[0]
            spiffe_id, whole = certified_identity(leaf), _is_whole(directory)
            if issuer_id(leaf) not in trusted or (whole and issuer_id(leaf) in today):
                continue  # of another home: not ours to renew
            if spiffe_id.role is Role.CA and any(each.name == spiffe_id.name for each in running):
                continue  # it renews its own
            internal = purposes_of(leaf) != (Purpose.SERVER,)
            if running and whole and internal and spiffe_id.role in ENROLLABLE:
                authorities_online.call(partial(_renew_online, directory))
            else:
                _renew_here(home, configuration, directory, leaf)
        except PkiError as error:
            lines.append(f"cannot renew {directory}: {error}")
        else:
            lines.append(f"renewed {spiffe_id}: another authority signs today")
    return lines


def _is_whole(directory: Path) -> bool:
    """Whether key and certificate belong together; not if their writer was killed in between."""
    try:
        read_identity(directory)
    except StoreError:
        return False
    return True


def _renew_here(home: Home, configuration: Configuration, directory: Path, leaf: x509.Certificate) -> None:
    request = replace(renewal_request(leaf, configuration.pki), accept=read_peers(directory))
    engine = IssuingEngine(home.pki, configuration.pki)
    (outcome,) = issue_all((request,), DirectoryDestination(engine, home, directory), engine)
    if outcome.action is Action.REFUSED:
        raise CertificateRejected(outcome.reason, "admit it again with `sluice pki issue`")


def _renew_online(directory: Path, address: CaAddress, algorithm: str = "") -> None:
    renew(directory, address.mutual, algorithm=algorithm)


def _running_cas(home: Home) -> list[CaAddress]:
    try:
        return [each for each in read_cas(home) if is_running(each.pid)]
    except PkiError:
        return []


def _certify(home: Home, configuration: Configuration, directory: Path, names: Names, issuer: LocalIssuer) -> None:
    """Renew with the current certificate if it is valid and has these names; else enrol with a token."""
    authorities = Failover(lambda: read_cas(home))
    algorithm = configuration.pki.key_algorithm
    if _is_good(directory, names, issuer):
        try:
            authorities.call(lambda address: _renew_online(directory, address, algorithm))
        except CertificateSuperseded as error:
            # This home has the authority's keys, so it may certify its own processes again, whoever has copies of the
            # old key. The incident stays on record, and needs attention until it is handled.
            _LOG.error("%s is enrolled again: %s", names.spiffe_id, error)
        else:
            return
    token, pending = _new_token(home, names), PendingKeys()
    authorities.call(
        lambda address: enrol(
            directory,
            address.enrolment,
            token,
            names.spiffe_id.role,
            names.spiffe_id.name,
            dns=names.dns,
            ips=names.ips,
            algorithm=algorithm,
            pending=pending,
        )
    )


def _is_good(directory: Path, names: Names, issuer: LocalIssuer) -> bool:
    """Whether the online authority would renew the certificate in ``directory`` with these names."""
    try:
        material, _ = read_identity(directory)
        material.check_valid_at(utc_now())
        revoked = issuer.revocations.is_revoked(AuthorityKind.INTERNAL, material.leaf.serial_number)
        return names_of(material.leaf) == names and not revoked
    except PkiError:
        return False


def _new_token(home: Home, names: Names) -> str:
    certificate = AuthorityStore(home.pki).certificate(AuthorityKind.INTERNAL)
    now = utc_now()
    record, token = mint(names.spiffe_id, certificate, dns=names.dns, ips=names.ips, now=now)
    TokenStore(home.pki).add(record, now=now)
    return token


def ca_address(home: Home, pid: int) -> CaAddress | None:
    """The address of the online authority with this pid; None until it listens."""
    try:
        return next((each for each in read_cas(home) if each.pid == pid), None)
    except PkiError:
        return None
