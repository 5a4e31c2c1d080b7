"""The identities of a local cluster: made before its processes start, renewed at half-life while it runs."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cli.config import Configuration
from pki.crl_files import push_crls
from pki.home import Home
from pki.identity import Role, SpiffeId
from pki.identity_files import CHAIN_FILE, read_certificates
from pki.issuer import LocalIssuer, utc_now
from pki.profiles import AuthorityKind
from pki.renewal import renewal_reason

JOBMANAGER_NAME = "jobmanager-1"


def taskmanager_names(count: int) -> list[str]:
    """The names of the TaskManagers that ``sluice up`` starts."""
    return [f"taskmanager-{number}" for number in range(1, count + 1)]


@dataclass(frozen=True, slots=True)
class _Wanted:
    role: Role
    name: str
    edge: bool = False


def _wanted(configuration: Configuration) -> list[_Wanted]:
    return [
        _Wanted(Role.JOBMANAGER, JOBMANAGER_NAME),
        *(_Wanted(Role.TASKMANAGER, name) for name in taskmanager_names(configuration.taskmanager.count)),
        _Wanted(Role.GATEWAY, "envoy", edge=True),
    ]


def prepare_identities(home: Home, configuration: Configuration) -> list[str]:
    """Create authorities and identities that are missing, renew what is past half of its life; says what it did."""
    issuer = LocalIssuer(home.pki, configuration.pki)
    lines = [f"created the {name} authority" for name in issuer.ensure_authorities()]
    # The lists first: a process does not start with one that has expired.
    return lines + _refresh_lists(home, issuer) + _issue_due(home, configuration, issuer)


def renew_identities(home: Home, configuration: Configuration) -> list[str]:
    """Renew what is past half of its life; running processes pick the new files up by themselves.

    Revocation lists likewise, and every identity directory gets them, those of jobs included.
    """
    issuer = LocalIssuer(home.pki, configuration.pki)
    return _refresh_lists(home, issuer) + _issue_due(home, configuration, issuer)


def _refresh_lists(home: Home, issuer: LocalIssuer) -> list[str]:
    signed, problems = issuer.revocations.refresh_all()
    _, failed = push_crls(home, issuer.revocations.lists(), utc_now())
    lines = [f"signed the revocation list of the {kind} authority" for kind in signed]
    return lines + [f"revocation lists: {each}" for each in (*problems, *failed)]


def _due(directory: Path, spiffe_id: SpiffeId, kind: AuthorityKind, issuer: LocalIssuer) -> str:
    """Why an identity is to be issued now; empty when it is good, or was revoked and stays so."""
    if directory.exists() and issuer.revocations.barred(kind, spiffe_id) is not None:
        return ""
    if reason := renewal_reason(directory, spiffe_id, utc_now()):
        return reason
    leaf = read_certificates(directory / CHAIN_FILE)[0]
    return "it was revoked" if issuer.revocations.is_revoked(kind, leaf.serial_number) else ""


def _issue_due(home: Home, configuration: Configuration, issuer: LocalIssuer) -> list[str]:
    lines = []
    for wanted in _wanted(configuration):
        directory = home.identity(wanted.role, wanted.name)
        spiffe_id = SpiffeId.process(configuration.pki.trust_domain, wanted.role, wanted.name)
        existed = directory.exists()
        kind = AuthorityKind.EDGE if wanted.edge else AuthorityKind.INTERNAL
        reason = _due(directory, spiffe_id, kind, issuer)
        if not reason:
            continue
        if wanted.edge:
            host = configuration.gateway.host
            names = [name for name in (*configuration.gateway.server_names, host) if not _is_ip(name)]
            addresses = sorted({host, "127.0.0.1"} if _is_ip(host) else {"127.0.0.1"})
            issuer.issue_edge_server(directory, spiffe_id, dns=names, ips=addresses)
        else:
            hosts = {
                configuration.jobmanager.host if wanted.role is Role.JOBMANAGER else configuration.taskmanager.host
            }
            issuer.issue_to(
                directory,
                spiffe_id,
                dns=sorted(host for host in hosts if not _is_ip(host)),
                ips=sorted(host for host in hosts if _is_ip(host)),
            )
        lines.append(f"renewed {spiffe_id}: {reason}" if existed else f"issued {spiffe_id}")
    return lines


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
