from .driver import DRIVER_LOGS as DRIVER_LOGS, DriverLauncher as DriverLauncher
from .executor_pool import ExecutorState as ExecutorState
from .history_log import MAX_EXECUTORS_KEPT as MAX_EXECUTORS_KEPT, HistoryLog as HistoryLog
from .job_master import JobMaster as JobMaster
from .local_driver import (
    DriverArgv as DriverArgv,
    DriverHost as DriverHost,
    attempt_directory as attempt_directory,
    clean_attempt_directory as clean_attempt_directory,
)
from .services import JobServices as JobServices
from .state_machine import AttemptSettings as AttemptSettings
