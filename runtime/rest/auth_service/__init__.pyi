from .assertion_keys import fetch_forever as fetch_forever
from .audit_events import remote_record as remote_record
from .client import AuthService as AuthService
from .egress_evidence import remote_ask_egress as remote_ask_egress
from .job_tokens import remote_ask_for_token as remote_ask_for_token
from .receipt_proof import remote_prove as remote_prove
from .stream_validity import check_nothing as check_nothing, remote_check_holders as remote_check_holders
