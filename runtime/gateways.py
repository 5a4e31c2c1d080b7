"""The typed interfaces between endpoints: their methods, and which roles may call each method.

Proxies are generated from these Protocols (:meth:`sluice.runtime.rpc.RemotePeer.gateway`); the endpoint that serves a
Protocol implements its methods.
"""

from __future__ import annotations

from typing import Protocol

from sluice.core import EgressDecision, EgressReceipt, EgressReport, EgressTarget
from sluice.pki import Role
from sluice.pki.issuing import SignedChain
from sluice.runtime.messages import (
    AssignedPorts,
    CsrToSign,
    DriverAssignment,
    DriverCsr,
    DriverExit,
    DriverLaunch,
    DriverProcessEnd,
    EndedUiAnswer,
    EventLogChunk,
    EventLogPiece,
    Evidence,
    ExecutorExcess,
    ExecutorExit,
    ExecutorLaunch,
    ExecutorTargets,
    GivenSecret,
    JobProgress,
    JobToken,
    LogChunk,
    OutputLocation,
    PortOrAny,
    RegistrationAccepted,
    RunningDriver,
    ShuffleAllocation,
    SlotOffer,
    SlotReport,
    SlotRequest,
    SparkRegistration,
    StageTable,
    StreamingState,
    TaskFailure,
    TaskManagerRegistration,
    TokenKeys,
    UiPage,
    UiRequest,
)
from sluice.runtime.rpc import rpc

RESOURCE_MANAGER = "resourcemanager"
TASK_EXECUTOR = "taskexecutor"
DRAINED_EXIT_CODE = 10
"""Exit code of a TaskManager that was drained and has left; it should not be started again."""
DRIVER = "driver"
ENDED_UI = "ended-ui"
EGRESS = "egress"
STOP_DRIVER_SECONDS = 120.0
"""Timeout for stopping a driver; its grace period is usually shorter."""
TOKEN_SECONDS = 20.0
"""Timeout for issuing a token: the gateway decides, and the online authority signs."""
EGRESS_SECONDS = 5.0
"""Timeout for recording and deciding; reports without an answer are sent again."""
SHUFFLE_SECONDS = 600.0
"""Timeout of a driver for a shuffle's allocation; the service's own timeout is shorter."""


def jobmaster_endpoint(job_id: str) -> str:
    """The name of the JobMaster endpoint of ``job_id``."""
    return f"jobmaster/{job_id}"


class EgressGateway(Protocol):
    """Served by the leading JobManager under :data:`EGRESS`."""

    @rpc(allow={Role.TASKMANAGER}, timeout=EGRESS_SECONDS)
    async def report_egress(self, report: EgressReport) -> EgressReceipt:
        """Report the outbound connections that jobs have attempted, and those that are open."""
        ...

    @rpc(allow={Role.TASKMANAGER}, timeout=EGRESS_SECONDS)
    async def decide_egress(self, target: EgressTarget) -> EgressDecision:
        """Decide whether a job may connect to ``target``."""
        ...


class ResourceManagerGateway(Protocol):
    """Served by the JobManager under :data:`RESOURCE_MANAGER`; ``register`` needs no fencing token."""

    @rpc(allow={Role.TASKMANAGER}, unfenced=True)
    async def register(self, registration: TaskManagerRegistration) -> RegistrationAccepted:
        """Register a TaskManager; its name must be the one in its certificate."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def heartbeat(self, report: SlotReport) -> None:
        """Report a sign of life and the state of the TaskManager's slots."""
        ...


