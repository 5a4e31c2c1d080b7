from .decisions import (
    MAX_EXECUTORS_KEPT as MAX_EXECUTORS_KEPT,
    ExecutorState as ExecutorState,
    HistoryLog as HistoryLog,
)
from .job_master import JobMaster as JobMaster
from .services import (
    JobIdentities as JobIdentities,
    JobServices as JobServices,
    JobTokens as JobTokens,
    Record as Record,
    RemoteDrivers as RemoteDrivers,
)
from .settings import (
    LEASE_MARGIN_SECONDS as LEASE_MARGIN_SECONDS,
    AttemptSettings as AttemptSettings,
    Resumption as Resumption,
)
