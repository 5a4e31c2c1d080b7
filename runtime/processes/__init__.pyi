from .jobmanager import run_jobmanager as run_jobmanager
from .shuffle_manager import run_shuffle_manager as run_shuffle_manager
from .shuffle_worker import run_shuffle_worker as run_shuffle_worker
from .taskmanager import run_taskmanager as run_taskmanager
from .zookeeper import run_zookeeper as run_zookeeper
