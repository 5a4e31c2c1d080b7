"""The leading JobManager and its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from sluice.runtime.messages import Message
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol import Call, NoQuery, Route

HIDDEN = "(hidden)"

_SECRET = re.compile(r"secret|password|passwd|token|credential|private|access.?key|api.?key", re.IGNORECASE)


class Leader(Message, frozen=True):
    """The leading JobManager and its standbys.

    ``epoch`` rises with each change of the leader. ``since`` is in epoch milliseconds. ``standbys`` is null if the
    leader election does not report them (Kubernetes, or no answer from ZooKeeper).
    """

    name: str
    identity: str
    epoch: int
    since: int
    standbys: tuple[str, ...] | None


class Configuration(Message, frozen=True):
    """The sections of ``sluice.toml`` that the leader uses. Values that look like secrets are hidden."""

    config: dict[str, Any]


async def leader_of(cluster: Cluster) -> Leader:
    """Get the leading JobManager and the standbys."""
    standbys = await cluster.standbys()
    return Leader(
        name=cluster.leader.name,
        identity=cluster.facts.jobmanager,
        epoch=cluster.leader.epoch,
        since=cluster.leader.since,
        standbys=None if standbys is None else tuple(each for each in standbys if each != cluster.leader.name),
    )


async def get_leader(cluster: Cluster, call: Call[NoQuery]) -> Leader:
    """Get the leading JobManager and the standbys."""
    return await leader_of(cluster)


async def get_config(cluster: Cluster, call: Call[NoQuery]) -> Configuration:
    """Get the configuration of the leader, defaults included."""
    return Configuration(config=without_secrets(msgspec.to_builtins(cluster.config)))


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``settings``, with the values of settings hidden whose names look like secrets."""
    return {
        name: HIDDEN
        if _SECRET.search(name) and isinstance(value, str) and value
        else without_secrets(value)
        if isinstance(value, Mapping)
        else value
        for name, value in settings.items()
    }


ROUTES = (
    Route("GET", "/v1/leader", "leader.read", get_leader),
    Route("GET", "/v1/config", "config.read", get_config),
)
