"""What the handlers of REST reach: the endpoints of this process, and what they share."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.blob.store import BlobStore
from runtime.jobmanager.connect_sessions import ConnectSessions
from runtime.jobmanager.gateways import DispatcherGateway, ResourceManagerInternalGateway


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the overview says besides numbers."""

    sluice_version: str
    spark_version: str
    jobmanager: str
    trust_domain: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """A leading JobManager, as handlers see it; ``default_executors`` is of jobs that do not say."""

    dispatcher: DispatcherGateway
    resource_manager: ResourceManagerInternalGateway
    store: BlobStore
    facts: ClusterFacts
    sessions: ConnectSessions
    default_executors: int
