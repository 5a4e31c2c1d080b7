from .accepting import accept as accept
from .address_blocks import (
    Address as Address,
    Network as Network,
    Reach as Reach,
    block_of as block_of,
    canonical as canonical,
    writes_out as writes_out,
)
from .addresses import host_port as host_port, is_ip_address as is_ip_address, url_host as url_host
from .background_task import run_with_background as run_with_background
from .backoff import backoff_seconds as backoff_seconds
from .clock import Clock as Clock, rfc3339 as rfc3339, utc_now as utc_now
from .egress import (
    EgressConfig as EgressConfig,
    EgressMisconfigured as EgressMisconfigured,
    EgressMode as EgressMode,
    EgressSetting as EgressSetting,
    egress_address as egress_address,
    egress_endpoint as egress_endpoint,
    egress_mode as egress_mode,
)
from .egress_evidence import (
    ANY_PORT as ANY_PORT,
    EGRESS_PATH as EGRESS_PATH,
    MAX_EGRESS_ANSWER_BYTES as MAX_EGRESS_ANSWER_BYTES,
    MAX_EGRESS_QUESTION_BYTES as MAX_EGRESS_QUESTION_BYTES,
    MAX_EGRESS_ROWS as MAX_EGRESS_ROWS,
    MAX_EGRESS_TARGETS as MAX_EGRESS_TARGETS,
    EgressAnswer as EgressAnswer,
    EgressDecision as EgressDecision,
    EgressJob as EgressJob,
    EgressQuestion as EgressQuestion,
    EgressReceipt as EgressReceipt,
    EgressReport as EgressReport,
    EgressRow as EgressRow,
    EgressTarget as EgressTarget,
    EgressVerdict as EgressVerdict,
    ReportedRow as ReportedRow,
)
from .envoy_program import envoy_program as envoy_program
from .errors import (
    AssertionRefused as AssertionRefused,
    CertificateRejected as CertificateRejected,
    CrlRejected as CrlRejected,
    InvalidIdentity as InvalidIdentity,
    PeerRefused as PeerRefused,
    PkiError as PkiError,
    SluiceError as SluiceError,
    StoreError as StoreError,
)
from .files import (
    LOCK_PATIENCE_SECONDS as LOCK_PATIENCE_SECONDS,
    MAX_MATERIAL_BYTES as MAX_MATERIAL_BYTES,
    PUBLIC_MODE as PUBLIC_MODE,
    SECRET_MODE as SECRET_MODE,
    CachedFile as CachedFile,
    ChainState as ChainState,
    DatabaseKind as DatabaseKind,
    Disk as Disk,
    FileStamp as FileStamp,
    LockHeld as LockHeld,
    NotAppended as NotAppended,
    UnsafeFile as UnsafeFile,
    append_whole as append_whole,
    check_database as check_database,
    check_space as check_space,
    clear_untrusted as clear_untrusted,
    create_untrusted as create_untrusted,
    exchange as exchange,
    file_stamp as file_stamp,
    files_below as files_below,
    held_alone as held_alone,
    is_locked as is_locked,
    is_regular_file as is_regular_file,
    list_untrusted as list_untrusted,
    lock_within as lock_within,
    locked as locked,
    locked_file as locked_file,
    make_database as make_database,
    make_private_directory as make_private_directory,
    may_pass as may_pass,
    open_untrusted as open_untrusted,
    paths_matching as paths_matching,
    read_bounded as read_bounded,
    read_deployed_secret as read_deployed_secret,
    read_secret as read_secret,
    read_untrusted as read_untrusted,
    remove_leftovers as remove_leftovers,
    remove_untrusted as remove_untrusted,
    replace_set as replace_set,
    staged_name as staged_name,
    sync_directory as sync_directory,
    untrusted_socket as untrusted_socket,
    walk_untrusted as walk_untrusted,
    write_atomic as write_atomic,
    write_public as write_public,
    write_secret as write_secret,
)
from .home import Home as Home
from .http_body import BodyTooLarge as BodyTooLarge, read_body as read_body
from .http_client import tcp_connector as tcp_connector
from .jws import (
    MAX_JWT_CHARACTERS as MAX_JWT_CHARACTERS,
    InvalidJwt as InvalidJwt,
    looks_like_jwt as looks_like_jwt,
    read_header as read_header,
    verified_claims as verified_claims,
)
from .kubernetes_api import (
    SERVICE_ACCOUNT as SERVICE_ACCOUNT,
    KubernetesApi as KubernetesApi,
    KubernetesMisconfigured as KubernetesMisconfigured,
    KubernetesUnanswered as KubernetesUnanswered,
    cluster_url as cluster_url,
    pod_namespace as pod_namespace,
)
from .logs import LogConfig as LogConfig, configure_logging as configure_logging
from .metrics import (
    CERTIFICATE_FILE_NOT_AFTER as CERTIFICATE_FILE_NOT_AFTER,
    CONTENT_TYPE as CONTENT_TYPE,
    IDENTITY_NOT_AFTER as IDENTITY_NOT_AFTER,
    IDENTITY_NOT_BEFORE as IDENTITY_NOT_BEFORE,
    PROCESS as PROCESS,
    REGISTRY as REGISTRY,
    MetricsRegistry as MetricsRegistry,
    Sample as Sample,
    collecting as collecting,
    exposition as exposition,
    families as families,
    fetch as fetch,
    merge as merge,
    render as render,
    serving as serving,
    socket_of as socket_of,
)
from .printable import REPLACEMENT as REPLACEMENT, printable as printable
from .process_start import (
    boot_id as boot_id,
    is_same_process as is_same_process,
    uptime_at_start as uptime_at_start,
)
from .tasks import (
    end_tasks as end_tasks,
    in_time as in_time,
    made_in_thread as made_in_thread,
    repeat as repeat,
    side_by_side as side_by_side,
)
from .tracing import (
    TRACEPARENT_HEADER as TRACEPARENT_HEADER,
    TRACING as TRACING,
    Span as Span,
    TraceParent as TraceParent,
    TracingConfig as TracingConfig,
    TracingUnavailable as TracingUnavailable,
    checked as checked,
)
from .unix_socket import bind_unix as bind_unix, clear_stale_socket as clear_stale_socket, listen_unix as listen_unix
