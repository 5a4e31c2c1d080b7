"""Sets up the network namespaces of jobs on a TaskManager, and the egress relay that they share."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AsyncExitStack
from functools import partial

from sluice.core import EgressDecision, EgressMode, EgressTarget, Home, egress_address
from sluice.runtime.config import RuntimeConfig
from sluice.runtime.egress import EgressJournal, EgressReporter, JobLimits
from sluice.runtime.egress_relay import EgressRelay
from sluice.runtime.job_network import RelayedEgress
from sluice.runtime.sandbox import Sandbox
from sluice.runtime.taskmanager import NetworkOwner, Networks


def job_networks(  # noqa: PLR0917  # its dependencies
    stack: AsyncExitStack,
    home: Home,
    config: RuntimeConfig,
    name: str,
    sandbox: Sandbox,
    journal: EgressJournal,
    reporter: EgressReporter,
    mode: EgressMode,
) -> Networks | None:
    """Set up the networks of jobs on TaskManager ``name``; None when jobs use the machine's network.

    The relay is closed with ``stack``.
    """
    if mode is EgressMode.OFF:
        return None
    find = partial(egress_address, config.egress, home)
    relay = EgressRelay(home.sockets / f"relay-{name}", config.trust_domain, find)
    stack.push_async_callback(relay.close)

    limits = JobLimits(
        journal.open_of, max_open=config.egress.job_connections, per_second=config.egress.job_connections_per_second
    )

    names = JobLimits(lambda _: 0, max_open=1, per_second=config.egress.job_connections_per_second)

    def egress_rules(owner: NetworkOwner) -> RelayedEgress:
        def ask(host: str, port: int) -> Awaitable[EgressDecision]:
            return reporter.decide(EgressTarget(job_id=owner.job_id, host=host, port=port))

        return RelayedEgress(
            relay,
            owner.identity,
            ask,
            enforce=mode is EgressMode.ENFORCE,
            limit=partial(limits.objection, owner.job_id),
            limit_names=partial(names.objection, owner.job_id),
        )

    return Networks(config.taskmanager.host, sandbox, egress_rules, journal)
