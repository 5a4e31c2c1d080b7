from .access import (
    GatewayAccess as GatewayAccess,
    announced_url as announced_url,
    edge_bundle as edge_bundle,
    held_credential as held_credential,
    local_url as local_url,
    locate_gateway as locate_gateway,
    resolve_access as resolve_access,
)
from .connection_errors import describe_connection_error as describe_connection_error
from .errors import (
    AwayError as AwayError,
    ClientError as ClientError,
    RefusedError as RefusedError,
    UnreachableError as UnreachableError,
    UsageError as UsageError,
)
from .job_logs import LOG_CHUNK_BYTES as LOG_CHUNK_BYTES, JobLog as JobLog
from .jobs import (
    HISTORY as HISTORY,
    POLL_SECONDS as POLL_SECONDS,
    TERMINAL as TERMINAL,
    ChangeReader as ChangeReader,
    Reader as Reader,
    latest_jobs as latest_jobs,
    whole_id as whole_id,
)
from .patient_reader import PatientReader as PatientReader
from .receipts import fetch_receipt as fetch_receipt
from .rest_client import (
    GatewayClient as GatewayClient,
    edge_connection as edge_connection,
    gateway_client as gateway_client,
)
from .spark_connect import (
    connection_string as connection_string,
    local_roots as local_roots,
    require_api_token as require_api_token,
    start_session as start_session,
)
from .submission import Submission as Submission, build_submission as build_submission
from .token_binding import (
    TokenBinding as TokenBinding,
    addresses as addresses,
    fingerprints as fingerprints,
    write_binding as write_binding,
)
