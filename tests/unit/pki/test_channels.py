"""The channel table of the design, row by row: who may connect, and which listeners a client accepts."""

from __future__ import annotations

import pytest

from sluice.core.errors import PeerRefused
from sluice.pki.channels import Channel, client_policy, server_policy
from sluice.pki.spiffe_id import Role, SpiffeId

DOMAIN = "sluice.local"
JOB, OTHER_JOB = "a" * 32, "b" * 32

MAY_CONNECT = {
    Channel.RPC: {
        Role.JOBMANAGER,
        Role.TASKMANAGER,
        Role.SHUFFLE_MANAGER,
        Role.SHUFFLE_WORKER,
        Role.DRIVER,
    },
    Channel.DATA: {Role.DRIVER, Role.EXECUTOR, Role.SHUFFLE_WORKER},
    Channel.BLOB: {Role.DRIVER},
    Channel.REST: {Role.GATEWAY, Role.JOBMANAGER, Role.AUTH},
    Channel.AUTH: {Role.GATEWAY, Role.JOBMANAGER},
    Channel.EDGE: {Role.USER},
    Channel.CA: {
        Role.JOBMANAGER,
        Role.TASKMANAGER,
        Role.SHUFFLE_MANAGER,
        Role.SHUFFLE_WORKER,
        Role.GATEWAY,
        Role.AUTH,
        Role.ZOOKEEPER,
    },
    Channel.ENROLMENT: set[Role](),
    Channel.ACME: set[Role](),
    Channel.ZOOKEEPER: {Role.JOBMANAGER, Role.SHUFFLE_MANAGER},
    Channel.CONNECT: {Role.GATEWAY},
    Channel.EGRESS: {Role.DRIVER, Role.EXECUTOR},
}


def identity_of(role: Role, job_id: str = JOB) -> SpiffeId:
    match role:
        case Role.DRIVER:
            return SpiffeId.driver(DOMAIN, job_id)
        case Role.EXECUTOR:
            return SpiffeId.executor(DOMAIN, job_id, 1)
        case _:
            return SpiffeId.process(DOMAIN, role, "x")


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("channel", Channel)
def test_only_the_roles_of_a_channel_may_connect_to_it(channel: Channel, role: Role) -> None:
    policy = client_policy(channel, DOMAIN)
    if role in MAY_CONNECT[channel]:
        policy.admit(identity_of(role))
    else:
        with pytest.raises(PeerRefused, match="wrong role"):
            policy.admit(identity_of(role))


@pytest.mark.parametrize("role", [Role.DRIVER, Role.EXECUTOR])
def test_a_channel_of_one_job_admits_only_peers_of_that_job(role: Role) -> None:
    policy = client_policy(Channel.DATA, DOMAIN, job_id=JOB)
    policy.admit(identity_of(role))
    with pytest.raises(PeerRefused, match="another job"):
        policy.admit(identity_of(role, OTHER_JOB))


def test_foreign_trust_domain_is_refused() -> None:
    stranger = SpiffeId.process("evil.example", Role.TASKMANAGER, "x")
    with pytest.raises(PeerRefused, match="foreign trust domain"):
        client_policy(Channel.RPC, DOMAIN).admit(stranger)


def test_a_client_accepts_only_the_role_and_name_it_expects() -> None:
    policy = server_policy(Channel.RPC, DOMAIN, role=Role.JOBMANAGER, name="jm-1")
    policy.admit(SpiffeId.process(DOMAIN, Role.JOBMANAGER, "jm-1"))
    with pytest.raises(PeerRefused, match="not the expected process"):
        policy.admit(SpiffeId.process(DOMAIN, Role.JOBMANAGER, "jm-2"))
    with pytest.raises(PeerRefused, match="wrong role"):
        policy.admit(SpiffeId.process(DOMAIN, Role.TASKMANAGER, "jm-1"))


def test_only_jobmanagers_of_the_same_cluster_may_forward_rest_requests() -> None:
    """Every JobManager of the trust domain has the role; only the name tells which cluster it belongs to."""
    policy = client_policy(Channel.REST, DOMAIN, jobmanagers={"jm-1", "jm-2"})
    policy.admit(SpiffeId.process(DOMAIN, Role.JOBMANAGER, "jm-2"))
    policy.admit(SpiffeId.process(DOMAIN, Role.GATEWAY, "envoy"))
    for nobody in (policy, client_policy(Channel.REST, DOMAIN, jobmanagers=frozenset())):
        with pytest.raises(PeerRefused, match="not a JobManager of this cluster"):
            nobody.admit(SpiffeId.process(DOMAIN, Role.JOBMANAGER, "jm-3"))


def test_policies_that_admit_different_jobmanagers_have_different_keys() -> None:
    any_of_them = client_policy(Channel.REST, DOMAIN)
    some = [client_policy(Channel.REST, DOMAIN, jobmanagers=names) for names in (set(), {"a"}, {"a", "b"})]
    assert len({policy.key for policy in (any_of_them, *some)}) == 4
    assert some[2].key == client_policy(Channel.REST, DOMAIN, jobmanagers={"b": 1, "a": 2}.keys()).key
