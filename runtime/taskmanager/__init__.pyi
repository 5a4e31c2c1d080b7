from .driver import DriverArgv as DriverArgv, driver_argv as driver_argv
from .errors import DRAINED_EXIT_CODE as DRAINED_EXIT_CODE
from .jobmanager_link import RegisteringTaskManager as RegisteringTaskManager
from .launcher import ExecutorLauncher as ExecutorLauncher, SparkExecutorLauncher as SparkExecutorLauncher
from .task_executor import TaskExecutor as TaskExecutor, TaskManagerShape as TaskManagerShape
