from .driver import AGENT as AGENT
from .ended_ui import EndedUi as EndedUi
from .ended_uis import ENDED_UI_DIRECTORY as ENDED_UI_DIRECTORY, EndedUis as EndedUis
from .jobmanager_link import RegisteringTaskManager as RegisteringTaskManager
from .launcher import ExecutorLauncher as ExecutorLauncher, SparkExecutorLauncher as SparkExecutorLauncher
from .network_owner import NetworkOwner as NetworkOwner
from .networks import Networks as Networks
from .shape import TaskManagerShape as TaskManagerShape
from .task_executor import TaskExecutor as TaskExecutor
from .warm_processes import WarmProcesses as WarmProcesses, objection as objection
