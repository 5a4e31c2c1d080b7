from .address import (
    DEFAULT_NAME as DEFAULT_NAME,
    MAX_AUTHORITIES as MAX_AUTHORITIES,
    Address as Address,
    CaAddress as CaAddress,
    announcements as announcements,
    parse_address as parse_address,
    parse_cas as parse_cas,
    presence_locks as presence_locks,
    read_ca as read_ca,
    read_cas as read_cas,
)
from .config import CaConfig as CaConfig
from .policy import JOB_ROLES as JOB_ROLES
from .possession import prove_possession as prove_possession
from .process import run_ca as run_ca
from .protocol import (
    ALPN as ALPN,
    ATTEST_PATH as ATTEST_PATH,
    AUTHORITY_PATH as AUTHORITY_PATH,
    EDGE_RENEW_PATH as EDGE_RENEW_PATH,
    ENROL_PATH as ENROL_PATH,
    ERROR_STATUS as ERROR_STATUS,
    JOB_PATH as JOB_PATH,
    MAX_ANSWER_BYTES as MAX_ANSWER_BYTES,
    MAX_NAME_CHARACTERS as MAX_NAME_CHARACTERS,
    MAX_TOLD as MAX_TOLD,
    MAX_TRUST_ANSWER_BYTES as MAX_TRUST_ANSWER_BYTES,
    MAX_TRUST_REQUEST_BYTES as MAX_TRUST_REQUEST_BYTES,
    RENEW_PATH as RENEW_PATH,
    REVOKE_PATH as REVOKE_PATH,
    TOKEN_KEYS_PATH as TOKEN_KEYS_PATH,
    TOKEN_PATH as TOKEN_PATH,
    TRUST_PATH as TRUST_PATH,
    TRUST_WAIT_SECONDS as TRUST_WAIT_SECONDS,
    AttestRequest as AttestRequest,
    AuthorityAnswer as AuthorityAnswer,
    EdgeRenewRequest as EdgeRenewRequest,
    EnrolRequest as EnrolRequest,
    ErrorAnswer as ErrorAnswer,
    JobRequest as JobRequest,
    RenewRequest as RenewRequest,
    RevokedAnswer as RevokedAnswer,
    RevokeRequest as RevokeRequest,
    SignedToken as SignedToken,
    TokenKeysAnswer as TokenKeysAnswer,
    TokenRequest as TokenRequest,
    TrustAnswer as TrustAnswer,
    TrustRequest as TrustRequest,
    TrustSide as TrustSide,
)
from .refusals import Refusal as Refusal, needing_attention as needing_attention, refusals_path as refusals_path
from .revocable_certificates import (
    Found as Found,
    fingerprints as fingerprints,
    in_directory as in_directory,
    in_home as in_home,
)
from .subscriber_file import (
    WRITE_SECONDS as WRITE_SECONDS,
    read_subscribers as read_subscribers,
    subscribers_path as subscribers_path,
)
from .token_store import TokenStore as TokenStore
from .trust_subscribers import SubscriberRecord as SubscriberRecord, TrustSubscriber as TrustSubscriber
