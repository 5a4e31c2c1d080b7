from .executor_pool import ExecutorState as ExecutorState
from .history_log import MAX_EXECUTORS_KEPT as MAX_EXECUTORS_KEPT, HistoryLog as HistoryLog
from .job_identities import JobIdentities as JobIdentities
from .job_master import JobMaster as JobMaster
from .job_secrets import Record as Record
from .job_tokens import JobTokens as JobTokens
from .remote_driver import RemoteDrivers as RemoteDrivers
from .services import JobServices as JobServices
from .settings import (
    LEASE_MARGIN_SECONDS as LEASE_MARGIN_SECONDS,
    AttemptSettings as AttemptSettings,
    Resumption as Resumption,
)
