"""The context of REST handlers: the endpoints of this process and shared objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sluice.runtime.blob import BlobStore
from sluice.runtime.config import RuntimeConfig
from sluice.runtime.jobmanager import DispatcherGateway, EgressInternalGateway, ResourceManagerInternalGateway
from sluice.runtime.jobmanager.dispatcher import ClusterDiagnostics, ConnectSessions, JobFeed
from sluice.runtime.jobmanager.secrets import SecretStore
from sluice.runtime.receipts import ReceiptIssuer
from sluice.runtime.rest.protocol import Streams
from sluice.runtime.rest.submissions import ArtifactStores
from sluice.runtime.rest.trust_facts import TrustFacts, unreported_trust
from sluice.runtime.shuffle.control_plane import ShuffleManagerLink


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts in the overview that are not numbers."""

    sluice_version: str
    spark_version: str
    jobmanager: str
    trust_domain: str


@dataclass(frozen=True, slots=True)
class Term:
    """The leader's term. ``since`` is in epoch milliseconds."""

    name: str
    epoch: int
    since: int


async def unknown_standbys() -> tuple[str, ...] | None:
    """None: the standbys of an election that does not report them."""
    return None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The leading JobManager, for handlers.

    ``default_executors`` is the number of executors of jobs that do not set it. ``egress`` knows the jobs' connections
    to the outside. ``receipts`` is None if no gateway records receipts, ``shuffle`` is None without the shuffle
    service. ``trust`` returns the trusted authorities, ``standbys`` the JobManagers that would take over.
    """

    dispatcher: DispatcherGateway
    resource_manager: ResourceManagerInternalGateway
    store: BlobStore
    facts: ClusterFacts
    sessions: ConnectSessions
    default_executors: int
    leader: Term
    config: RuntimeConfig
    artifacts: ArtifactStores
    diagnostics: ClusterDiagnostics
    feed: JobFeed
    streams: Streams
    secrets: SecretStore
    egress: EgressInternalGateway | None = None
    receipts: ReceiptIssuer | None = None
    shuffle: ShuffleManagerLink | None = None
    trust: Callable[[], TrustFacts] = unreported_trust
    standbys: Callable[[], Awaitable[tuple[str, ...] | None]] = unknown_standbys
