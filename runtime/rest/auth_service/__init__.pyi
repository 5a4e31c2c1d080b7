from .assertion_keys import fetch_forever as fetch_forever
from .audit_events import record_at as record_at
from .client import AuthService as AuthService
from .egress_evidence import ask_egress_at as ask_egress_at
from .job_tokens import ask_at as ask_at
from .receipt_proof import prove_at as prove_at
from .stream_validity import check_at as check_at, check_nothing as check_nothing
