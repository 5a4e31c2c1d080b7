from .policy import (
    AgentPolicy as AgentPolicy,
    ManagedIdentity as ManagedIdentity,
    PolicyError as PolicyError,
    load_policy as load_policy,
)
from .process import Agent as Agent, run_agent as run_agent
from .published_identities import PublishedIdentities as PublishedIdentities
from .renewer import IdentityRenewer as IdentityRenewer, renew_forever as renew_forever
from .workload_api import WorkloadApi as WorkloadApi
