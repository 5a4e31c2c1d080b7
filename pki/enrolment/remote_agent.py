"""The agent of a node whose authority is on another machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sluice.core import Home, run_with_background
from sluice.pki.agent import Agent, AgentPolicy, PolicyError, run_agent
from sluice.pki.config import PkiConfig
from sluice.pki.enrolment.enrolling_issuer import EnrollingIssuer
from sluice.pki.enrolment.failover import Locate
from sluice.pki.enrolment.join_token_file import JoinTokenFile
from sluice.pki.enrolment.trust_subscription import TrustSubscription
from sluice.pki.identities import ENROLLABLE
from sluice.pki.jwt import JwtAuthority
from sluice.pki.spiffe_id import SpiffeId


async def joined_agent(  # noqa: PLR0917  where, from whom, what, and how it is served
    home: Home,
    locate: Locate,
    policy: AgentPolicy,
    config: PkiConfig,
    tokens: Mapping[SpiffeId, JoinTokenFile],
    jwt: JwtAuthority,
    socket_path: Path,
) -> None:
    """Serve ``policy`` until cancelled, with identities and trust from the online authority.

    The first identity of the policy asks for trust.

    Raises:
        PolicyError: the online authority does not give an identity to its process directly.
        StoreError: the socket cannot be opened, or the JWT keys are damaged.
    """
    check_joinable(policy)
    directories = [one.directory for one in policy.identities]
    follower = TrustSubscription(home, locate, directories[0], directories)
    agent = Agent(
        policy,
        EnrollingIssuer(locate, tokens, algorithm=config.key_algorithm),
        jwt,
        config.trust_domain,
        socket_path,
    )
    await run_with_background(follower.run(), run_agent(agent))


def check_joinable(policy: AgentPolicy) -> None:
    """Refuse a policy that the online authority cannot serve; :class:`PolicyError`."""
    for one in policy.identities:
        if one.spiffe_id.role not in ENROLLABLE:
            raise PolicyError(
                f"{one.spiffe_id} is not certified for a process that joins",
                f"roles that are: {', '.join(sorted(ENROLLABLE))}",
            )
        if one.lifetime is not None:
            raise PolicyError(
                f"lifetime_minutes of {one.spiffe_id} cannot be set here", "it is part of the CA's configuration"
            )
