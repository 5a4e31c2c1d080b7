from .ended_uis import ENDED_UI_DIRECTORY as ENDED_UI_DIRECTORY, EndedUi as EndedUi, EndedUis as EndedUis
from .jobmanager_link import RegisteringTaskManager as RegisteringTaskManager
from .launcher import ExecutorLauncher as ExecutorLauncher, SparkExecutorLauncher as SparkExecutorLauncher
from .networks import NetworkOwner as NetworkOwner, Networks as Networks
from .processes import AGENT as AGENT, SpareAgent as SpareAgent
from .shape import TaskManagerShape as TaskManagerShape
from .task_executor import TaskExecutor as TaskExecutor
from .waiting import WarmProcesses as WarmProcesses, objection as objection
