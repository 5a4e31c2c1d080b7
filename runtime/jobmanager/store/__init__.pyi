from .checkpoint_store import CheckpointStore as CheckpointStore
from .job_history import HistoryKeeper as HistoryKeeper, HistoryStore as HistoryStore, JobHistory as JobHistory
from .job_store import AcceptedJob as AcceptedJob, Attempt as Attempt, EndedJob as EndedJob, JobStore as JobStore
