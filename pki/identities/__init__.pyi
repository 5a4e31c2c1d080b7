from .database import IdentityStore as IdentityStore
from .directory import (
    CA_FILE as CA_FILE,
    CHAIN_FILE as CHAIN_FILE,
    KEY_FILE as KEY_FILE,
    KEYSTORE_FILE as KEYSTORE_FILE,
    MAX_ANCHORS as MAX_ANCHORS,
    MAX_PASSWORD_BYTES as MAX_PASSWORD_BYTES,
    PASSWORD_FILE as PASSWORD_FILE,
    PEERS_FILE as PEERS_FILE,
    PREVIOUS_FILE as PREVIOUS_FILE,
    IdentityMaterial as IdentityMaterial,
    Stamp as Stamp,
    check_peers as check_peers,
    is_authority as is_authority,
    leaf_in as leaf_in,
    parse_identity as parse_identity,
    previous_certificates as previous_certificates,
    read_certificates as read_certificates,
    read_identity as read_identity,
    read_peers as read_peers,
    stamp_of as stamp_of,
    write_identity as write_identity,
)
from .join_tokens import (
    ENROLLABLE as ENROLLABLE,
    MAX_TOKEN_BYTES as MAX_TOKEN_BYTES,
    JoinToken as JoinToken,
    TokenRecord as TokenRecord,
    check_token as check_token,
    decode_record as decode_record,
    mint as mint,
)
from .known_authorities import (
    Known as Known,
    authorities_of_file as authorities_of_file,
    authorities_of_home as authorities_of_home,
    without_repeats as without_repeats,
)
from .renewal import (
    LONGEST_RETRY as LONGEST_RETRY,
    Urgency as Urgency,
    is_due as is_due,
    is_superseded as is_superseded,
    issue_reason as issue_reason,
    kept_because as kept_because,
    renewal_reason as renewal_reason,
    retry_at as retry_at,
    urgency as urgency,
)
from .renewal_threshold import HALF as HALF, Threshold as Threshold, needs_renewal as needs_renewal
