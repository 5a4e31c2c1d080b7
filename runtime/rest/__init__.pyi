from .artifacts import ArtifactStores as ArtifactStores
from .assertion import for_operation as for_operation, require_assertion as require_assertion
from .assertion_keys import fetch_forever as fetch_forever
from .audit_events import record_at as record_at
from .audit_summary import (
    AuditSummary as AuditSummary,
    Examined as Examined,
    read_summary as read_summary,
    summary_file as summary_file,
)
from .auth_service import AuthService as AuthService
from .cluster import Cluster as Cluster, ClusterFacts as ClusterFacts, Term as Term
from .egress_evidence import ask_egress_at as ask_egress_at
from .job_access import JOB_ERRORS as JOB_ERRORS, require_visible as require_visible, visible_jobs as visible_jobs
from .job_tokens import ask_at as ask_at
from .openapi import describe as describe
from .problems import (
    EVERYWHERE as EVERYWHERE,
    TYPE_PREFIX as TYPE_PREFIX,
    problem_of as problem_of,
    status_of as status_of,
)
from .receipt_proof import prove_at as prove_at
from .route import Call as Call, NoQuery as NoQuery, Query as Query, Route as Route
from .serving import RestHandler as RestHandler, handler_of as handler_of
from .stream_validity import check_at as check_at, check_nothing as check_nothing
from .streams import Streams as Streams
from .trust_facts import TrustFacts as TrustFacts, anchor_tone as anchor_tone
