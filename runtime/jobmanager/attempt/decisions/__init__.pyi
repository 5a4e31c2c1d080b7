from .executor_pool import Executor as Executor, ExecutorState as ExecutorState
from .history_log import MAX_EXECUTORS_KEPT as MAX_EXECUTORS_KEPT, HistoryLog as HistoryLog
from .state_machine import AttemptStateMachine as AttemptStateMachine
