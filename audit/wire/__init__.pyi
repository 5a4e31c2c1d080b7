from .client import (
    Credential as Credential,
    Handshake as Handshake,
    Ticket as Ticket,
    Tls13Client as Tls13Client,
    Verdict as Verdict,
)
from .codec import number as number
from .connection import (
    ConnectionEnded as ConnectionEnded,
    Ending as Ending,
    NotTls as NotTls,
    Silent as Silent,
    printable as printable,
)
from .hello import DEFLATE as DEFLATE, ClientHello as ClientHello, ServerHello as ServerHello
from .numbers import (
    ANONYMOUS_SUITES as ANONYMOUS_SUITES,
    GOOD_SIGNATURES as GOOD_SIGNATURES,
    GOOD_TLS12_SUITES as GOOD_TLS12_SUITES,
    GROUPS as GROUPS,
    MODERN_SUITES as MODERN_SUITES,
    POST_QUANTUM_GROUPS as POST_QUANTUM_GROUPS,
    SIGNATURES as SIGNATURES,
    STRONG_GROUPS as STRONG_GROUPS,
    SUITES as SUITES,
    UNENCRYPTED_SUITES as UNENCRYPTED_SUITES,
    UNPROTECTED_SUITES as UNPROTECTED_SUITES,
    WEAK_GROUPS as WEAK_GROUPS,
    WEAK_SIGNATURES as WEAK_SIGNATURES,
    WEAK_TLS12_SUITES as WEAK_TLS12_SUITES,
    WEAK_TLS13_SUITES as WEAK_TLS13_SUITES,
    Content as Content,
    Extension as Extension,
    Message as Message,
    Version as Version,
    name_of as name_of,
)
from .old_client import OldClient as OldClient
from .probe import (
    Answer as Answer,
    Flight as Flight,
    offer as offer,
    old_flight as old_flight,
    speaks_tls as speaks_tls,
)
