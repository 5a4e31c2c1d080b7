"""Base classes for a fake Dispatcher and a fake ResourceManager: they implement the methods that REST never calls."""

from __future__ import annotations

from sluice.core.egress import EgressMode
from sluice.core.egress_evidence import EgressJob
from sluice.runtime.jobmanager.gateways import (
    DriverLogRequest,
    ExecutorLogRequest,
    JobOrigin,
    SandboxView,
    SlotRequirement,
)
from sluice.runtime.jobmanager.store.job_history import JobHistory
from sluice.runtime.jobmanager.views import JobDetail, JobRecord
from sluice.runtime.messages import (
    EndedUiAnswer,
    EventLogChunk,
    EventLogPiece,
    LogChunk,
    RegistrationAccepted,
    SlotProfile,
    SlotReport,
    TaskManagerRegistration,
    UiRequest,
)
from sluice.runtime.sandbox import IsolationLevel


class PartialDispatcher:
    """Refuses the calls that only JobMasters make."""

    async def job(self, job_id: str) -> JobDetail:
        raise NotImplementedError

    async def job_origin(self, job_id: str) -> JobOrigin:
        found = await self.job(job_id)
        return JobOrigin(job=EgressJob(id=found.id, name=found.name, owner=found.owner))

    async def job_updated(self, detail: JobDetail) -> None:
        raise NotImplementedError

    async def job_ended(self, record: JobRecord) -> None:
        raise NotImplementedError

    async def job_released(self, job_id: str) -> None:
        raise NotImplementedError

    async def job_history(self, job_id: str, history: JobHistory) -> None:
        raise NotImplementedError

    async def driver_placed(self, job_id: str, taskmanager: str) -> None:
        raise NotImplementedError

    async def attempt_failed(self, job_id: str) -> float | None:
        raise NotImplementedError

    async def job_restarting(self, record: JobRecord, delay: float) -> None:
        raise NotImplementedError


class PartialResourceManager:
    """Refuses the calls that only JobMasters and TaskManagers make. Its TaskManagers have no isolation."""

    async def read_event_log(self, taskmanager: str, job_id: str, attempt: int, offset: int) -> EventLogChunk:
        raise NotImplementedError

    async def ended_ui_hosts(self) -> tuple[str, ...]:
        return ()

    async def ended_ui_page(self, taskmanager: str, job_id: str, request: UiRequest) -> EndedUiAnswer:
        raise NotImplementedError

    async def load_ended_ui(self, taskmanager: str, piece: EventLogPiece) -> None:
        raise NotImplementedError

    async def sandbox_of(self, taskmanager: str) -> SandboxView:
        assert taskmanager
        return SandboxView(isolation=IsolationLevel.NONE, egress=EgressMode.OFF)

    async def register(self, registration: TaskManagerRegistration) -> RegistrationAccepted:
        raise NotImplementedError

    async def heartbeat(self, report: SlotReport) -> None:
        raise NotImplementedError

    async def expect_held_slots(self, job_ids: tuple[str, ...]) -> None:
        raise NotImplementedError

    async def held_slots_settled(self, job_id: str) -> None:
        raise NotImplementedError

    async def require_slots(self, requirement: SlotRequirement) -> str:
        raise NotImplementedError

    async def release_slot(self, allocation_id: str) -> None:
        raise NotImplementedError

    async def release_job(self, job_id: str) -> None:
        raise NotImplementedError

    async def too_large(self, size: SlotProfile) -> str:
        raise NotImplementedError

    async def driver_logs(self, taskmanager: str, job_id: str, attempt: int) -> tuple[str, ...]:
        raise NotImplementedError

    async def read_driver_log(self, request: DriverLogRequest) -> LogChunk:
        raise NotImplementedError

    async def read_executor_log(self, request: ExecutorLogRequest) -> LogChunk:
        raise NotImplementedError
