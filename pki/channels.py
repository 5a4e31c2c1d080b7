"""The channel table: which roles may connect to which. No I/O.

The TLS handshake proves *that* a peer holds a certificate of our authority; this module decides *whether* that identity
may use the channel.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Set as AbstractSet
from dataclasses import dataclass

from sluice.core import PeerRefused
from sluice.pki.spiffe_id import Role, SpiffeId


class Channel(enum.StrEnum):
    """A kind of connection; each has its own listener policy."""

    RPC = "rpc"
    DATA = "data"
    BLOB = "blob"
    REST = "rest"
    AUTH = "auth"
    EDGE = "edge"
    CA = "ca"
    ENROLMENT = "enrolment"
    ACME = "acme"
    CONNECT = "connect"
    ZOOKEEPER = "zookeeper"
    EGRESS = "egress"


_CLUSTER = frozenset({Role.JOBMANAGER, Role.TASKMANAGER, Role.SHUFFLE_MANAGER, Role.SHUFFLE_WORKER})
_JOB = frozenset({Role.DRIVER, Role.EXECUTOR})
_RENEWED = _CLUSTER | {Role.GATEWAY, Role.AUTH, Role.ZOOKEEPER}
"""Processes that renew at the online authority; identities of jobs are renewed through their JobMaster."""

MAY_LISTEN: dict[Channel, frozenset[Role]] = {
    Channel.RPC: _CLUSTER,
    Channel.DATA: _JOB | {Role.SHUFFLE_WORKER},
    Channel.BLOB: frozenset({Role.JOBMANAGER}),
    Channel.REST: frozenset({Role.JOBMANAGER}),
    Channel.AUTH: frozenset({Role.AUTH}),
    Channel.EDGE: frozenset({Role.GATEWAY}),
    Channel.CA: frozenset({Role.CA}),
    Channel.ENROLMENT: frozenset({Role.CA}),
    Channel.ACME: frozenset({Role.CA}),
    Channel.CONNECT: frozenset({Role.DRIVER}),
    Channel.ZOOKEEPER: frozenset({Role.ZOOKEEPER}),
    Channel.EGRESS: frozenset({Role.GATEWAY}),
}

MAY_CONNECT: dict[Channel, frozenset[Role]] = {
    Channel.RPC: _CLUSTER | {Role.DRIVER},
    # Shuffle workers hand over to shuffle workers; JVMs admit their own job alone.
    Channel.DATA: _JOB | {Role.SHUFFLE_WORKER},
    Channel.BLOB: frozenset({Role.DRIVER}),
    # A standby forwards to the leader: the listener narrows this role to the names of its own cluster. The auth service
    # asks for the owner of a job that wants to connect to the outside.
    Channel.REST: frozenset({Role.GATEWAY, Role.JOBMANAGER, Role.AUTH}),
    # Envoy asks about requests; JobManagers only get the public keys that verify assertions.
    Channel.AUTH: frozenset({Role.GATEWAY, Role.JOBMANAGER}),
    Channel.EDGE: frozenset({Role.USER}),
    Channel.CA: _RENEWED,
    Channel.ENROLMENT: frozenset(),  # a join token takes the place of a client certificate
    Channel.ACME: frozenset(),  # requests are signed with the keys of ACME accounts
    Channel.CONNECT: frozenset({Role.GATEWAY}),
    # The processes that elect a leader. ZooKeeper's TLS admits more; its ACLs refuse them.
    Channel.ZOOKEEPER: frozenset({Role.JOBMANAGER, Role.SHUFFLE_MANAGER}),
    # Envoy asks the auth service about each connection, by the job of the certificate.
    Channel.EGRESS: _JOB,
}


@dataclass(frozen=True, slots=True)
class PeerPolicy:
    """What the other end of a connection must be.

    Attributes:
        trust_domain: the only trust domain accepted.
        roles: roles accepted.
        job_id: when set, drivers and executors must belong to this job.
        name: when set, the exact process name expected.
        jobmanagers: when not None, the names of the JobManagers accepted: a role does not say which cluster a
            JobManager belongs to.
        identities: when not None, the only peers accepted.
    """

    trust_domain: str
    roles: AbstractSet[Role]
    job_id: str = ""
    name: str = ""
    jobmanagers: AbstractSet[str] | None = None
    identities: AbstractSet[SpiffeId] | None = None

    @property
    def key(self) -> Hashable:
        """A key that is equal exactly for policies that admit the same peers."""
        named = None if self.jobmanagers is None else frozenset(self.jobmanagers)
        only = None if self.identities is None else frozenset(self.identities)
        return (self.trust_domain, frozenset(self.roles), self.job_id, self.name, named, only)

    def admit(self, peer: SpiffeId) -> None:
        """Return when ``peer`` is accepted; raise :class:`PeerRefused` with the reason when not."""
        if peer.trust_domain != self.trust_domain:
            raise PeerRefused(f"{peer} is of a foreign trust domain, expected {self.trust_domain}")
        if peer.role not in self.roles:
            raise PeerRefused(f"{peer} has the wrong role, expected one of {', '.join(sorted(self.roles))}")
        if self.job_id and peer.role in _JOB and peer.job_id != self.job_id:
            raise PeerRefused(f"{peer} belongs to another job, expected {self.job_id}")
        if self.name and peer.name != self.name:
            raise PeerRefused(f"{peer} is not the expected process {self.name!r}")
        if self.jobmanagers is not None and peer.role is Role.JOBMANAGER and peer.name not in self.jobmanagers:
            raise PeerRefused(
                f"{peer} is not a JobManager of this cluster", "name the cluster's JobManagers in ha.jobmanagers"
            )
        if self.identities is not None and peer not in self.identities:
            raise PeerRefused(f"{peer} is not one of the peers that were named")


def client_policy(
    channel: Channel, trust_domain: str, *, job_id: str = "", jobmanagers: AbstractSet[str] | None = None
) -> PeerPolicy:
    """The policy of a listener of ``channel`` for its clients; JobManagers must be among ``jobmanagers``."""
    return PeerPolicy(trust_domain, MAY_CONNECT[channel], job_id=job_id, jobmanagers=jobmanagers)


def server_policy(
    channel: Channel,
    trust_domain: str,
    *,
    role: Role | None = None,
    name: str = "",
    jobmanagers: AbstractSet[str] | None = None,
) -> PeerPolicy:
    """The policy of a client of ``channel`` for its listener, limited to ``role`` and names when known."""
    return PeerPolicy(trust_domain, MAY_LISTEN[channel] if role is None else {role}, name=name, jobmanagers=jobmanagers)
