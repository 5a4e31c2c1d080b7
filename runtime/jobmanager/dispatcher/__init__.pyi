from .cluster_diagnostics import ClusterDiagnostics as ClusterDiagnostics
from .connect_sessions import (
    SESSION_NAME as SESSION_NAME,
    ConnectSession as ConnectSession,
    ConnectSessions as ConnectSessions,
)
from .endpoint import Dispatcher as Dispatcher
from .job_feed import FeedClosed as FeedClosed, JobFeed as JobFeed, Watch as Watch
from .job_queue import JobLimits as JobLimits
from .submission_checks import check_executor_size as check_executor_size
from .submitting import submit_with_blobs as submit_with_blobs