class TaskExecutorGateway(Protocol):
    """Served by each TaskManager under :data:`TASK_EXECUTOR`, over the stream it opened to the JobManager."""

    @rpc(allow={Role.JOBMANAGER})
    async def request_slot(self, request: SlotRequest) -> None:
        """Reserve a slot and offer it to the JobMaster; raises ``SlotNotAvailable``."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def free_slot(self, allocation_id: str) -> None:
        """Release a slot; the process in it is ended first."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def drain(self, draining: bool) -> None:
        """Start or stop draining: a draining TaskManager accepts no more slot requests."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def leave(self) -> None:
        """End this drained process; raises ``SlotNotAvailable`` when slots are held or it is not draining."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=60.0)
    async def launch_executor(self, launch: ExecutorLaunch) -> None:
        """Start an executor in an allocated slot; return when its process runs."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def give_way(self, job_id: str, executor_id: int) -> None:
        """Lower the priority of a starting executor for a while. An unknown executor has ended already."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def kill_executor(self, job_id: str, executor_id: int) -> None:
        """End an executor with SIGTERM, then SIGKILL."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=60.0)
    async def launch_driver(self, launch: DriverLaunch) -> None:
        """Start the driver of an attempt in an allocated slot for drivers; return when its process runs."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=STOP_DRIVER_SECONDS)
    async def stop_driver(self, job_id: str, attempt: int, grace_seconds: float) -> None:
        """End a driver with SIGTERM, and SIGKILL after the grace period. An unknown driver has ended already.

        Returns when the driver has ended. The driver is ended even if the caller stops waiting.
        """
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def driver_logs(self, job_id: str, attempt: int) -> tuple[str, ...]:
        """Return which of ``DRIVER_LOGS`` the driver of an attempt has written here so far."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def read_driver_log(self, job_id: str, attempt: int, name: str, offset: int, limit: int) -> LogChunk:
        """Read a chunk of a driver's log, while it runs or afterwards."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def read_event_log(self, job_id: str, attempt: int, offset: int, limit: int) -> EventLogChunk:
        """Read a chunk of the Spark event log of an ended driver; an empty one when there is no log."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def release_job(self, job_id: str) -> None:
        """Clean up after a job: end its driver and executors, free its slots, keep only its logs."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def read_executor_log(self, job_id: str, executor_id: int, stream: str, offset: int, limit: int) -> LogChunk:
        """Read a chunk of an executor's ``stdout`` or ``stderr``."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def connections(self, job_id: str) -> Evidence:
        """Mutual TLS connections observed by this process (``job_id`` empty) or by that job's processes here."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def excesses(self, job_id: str) -> tuple[ExecutorExcess, ...]:
        """Check which of the job's executors here have exceeded a resource limit; return the latest ones."""
        ...


