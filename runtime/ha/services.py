"""What ``ha.mode`` and ``ha.storage`` stand for."""

from __future__ import annotations

from pathlib import Path

from pki.home import Home
from runtime.ha.config import HaConfig, check_ha
from runtime.ha.embedded import EmbeddedElection
from runtime.ha.leadership import LeaderElection
from runtime.ha.storage import HaStorage, LocalStorage

_DIRECTORY = "ha"


def make_election(config: HaConfig, home: Home) -> LeaderElection:
    """The election that ``config`` asks for; raises ``HaMisconfigured``."""
    check_ha(config)
    return EmbeddedElection(home.root / _DIRECTORY)


def make_storage(config: HaConfig, home: Home) -> HaStorage:
    """The storage that ``config`` asks for, by default in ``home``; raises ``StorageUnavailable``."""
    if not config.storage:
        return LocalStorage(home.root / _DIRECTORY / "storage")
    return LocalStorage(Path(config.storage).expanduser().absolute() / config.cluster)
