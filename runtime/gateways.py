"""The typed interfaces between endpoints: which methods exist, and which roles may call each.

A Protocol here is what a proxy is generated from (:meth:`sluice.runtime.rpc.RemotePeer.gateway`); the endpoint
that serves it implements the same methods.
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
"""With which a TaskManager ends that was drained and has left: whoever started it should not start it again."""
DRIVER = "driver"
ENDED_UI = "ended-ui"
EGRESS = "egress"
STOP_DRIVER_SECONDS = 120.0
"""How long it is waited for the end of a driver that was told to end; its grace is usually shorter."""
TOKEN_SECONDS = 20.0
"""How long a token is waited for: the gateway decides, and the online authority signs."""
EGRESS_SECONDS = 5.0
"""How long it may take to record and decide; what is not answered until then is told again."""
SHUFFLE_SECONDS = 600.0
"""How long a driver waits for a place for a shuffle; the service's own time-out comes first."""


def jobmaster_endpoint(job_id: str) -> str:
    """The name of the endpoint that masters ``job_id``."""
    return f"jobmaster/{job_id}"


class EgressGateway(Protocol):
    """Served by the JobManager that leads under :data:`EGRESS`."""

    @rpc(allow={Role.TASKMANAGER}, timeout=EGRESS_SECONDS)
    async def report_egress(self, report: EgressReport) -> EgressReceipt:
        """What the boxes of jobs tried, and where they have open connections."""
        ...

    @rpc(allow={Role.TASKMANAGER}, timeout=EGRESS_SECONDS)
    async def decide_egress(self, target: EgressTarget) -> EgressDecision:
        """Whether a job may connect there."""
        ...


class ResourceManagerGateway(Protocol):
    """Served by the JobManager under :data:`RESOURCE_MANAGER`; ``register`` needs no fencing token."""

    @rpc(allow={Role.TASKMANAGER}, unfenced=True)
    async def register(self, registration: TaskManagerRegistration) -> RegistrationAccepted:
        """Introduce a TaskManager; its certificate must carry the name it gives."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def heartbeat(self, report: SlotReport) -> None:
        """I am alive, and this is the state of my slots."""
        ...


class TaskExecutorGateway(Protocol):
    """Served by each TaskManager under :data:`TASK_EXECUTOR`, over the stream it opened to the JobManager."""

    @rpc(allow={Role.JOBMANAGER})
    async def request_slot(self, request: SlotRequest) -> None:
        """Reserve a slot and offer it to the JobMaster; raises ``SlotNotAvailable``."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def free_slot(self, allocation_id: str) -> None:
        """Release a slot; whatever runs in it is ended first."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def drain(self, draining: bool) -> None:
        """Take no more slots from now on, or take them again."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def leave(self) -> None:
        """End this process, which is drained; raises ``SlotNotAvailable`` when slots are held or it is not draining."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=60.0)
    async def launch_executor(self, launch: ExecutorLaunch) -> None:
        """Start an executor in an allocated slot; returns when its process runs."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def give_way(self, job_id: str, executor_id: int) -> None:
        """Let an executor that starts give way to others for a while; one that is not known has ended already."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def kill_executor(self, job_id: str, executor_id: int) -> None:
        """End an executor: SIGTERM, then SIGKILL."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=60.0)
    async def launch_driver(self, launch: DriverLaunch) -> None:
        """Start the driver of an attempt in an allocated slot for drivers; returns when its process runs."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=STOP_DRIVER_SECONDS)
    async def stop_driver(self, job_id: str, attempt: int, grace_seconds: float) -> None:
        """End a driver: SIGTERM, and SIGKILL after the grace; one that is not known has ended already.

        Answers when it has ended. It is ended all the same when nobody waits for the answer any more.
        """
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def driver_logs(self, job_id: str, attempt: int) -> tuple[str, ...]:
        """Which of ``DRIVER_LOGS`` the driver of an attempt has left here so far."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def read_driver_log(self, job_id: str, attempt: int, name: str, offset: int, limit: int) -> LogChunk:
        """A piece of a driver's log, while it runs and afterwards."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def read_event_log(self, job_id: str, attempt: int, offset: int, limit: int) -> EventLogChunk:
        """A piece of Spark's event log of a driver that has ended; an empty one when it has left none."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def release_job(self, job_id: str) -> None:
        """The job is over: end its driver and executors, free its slots, keep only its logs."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def read_executor_log(self, job_id: str, executor_id: int, stream: str, offset: int, limit: int) -> LogChunk:
        """A piece of an executor's ``stdout`` or ``stderr``."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def connections(self, job_id: str) -> Evidence:
        """Mutual TLS connections seen by this process (``job_id`` empty) or by that job's driver and executors here."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def excesses(self, job_id: str) -> tuple[ExecutorExcess, ...]:
        """Which of the job's executors here have exceeded a bound, as is found out now, the latest ones."""
        ...