class EndedUiGateway(Protocol):
    """Served by each TaskManager under :data:`ENDED_UI`: Spark UIs of ended jobs, wherever they ran."""

    @rpc(allow={Role.JOBMANAGER}, timeout=20.0)
    async def page(self, job_id: str, request: UiRequest) -> EndedUiAnswer:
        """Return a page of the UI of a job whose event log is loaded here."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=20.0)
    async def load(self, piece: EventLogPiece) -> None:
        """Take the next chunk of an event log; raises ``EndedUiRefused`` if too many are loading or it does not fit."""
        ...


class JobMasterGateway(Protocol):
    """Served by the JobManager under :func:`jobmaster_endpoint`, one per job, permanently fenced."""

    @rpc(allow={Role.TASKMANAGER})
    async def offer_slot(self, offer: SlotOffer) -> bool:
        """Offer a slot; False when it is no longer wanted and must be freed."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def sign_executor_identity(self, request: CsrToSign) -> SignedChain:
        """Sign the CSR of an executor that the calling TaskManager was told to launch; refuse any other."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def executor_exited(self, exit_report: ExecutorExit) -> None:
        """Report that an executor's process has ended."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def sign_driver_identity(self, request: DriverCsr) -> SignedChain:
        """Sign the CSR of the driver that the calling TaskManager was told to launch; refuse any other."""
        ...

    @rpc(allow={Role.TASKMANAGER}, timeout=TOKEN_SECONDS)
    async def issue_executor_token(self, executor_id: int, audience: tuple[str, ...]) -> JobToken:
        """Issue a token for a running executor that the calling TaskManager was told to launch; refuse any other."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, timeout=TOKEN_SECONDS)
    async def issue_driver_token(self, attempt: int, audience: tuple[str, ...]) -> JobToken:
        """Issue a token for the driver of the current attempt; raises ``TokenRefused``, or ``PeerRefused`` after it."""
        ...

    @rpc(allow={Role.TASKMANAGER, Role.DRIVER}, timeout=TOKEN_SECONDS)
    async def token_keys(self) -> TokenKeys:
        """Return the public keys that verify tokens."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def driver_process_ended(self, end: DriverProcessEnd) -> None:
        """Report that the driver's process has ended on the calling TaskManager."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def executor_listens(self, executor_id: int, ports: AssignedPorts) -> None:
        """Report the ports on which an executor that the caller was told to launch will listen on its host."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def driver_listens(self, attempt: int, ports: AssignedPorts) -> None:
        """Report the ports on which the driver that the caller was told to launch will listen on its host."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def listeners_on(self, port: PortOrAny) -> tuple[str, ...]:
        """Return the hosts on which this job's processes, or shuffle workers, listen on ``port``, for a box."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def register_driver(self, attempt: int, pid: int, running: RunningDriver | None) -> DriverAssignment:
        """Register the driver process and get its work. A driver that has its work already passes ``running``.

        Raises ``PeerRefused`` when this is not its JobMaster, ``LeadershipLost`` when this JobMaster does not lead, and
        ``MailboxFull`` when the driver asks too early.
        """
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, timeout=60.0)
    async def driver_secrets(self, attempt: int) -> tuple[GivenSecret, ...]:
        """Return the secrets of the job; raises an error for the job's owner when they are not given."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def renew_lease(self, attempt: int) -> None:
        """Renew the driver's lease; raises ``LeadershipLost`` or ``PeerRefused`` when the driver must end."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def spark_started(self, registration: SparkRegistration) -> None:
        """Report that the SparkContext is up: executors can be launched."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def set_executor_targets(self, targets: ExecutorTargets) -> None:
        """Set how many executors Spark wants from now on."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def kill_executors(self, executor_ids: tuple[int, ...]) -> None:
        """End executors that Spark no longer wants."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, oneway=True)
    async def report_progress(self, progress: JobProgress) -> None:
        """Report counters for display; the latest report replaces earlier ones."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, timeout=SHUFFLE_SECONDS)
    async def register_shuffle(self, shuffle_id: int, partitions: int) -> ShuffleAllocation:
        """Get workers for a shuffle with Spark's number ``shuffle_id``. Idempotent.

        Raises ``NoShuffleService`` or ``ShuffleQuotaExceeded``.
        """
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def locate_shuffle(self, shuffle_id: int) -> tuple[OutputLocation, ...]:
        """Return where the outputs of a registered shuffle are: workers may have moved, or handed them over.

        Raises ``NoShuffleService``.
        """
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def unregister_shuffle(self, shuffle_id: int) -> None:
        """Release a shuffle that is not needed any more; ignore an unknown one."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, oneway=True)
    async def shuffle_workers_lost(self, shuffle_id: int, workers: tuple[str, ...]) -> None:
        """Report, as a hint, that these workers of the shuffle cannot be reached."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, oneway=True)
    async def report_stages(self, stages: StageTable) -> None:
        """Report Spark's stages for display; the latest report replaces earlier ones."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def report_streaming(self, state: StreamingState) -> None:
        """Report that a batch was committed, or that a streaming query started or ended."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, oneway=True)
    async def report_task_failure(self, failure: TaskFailure) -> None:
        """Report that a task failed."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def driver_succeeded(self) -> None:
        """Report that the pipeline succeeded and Spark stopped cleanly; the end of the JVM is reported later."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def driver_finished(self, result: DriverExit) -> None:
        """Report that the pipeline's Python process and its JVM have ended."""
        ...


class DriverGateway(Protocol):
    """Served by the driver agent under :data:`DRIVER`, over the stream it opened to the JobManager."""

    @rpc(allow={Role.JOBMANAGER})
    async def executor_exited(self, exit_report: ExecutorExit) -> None:
        """Report to Spark why an executor is gone."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def decommission_executors(self, executor_ids: tuple[int, ...], reason: str) -> None:
        """Make Spark decommission these executors: give them no more tasks, migrate their blocks, and end them."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def cancel(self, grace_seconds: float) -> None:
        """Cancel all Spark jobs, then end the driver within ``grace_seconds``."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def stop_streaming(self, grace_seconds: float) -> None:
        """Stop all streaming queries, each after its current batch, or in the middle of it after ``grace_seconds``."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def connections(self) -> Evidence:
        """Return the mutual TLS connections that the driver's JVM opened or accepted."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def connect_port(self) -> int:
        """Return the port of this session's Spark Connect server on the driver's host; 0: it does not listen yet."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=15.0)
    async def ui(self, request: UiRequest) -> UiPage:
        """Return a page of Spark's UI, with status 502 to 504 when there is none."""
        ...
