from .base import Message as Message
from .drivers import (
    DRIVER_LOGS as DRIVER_LOGS,
    MAX_DRIVER_END_CHARACTERS as MAX_DRIVER_END_CHARACTERS,
    MAX_KNOWN_SHUFFLES as MAX_KNOWN_SHUFFLES,
    DriverAssignment as DriverAssignment,
    DriverCsr as DriverCsr,
    DriverExit as DriverExit,
    DriverLaunch as DriverLaunch,
    DriverProcessEnd as DriverProcessEnd,
    KnownShuffle as KnownShuffle,
    RunningDriver as RunningDriver,
)
from .executors import (
    GIVE_WAY_SECONDS as GIVE_WAY_SECONDS,
    MAX_EXECUTOR_CORES as MAX_EXECUTOR_CORES,
    MAX_EXECUTOR_MEMORY_MB as MAX_EXECUTOR_MEMORY_MB,
    MAX_LISTENER_HOSTS as MAX_LISTENER_HOSTS,
    CsrToSign as CsrToSign,
    ExecutorExcess as ExecutorExcess,
    ExecutorExit as ExecutorExit,
    ExecutorLaunch as ExecutorLaunch,
    ExecutorTarget as ExecutorTarget,
    ExecutorTargets as ExecutorTargets,
    SparkRegistration as SparkRegistration,
)
from .jobs import (
    Admission as Admission,
    Archive as Archive,
    BlobRef as BlobRef,
    GivenSecret as GivenSecret,
    JobKind as JobKind,
    JobState as JobState,
    JobSubmission as JobSubmission,
    SecretReference as SecretReference,
)
from .progress import (
    JobProgress as JobProgress,
    StageReport as StageReport,
    StageState as StageState,
    StageTable as StageTable,
    StreamingQuery as StreamingQuery,
    StreamingState as StreamingState,
    TaskFailure as TaskFailure,
)
from .reading import (
    MAX_EVENT_LOG_CHUNK_BYTES as MAX_EVENT_LOG_CHUNK_BYTES,
    ConnectionEvidence as ConnectionEvidence,
    EndedUiAnswer as EndedUiAnswer,
    EndedUiState as EndedUiState,
    EventLogChunk as EventLogChunk,
    EventLogPiece as EventLogPiece,
    Evidence as Evidence,
    LogChunk as LogChunk,
    UiPage as UiPage,
    UiRequest as UiRequest,
)
from .shuffles import (
    OutputLocation as OutputLocation,
    Seal as Seal,
    ShuffleAllocation as ShuffleAllocation,
    WorkerAddress as WorkerAddress,
)
from .slots import (
    MAX_SLOTS_PER_TASKMANAGER as MAX_SLOTS_PER_TASKMANAGER,
    NO_RESOURCES as NO_RESOURCES,
    AssignedPorts as AssignedPorts,
    PortOrAny as PortOrAny,
    RegistrationAccepted as RegistrationAccepted,
    RunningExecutor as RunningExecutor,
    SlotCount as SlotCount,
    SlotKind as SlotKind,
    SlotOffer as SlotOffer,
    SlotProfile as SlotProfile,
    SlotReport as SlotReport,
    SlotRequest as SlotRequest,
    SlotState as SlotState,
    SlotStatus as SlotStatus,
    TaskManagerRegistration as TaskManagerRegistration,
    WarmJvms as WarmJvms,
)
from .tokens import JobToken as JobToken, TokenFiles as TokenFiles, TokenKeys as TokenKeys
