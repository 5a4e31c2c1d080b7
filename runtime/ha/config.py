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
"""A subject has at most 64 characters: a longer name would be cut, and could be another's."""
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}")


class HaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a leader is elected, and where jobs are stored for the next one. Times are in seconds."""

    mode: Literal["embedded", "zookeeper", "kubernetes"] = "embedded"
    """``embedded``: JobManagers of one home; ``zookeeper``: of any machines; ``kubernetes``: of one namespace."""
    storage: str = ""
    """Directory, or URL that fsspec knows, for submissions and results; empty: in the home (``embedded`` only)."""
    cluster: str = "default"
    """Name of this cluster in the ZooKeeper ensemble and the storage."""
    session_timeout: _Seconds = 10.0
    """Seconds after which a silent leader is replaced."""
    lease: _Seconds = 20.0
    """Seconds that a driver keeps running without a leading JobManager. A new leader that
    takes over within this time continues with it, so it should be 10 s longer than ``session_timeout``. The job of a
    driver that is lost starts again after this time."""
    zookeeper_hosts: tuple[str, ...] = ()
    """``host:port`` of each server, the port being for TLS."""
    zookeeper_root: str = "/sluice"
    jobmanagers: tuple[str, ...] = ()
    """Names of the JobManagers of this cluster: they may write in ZooKeeper and forward REST to the leader, and
    TaskManagers trust only them."""
    kubernetes_api: str = ""
    """``https://host:port`` of the API server; empty: that of the cluster in which this pod runs."""
    kubernetes_namespace: str = ""
    """Empty: that of this pod."""
    kubernetes_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """Directory with ``token``, ``ca.crt`` and ``namespace`` of the service account."""


def check_ha(config: HaConfig) -> HaConfig:
    """``config`` when its values go together; raises :class:`HaMisconfigured` naming the key."""
    if not _CLUSTER.fullmatch(config.cluster):
        raise HaMisconfigured(f"ha.cluster is {config.cluster!r}", "1 to 40 lower-case letters, digits and '-'")
    for name in config.jobmanagers:
        if not _NAME.fullmatch(name):
            raise HaMisconfigured(
                f"ha.jobmanagers has {name[:80]!r}", "names of at most 52 characters: ZooKeeper knows them by a subject"
            )
    if config.mode == "zookeeper":
        _check_zookeeper(config)
    if config.mode == "kubernetes":
        _check_kubernetes(config)
    return config


def _check_kubernetes(config: HaConfig) -> None:
    if not config.storage:
        raise HaMisconfigured("ha.mode is 'kubernetes' without ha.storage", "a directory or URL that all pods share")
    if config.kubernetes_api and not _API.fullmatch(config.kubernetes_api):
        raise HaMisconfigured(f"ha.kubernetes_api is {config.kubernetes_api[:120]!r}", "as in https://host:6443")
    if config.kubernetes_namespace and not _NAMESPACE.fullmatch(config.kubernetes_namespace):
        raise HaMisconfigured(f"ha.kubernetes_namespace is {config.kubernetes_namespace[:80]!r}")


def _check_zookeeper(config: HaConfig) -> None:
    if not config.zookeeper_hosts:
        raise HaMisconfigured("ha.mode is 'zookeeper' without ha.zookeeper_hosts", 'as in ["zk1:2281", "zk2:2281"]')
    for host in config.zookeeper_hosts:
        if not _HOST.fullmatch(host) or not 0 < int(host.rpartition(":")[2]) < 65536:
            raise HaMisconfigured(f"ha.zookeeper_hosts has {host!r}", "host:port, the port being for TLS")
    if not config.storage:
        raise HaMisconfigured("ha.mode is 'zookeeper' without ha.storage", "a directory or URL that all machines share")
    if not _ROOT.fullmatch(config.zookeeper_root):
        raise HaMisconfigured(f"ha.zookeeper_root is {config.zookeeper_root!r}", "a path such as /sluice")
    if not 1 <= len(config.jobmanagers) <= MAX_JOBMANAGERS:
        raise HaMisconfigured(
            "ha.mode is 'zookeeper' without ha.jobmanagers", 'the names of all of them, as in ["jobmanager-1"]'
        )
