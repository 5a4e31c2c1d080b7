from .audit_summary import (
    AuditSummary as AuditSummary,
    Examined as Examined,
    read_summary as read_summary,
    summary_file as summary_file,
)
from .auth_service import (
    AuthService as AuthService,
    check_nothing as check_nothing,
    fetch_forever as fetch_forever,
    remote_ask_egress as remote_ask_egress,
    remote_ask_for_token as remote_ask_for_token,
    remote_check_holders as remote_check_holders,
    remote_prove as remote_prove,
    remote_record as remote_record,
)
from .cluster import Cluster as Cluster, ClusterFacts as ClusterFacts, Term as Term
from .job_access import JOB_ERRORS as JOB_ERRORS, require_visible as require_visible, visible_jobs as visible_jobs
from .openapi import describe as describe
from .protocol import (
    EVERYWHERE as EVERYWHERE,
    TYPE_PREFIX as TYPE_PREFIX,
    Call as Call,
    NoQuery as NoQuery,
    Query as Query,
    Route as Route,
    Streams as Streams,
    for_operation as for_operation,
    problem_of as problem_of,
    require_assertion as require_assertion,
    status_of as status_of,
)
from .serving import RestHandler as RestHandler, handler_of as handler_of
from .submissions import ArtifactStores as ArtifactStores
from .trust_facts import TrustFacts as TrustFacts, anchor_tone as anchor_tone