class EndedUiGateway(Protocol):
    """Served by each TaskManager under :data:`ENDED_UI`: Spark's UI of jobs that have ended, wherever they ran."""

    @rpc(allow={Role.JOBMANAGER}, timeout=20.0)
    async def page(self, job_id: str, request: UiRequest) -> EndedUiAnswer:
        """A page of the UI of a job whose event log is here."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=20.0)
    async def load(self, piece: EventLogPiece) -> None:
        """Take a piece of an event log, in order; raises ``EndedUiRefused``: too many are read, or it does not fit."""
        ...


class JobMasterGateway(Protocol):
    """Served by the JobManager under :func:`jobmaster_endpoint`, one per job, permanently fenced."""

    @rpc(allow={Role.TASKMANAGER})
    async def offer_slot(self, offer: SlotOffer) -> bool:
        """Offer a slot; False when it is no longer wanted and must be freed."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def sign_executor_identity(self, request: CsrToSign) -> SignedChain:
        """Sign the CSR of an executor that this TaskManager was told to launch; anything else is refused."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def executor_exited(self, exit_report: ExecutorExit) -> None:
        """An executor's process has ended."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def sign_driver_identity(self, request: DriverCsr) -> SignedChain:
        """Sign the CSR of the driver that this TaskManager was told to launch; anything else is refused."""
        ...

    @rpc(allow={Role.TASKMANAGER}, timeout=TOKEN_SECONDS)
    async def issue_executor_token(self, executor_id: int, audience: tuple[str, ...]) -> JobToken:
        """A token of an executor that this TaskManager was told to launch, and that runs; anything else is refused."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, timeout=TOKEN_SECONDS)
    async def issue_driver_token(self, attempt: int, audience: tuple[str, ...]) -> JobToken:
        """A token of the driver, while this attempt goes on; raises ``TokenRefused``, or ``PeerRefused`` afterwards."""
        ...

    @rpc(allow={Role.TASKMANAGER, Role.DRIVER}, timeout=TOKEN_SECONDS)
    async def token_keys(self) -> TokenKeys:
        """The public keys with which tokens are verified."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def driver_process_ended(self, end: DriverProcessEnd) -> None:
        """The process of the driver has ended on this TaskManager."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def executor_listens(self, executor_id: int, ports: AssignedPorts) -> None:
        """An executor that this TaskManager was told to launch will listen on these ports of its host."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def driver_listens(self, attempt: int, ports: AssignedPorts) -> None:
        """The driver that this TaskManager was told to launch will listen on these ports of its host."""
        ...

    @rpc(allow={Role.TASKMANAGER})
    async def listeners_on(self, port: PortOrAny) -> tuple[str, ...]:
        """The hosts on which processes of this job, or shuffle workers, listen on ``port``; asked for a box of it."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def register_driver(self, attempt: int, pid: int, running: RunningDriver | None) -> DriverAssignment:
        """The driver process is up and wants its work; or it has it already, and says what it is ``running``.

        Raises ``PeerRefused`` when this is not its JobMaster, ``LeadershipLost`` when it does not lead, and
        ``MailboxFull`` when it is asked too early.
        """
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, timeout=60.0)
    async def driver_secrets(self, attempt: int) -> tuple[GivenSecret, ...]:
        """The secrets of the job; raises what there is to tell its owner when they are not given."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def renew_lease(self, attempt: int) -> None:
        """The driver may go on; raises ``LeadershipLost`` or ``PeerRefused`` when it must end."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def spark_started(self, registration: SparkRegistration) -> None:
        """The SparkContext is up; executors may be launched."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def set_executor_targets(self, targets: ExecutorTargets) -> None:
        """State how many executors Spark wants from now on."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def kill_executors(self, executor_ids: tuple[int, ...]) -> None:
        """Spark gives these executors up."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, oneway=True)
    async def report_progress(self, progress: JobProgress) -> None:
        """Counters for display; the latest wins."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, timeout=SHUFFLE_SECONDS)
    async def register_shuffle(self, shuffle_id: int, partitions: int) -> ShuffleAllocation:
        """Get workers for a shuffle, by Spark's number; repeated calls get the same answer.

        Raises ``NoShuffleService`` or ``ShuffleQuotaExceeded``.
        """
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def locate_shuffle(self, shuffle_id: int) -> tuple[OutputLocation, ...]:
        """Locate the outputs of a registered shuffle: workers may have moved, or handed them over.

        Raises ``NoShuffleService``.
        """
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def unregister_shuffle(self, shuffle_id: int) -> None:
        """The shuffle is not needed any more; one that is not known is no error."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, oneway=True)
    async def shuffle_workers_lost(self, shuffle_id: int, workers: tuple[str, ...]) -> None:
        """These workers of the shuffle cannot be reached; a hint."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, oneway=True)
    async def report_stages(self, stages: StageTable) -> None:
        """Spark's stages for display; the latest wins."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def report_streaming(self, state: StreamingState) -> None:
        """A batch was committed, or a streaming query began or ended."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True, oneway=True)
    async def report_task_failure(self, failure: TaskFailure) -> None:
        """A task failed."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def driver_succeeded(self) -> None:
        """The pipeline has succeeded, and Spark has stopped in order; the JVM still ends, which is reported then."""
        ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def driver_finished(self, result: DriverExit) -> None:
        """The pipeline's Python process has ended and its JVM with it."""
        ...


class DriverGateway(Protocol):
    """Served by the driver agent under :data:`DRIVER`, over the stream it opened to the JobManager."""

    @rpc(allow={Role.JOBMANAGER})
    async def executor_exited(self, exit_report: ExecutorExit) -> None:
        """Tell Spark why an executor is gone."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def decommission_executors(self, executor_ids: tuple[int, ...], reason: str) -> None:
        """Have Spark give these executors no more tasks, take their blocks elsewhere, and end them."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def cancel(self, grace_seconds: float) -> None:
        """Cancel all Spark jobs, then end the driver within ``grace_seconds``."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def stop_streaming(self, grace_seconds: float) -> None:
        """Stop all streaming queries, each after its present batch or, after ``grace_seconds``, in its middle."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def connections(self) -> Evidence:
        """Mutual TLS connections that the driver's JVM made or accepted."""
        ...

    @rpc(allow={Role.JOBMANAGER})
    async def connect_port(self) -> int:
        """The port of this session's Spark Connect server on the driver's host; 0: it does not listen yet."""
        ...

    @rpc(allow={Role.JOBMANAGER}, timeout=15.0)
    async def ui(self, request: UiRequest) -> UiPage:
        """A page of Spark's UI; status 502 to 504 when there is none."""
        ...
