from .config import SECRET_BYTES as SECRET_BYTES, Layout as Layout, Policy as Policy, WorkerConfig as WorkerConfig
from .registration import (
    RegisteringWorker as RegisteringWorker,
    ServedWorker as ServedWorker,
    WorkerEndpoint as WorkerEndpoint,
)
from .worker import ShuffleWorker as ShuffleWorker
