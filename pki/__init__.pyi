from .channels import (
    MAY_CONNECT as MAY_CONNECT,
    MAY_LISTEN as MAY_LISTEN,
    Channel as Channel,
    PeerPolicy as PeerPolicy,
    client_policy as client_policy,
    server_policy as server_policy,
)
from .config import PkiConfig as PkiConfig
from .errors import (
    CaUnavailable as CaUnavailable,
    CertificateSuperseded as CertificateSuperseded,
    CertificateUnknown as CertificateUnknown,
    IssuanceRefused as IssuanceRefused,
    LedgerError as LedgerError,
)
from .rate_limit import RateLimiter as RateLimiter
from .spiffe_id import NAMED_ROLES as NAMED_ROLES, Role as Role, SpiffeId as SpiffeId
