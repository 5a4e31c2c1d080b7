"""The services that all JobMasters of a process use."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sluice.pki.tls import ConnectionLog
from sluice.runtime.checkpoint import CheckpointPlaces
from sluice.runtime.jobmanager.attempt.services.driver import DriverLauncher
from sluice.runtime.jobmanager.attempt.services.job_identities import JobIdentities
from sluice.runtime.jobmanager.attempt.services.job_secrets import Record
from sluice.runtime.jobmanager.attempt.services.job_tokens import JobTokens
from sluice.runtime.jobmanager.attempt.settings import AttemptSettings
from sluice.runtime.jobmanager.gateways import DispatcherGateway, ResourceManagerInternalGateway
from sluice.runtime.jobmanager.secrets import SecretStore
from sluice.runtime.jobmanager.store import CheckpointStore
from sluice.runtime.shuffle.control_plane import ShuffleManagerLink


@dataclass(frozen=True, slots=True)
class JobServices:
    """Services that every JobMaster of a process uses."""

    settings: AttemptSettings
    drivers: DriverLauncher
    identities: JobIdentities
    resource_manager: ResourceManagerInternalGateway
    dispatcher: DispatcherGateway
    blob_address: tuple[str, int]
    connections: ConnectionLog
    checkpoints: CheckpointStore
    places: CheckpointPlaces
    clock: Callable[[], float] = time.time
    check_leadership: Callable[[], None] = lambda: None
    """Raises ``LeadershipLost`` when this process is not, or no longer, the leader."""
    shuffle: ShuffleManagerLink | None = None
    """The connection to the shuffle service; None when it is not used."""
    tokens: JobTokens | None = None
    """Tokens of jobs; None without a gateway that decides about them."""
    secrets: SecretStore | None = None
    record: Record | None = None
    """Writes to the audit log; None: no job gets a secret."""
