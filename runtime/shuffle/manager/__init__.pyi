from .endpoint import ShuffleManager as ShuffleManager
from .job_store import ShuffleJobStore as ShuffleJobStore
