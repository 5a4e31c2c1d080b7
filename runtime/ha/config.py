"""Settings of high availability (section ``[ha]`` of ``sluice.toml``)."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from sluice.runtime.ha.errors import HaMisconfigured

SHORTEST_SESSION_SECONDS = 2.0
LONGEST_SESSION_SECONDS = 300.0
MAX_JOBMANAGERS = 16

_Seconds = Annotated[float, msgspec.Meta(ge=SHORTEST_SESSION_SECONDS, le=LONGEST_SESSION_SECONDS)]
_ROOT = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9_.-]{0,63}){1,8}")
_CLUSTER = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_API = re.compile(r"https://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,51}")
"""At most 52 characters, because a certificate subject has at most 64: a longer name would be truncated."""
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")


class HaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a leader is elected, and where its jobs are stored for the next leader. Times are in seconds."""

    mode: Literal["embedded", "zookeeper", "kubernetes"] = "embedded"
    """Which JobManagers take part in the election. ``embedded``: those of one home; ``zookeeper``: those of any
    machines; ``kubernetes``: those of one namespace."""
    storage: str = ""
    """Directory or fsspec URL for submissions and results; empty: a directory in the home (``embedded`` only)."""
    cluster: str = "default"
    """Name of this cluster in the ZooKeeper ensemble and the storage."""
    session_timeout: _Seconds = 10.0
    """Seconds after which a silent leader is replaced."""
    lease: _Seconds = 20.0
    """Seconds that a driver keeps running without a leading JobManager. A new leader that takes over within this time
    continues with the driver, so set it 10 s longer than ``session_timeout``. When a driver is lost, its job starts
    again after this time."""
    zookeeper_hosts: tuple[str, ...] = ()
    """``host:port`` of each ZooKeeper server; the port is its TLS port."""
    zookeeper_root: str = "/sluice"
    jobmanagers: tuple[str, ...] = ()
    """Names of the JobManagers of this cluster. Only they may write to ZooKeeper and forward REST requests to the
    leader, and TaskManagers trust only them."""
    kubernetes_api: str = ""
    """``https://host:port`` of the API server; empty: the API server of the cluster that this pod runs in."""
    kubernetes_namespace: str = ""
    """Namespace of the Lease and the ConfigMap; empty: the namespace of this pod."""
    kubernetes_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """Directory with ``token``, ``ca.crt`` and ``namespace`` of the service account."""


def check_ha(config: HaConfig) -> HaConfig:
    """Return ``config`` when its values are consistent; raise :class:`HaMisconfigured` naming the key otherwise."""
    if not _CLUSTER.fullmatch(config.cluster):
        raise HaMisconfigured(f"ha.cluster is {config.cluster!r}", "use 1 to 40 lower-case letters, digits and '-'")
    for name in config.jobmanagers:
        if not _NAME.fullmatch(name):
            raise HaMisconfigured(
                f"ha.jobmanagers has {name[:80]!r}",
                "use at most 52 characters: the name is part of a certificate subject",
            )
    if config.mode == "zookeeper":
        _check_zookeeper(config)
    if config.mode == "kubernetes":
        _check_kubernetes(config)
    return config


def _check_kubernetes(config: HaConfig) -> None:
    if not config.storage:
        raise HaMisconfigured("ha.mode is 'kubernetes' without ha.storage", "set a directory or URL shared by all pods")
    if config.kubernetes_api and not _API.fullmatch(config.kubernetes_api):
        raise HaMisconfigured(
            f"ha.kubernetes_api is {config.kubernetes_api[:120]!r}", "set a URL such as https://host:6443"
        )
    if config.kubernetes_namespace and not _NAMESPACE.fullmatch(config.kubernetes_namespace):
        raise HaMisconfigured(
            f"ha.kubernetes_namespace is {config.kubernetes_namespace[:80]!r}",
            "use 1 to 63 lower-case letters, digits and '-'",
        )


def _check_zookeeper(config: HaConfig) -> None:
    if not config.zookeeper_hosts:
        raise HaMisconfigured(
            "ha.mode is 'zookeeper' without ha.zookeeper_hosts", 'list the servers, as in ["zk1:2281", "zk2:2281"]'
        )
    for host in config.zookeeper_hosts:
        if not _HOST.fullmatch(host) or not 0 < int(host.rpartition(":")[2]) < 65536:
            raise HaMisconfigured(f"ha.zookeeper_hosts has {host!r}", "use host:port with the server's TLS port")
    if not config.storage:
        raise HaMisconfigured(
            "ha.mode is 'zookeeper' without ha.storage", "set it to a directory or URL that all machines share"
        )
    if not _ROOT.fullmatch(config.zookeeper_root):
        raise HaMisconfigured(f"ha.zookeeper_root is {config.zookeeper_root!r}", "use a path such as /sluice")
    if not 1 <= len(config.jobmanagers) <= MAX_JOBMANAGERS:
        raise HaMisconfigured(
            "ha.mode is 'zookeeper' without ha.jobmanagers", 'list the names of all JobManagers, as in ["jobmanager-1"]'
        )
