from .errors import (
    ForeignJob as ForeignJob,
    JobUnknown as JobUnknown,
    NoShuffleService as NoShuffleService,
    NotConnected as NotConnected,
    ShuffleMisconfigured as ShuffleMisconfigured,
    ShuffleNotEnabled as ShuffleNotEnabled,
    ShuffleQuotaExceeded as ShuffleQuotaExceeded,
    ShuffleServiceError as ShuffleServiceError,
    WorkerUnknown as WorkerUnknown,
)
from .gateways import (
    SHUFFLE_MANAGER as SHUFFLE_MANAGER,
    SHUFFLE_WORKER as SHUFFLE_WORKER,
    ShuffleManagerGateway as ShuffleManagerGateway,
    ShuffleWorkerGateway as ShuffleWorkerGateway,
)
from .manager_link import Leader as Leader, ShuffleManagerLink as ShuffleManagerLink
from .messages import (
    INTEGRITY_KEY_BYTES as INTEGRITY_KEY_BYTES,
    LATENCY_BOUNDS_SECONDS as LATENCY_BOUNDS_SECONDS,
    DiskReport as DiskReport,
    HandOver as HandOver,
    Histogram as Histogram,
    JobReport as JobReport,
    LiveJob as LiveJob,
    ShuffleJobView as ShuffleJobView,
    ShuffleOverview as ShuffleOverview,
    ShuffleRequest as ShuffleRequest,
    ShuffleSession as ShuffleSession,
    WorkerAccepted as WorkerAccepted,
    WorkerRegistration as WorkerRegistration,
    WorkerReport as WorkerReport,
    WorkerState as WorkerState,
    WorkerView as WorkerView,
    free_space as free_space,
)
from .metrics import shuffle_metrics as shuffle_metrics
