"""What ``ha.mode`` and ``ha.storage`` stand for."""

from __future__ import annotations

from pathlib import Path

from pki.home import Home
from pki.tls import TlsIdentity
from runtime.ha.config import HaConfig, check_ha
from runtime.ha.embedded import EmbeddedElection
from runtime.ha.leadership import LeaderElection
from runtime.ha.storage import HaStorage, LocalStorage

_DIRECTORY = "ha"


def make_election(config: HaConfig, home: Home, identity: TlsIdentity) -> LeaderElection:
    """The election that ``config`` asks for; raises ``HaMisconfigured``."""
    check_ha(config)
    if config.mode == "zookeeper":
        from runtime.ha.zookeeper import ZooKeeperElection

        return ZooKeeperElection(config, identity)
    return EmbeddedElection(home.root / _DIRECTORY)


def make_storage(config: HaConfig, home: Home) -> HaStorage:
    """The storage that ``config`` asks for, by default in ``home``; raises ``StorageUnavailable``."""
    if not config.storage:
        return LocalStorage(home.root / _DIRECTORY / "storage")
    if "://" in config.storage:
        from runtime.ha.fsspec_storage import FsspecStorage

        return FsspecStorage(f"{config.storage.rstrip('/')}/{config.cluster}")
    return LocalStorage(Path(config.storage).expanduser().absolute() / config.cluster)
