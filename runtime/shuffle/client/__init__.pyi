from .connection import WorkerConnection as WorkerConnection
