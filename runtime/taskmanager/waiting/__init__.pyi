from .driver import PASSED_ENVIRONMENT as PASSED_ENVIRONMENT, WaitingDriverAgent as WaitingDriverAgent
from .executor import EXECUTOR as EXECUTOR, STREAMS as STREAMS, WaitingExecutor as WaitingExecutor
from .process import release_resources as release_resources
from .warm_processes import WarmProcesses as WarmProcesses, objection as objection
