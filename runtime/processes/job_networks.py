"""The networks of jobs on a TaskManager, and the one relay that leads out of them."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AsyncExitStack
from functools import partial

from sluice.core import EgressMode, EgressTarget, EgressWord, Home, egress_address
from sluice.runtime.config import RuntimeConfig
from sluice.runtime.egress import EgressJournal, EgressReporter, JobLimits
from sluice.runtime.egress_relay import EgressRelay
from sluice.runtime.job_network import Relayed
from sluice.runtime.sandbox import Sandbox
from sluice.runtime.taskmanager import Networks, Occupant


def job_networks(  # noqa: PLR0917  # what it makes them of
    stack: AsyncExitStack,
    home: Home,
    config: RuntimeConfig,
    name: str,
    sandbox: Sandbox,
    journal: EgressJournal,
    reporter: EgressReporter,
    mode: EgressMode,
) -> Networks | None:
    """Those of TaskManager ``name``, whose relay ends with ``stack``; None: its jobs share the machine's network."""
    if mode is EgressMode.OFF:
        return None
    find = partial(egress_address, config.egress, home)
    relay = EgressRelay(home.sockets / f"relay-{name}", config.trust_domain, find)
    stack.push_async_callback(relay.close)

    limits = JobLimits(
        journal.open_of, most=config.egress.job_connections, per_second=config.egress.job_connections_per_second
    )

    names = JobLimits(lambda _: 0, most=1, per_second=config.egress.job_connections_per_second)

    def way_out(occupant: Occupant) -> Relayed:
        def ask(host: str, port: int) -> Awaitable[EgressWord]:
            return reporter.decide(EgressTarget(job_id=occupant.job_id, host=host, port=port))

        return Relayed(
            relay,
            occupant.identity,
            ask,
            enforce=mode is EgressMode.ENFORCE,
            limit=partial(limits.objection, occupant.job_id),
            limit_names=partial(names.objection, occupant.job_id),
        )

    return Networks(config.taskmanager.host, sandbox, way_out, journal)
