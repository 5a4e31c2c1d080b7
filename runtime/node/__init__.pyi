from .addresses import (
    SHUFFLE_MANAGER as SHUFFLE_MANAGER,
    SHUFFLE_WORKER as SHUFFLE_WORKER,
    JobManagerAddress as JobManagerAddress,
    Registration as Registration,
    ShuffleManagerAddress as ShuffleManagerAddress,
    ShuffleRegistration as ShuffleRegistration,
    ZooKeeperAddress as ZooKeeperAddress,
    listening_jobmanager as listening_jobmanager,
    publish_jobmanager as publish_jobmanager,
    publish_registration as publish_registration,
    publish_shuffle_listener as publish_shuffle_listener,
    publish_shuffle_manager as publish_shuffle_manager,
    publish_zookeeper as publish_zookeeper,
    read_shuffle_manager as read_shuffle_manager,
    require_reachable as require_reachable,
    withdraw_jobmanager as withdraw_jobmanager,
    withdraw_registration as withdraw_registration,
    withdraw_shuffle_manager as withdraw_shuffle_manager,
    withdraw_zookeeper as withdraw_zookeeper,
)
from .child_process import (
    ChildProcess as ChildProcess,
    Exit as Exit,
    allow_many_files as allow_many_files,
    die_with_parent as die_with_parent,
)
from .diagnostics import (
    DIAGNOSTICS as DIAGNOSTICS,
    Diagnostics as Diagnostics,
    DiagnosticsGateway as DiagnosticsGateway,
)
from .evidence import from_log as from_log, merge as merge
from .identity_renewal import keep_renewed as keep_renewed
from .job_checkpoints import checkpoint_directory as checkpoint_directory, own_checkpoints as own_checkpoints
from .job_identity import JobIdentity as JobIdentity
from .job_secrets import forbid_core_dumps as forbid_core_dumps, masker_of as masker_of, secret_files as secret_files
from .leader_finder import (
    Address as Address,
    HomeLeaderFinder as HomeLeaderFinder,
    LeaderDiscovery as LeaderDiscovery,
    RemoteLeaderFinder as RemoteLeaderFinder,
)
from .leader_link import Leader as Leader, LeaderLink as LeaderLink
from .log_files import (
    MAX_CHUNK_BYTES as MAX_CHUNK_BYTES,
    LogUnreadable as LogUnreadable,
    log_chunk as log_chunk,
    open_log as open_log,
    read_log as read_log,
    shorten_log as shorten_log,
)
from .log_tail import capture_log_tail as capture_log_tail
from .orphaned_processes import kill_processes_below as kill_processes_below
from .priority import can_return as can_return, in_background as in_background, to_background as to_background
