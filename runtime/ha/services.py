"""Creates the election and the storage that ``ha.mode`` and ``ha.storage`` select."""

from __future__ import annotations

import math
from pathlib import Path

from sluice.core import Home, KubernetesMisconfigured, cluster_url, pod_namespace
from sluice.pki.tls import TlsIdentity
from sluice.runtime.ha.config import HaConfig, check_ha
from sluice.runtime.ha.embedded import EmbeddedElection
from sluice.runtime.ha.errors import HaMisconfigured
from sluice.runtime.ha.leadership import LeaderElection
from sluice.runtime.ha.storage import HaStorage, LocalStorage

_DIRECTORY = "ha"


def make_election(config: HaConfig, home: Home, identity: TlsIdentity) -> LeaderElection:
    """Return the election that ``config`` selects; raises ``HaMisconfigured``."""
    check_ha(config)
    if config.mode == "zookeeper":
        from sluice.runtime.ha.zookeeper import ZooKeeperElection

        return ZooKeeperElection(config, identity)
    if config.mode == "kubernetes":
        return _kubernetes(config, identity.spiffe_id.name)
    return EmbeddedElection(home.root / _DIRECTORY, identity.spiffe_id.name)


def _kubernetes(config: HaConfig, name: str) -> LeaderElection:
    from sluice.runtime.ha.kubernetes import KubernetesClient, KubernetesElection

    account = Path(config.kubernetes_account)
    url, namespace = config.kubernetes_api, config.kubernetes_namespace
    try:
        url = url or cluster_url()
    except KubernetesMisconfigured as error:
        raise HaMisconfigured(error.what, "set ha.kubernetes_api") from error
    try:
        namespace = namespace or pod_namespace(account)
    except KubernetesMisconfigured as error:
        raise HaMisconfigured(error.what, "set ha.kubernetes_namespace") from error
    client = KubernetesClient(url, namespace, token_file=account / "token", ca_file=account / "ca.crt")
    return KubernetesElection(client, cluster=config.cluster, name=name, duration=math.ceil(config.session_timeout))


def make_storage(config: HaConfig, home: Home) -> HaStorage:
    """Return the storage that ``config`` selects, by default below ``home``; raises ``StorageUnavailable``."""
    if not config.storage:
        return LocalStorage(home.root / _DIRECTORY / "storage")
    if "://" in config.storage:
        from sluice.runtime.ha.fsspec_storage import FsspecStorage

        return FsspecStorage(f"{config.storage.rstrip('/')}/{config.cluster}")
    return LocalStorage(Path(config.storage).expanduser().absolute() / config.cluster)
