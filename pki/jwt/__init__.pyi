from .authority import JwtAuthority as JwtAuthority, LocalJwtAuthority as LocalJwtAuthority
from .svid import (
    MAX_AUDIENCE_BYTES as MAX_AUDIENCE_BYTES,
    MAX_AUDIENCES as MAX_AUDIENCES,
    PublicKey as PublicKey,
    TokenRejected as TokenRejected,
    algorithm_of as algorithm_of,
    check_audiences as check_audiences,
    decode_jwks as decode_jwks,
    oidc_jwks as oidc_jwks,
    validate_token as validate_token,
)
from .token_query import (
    MAX_QUERY_BYTES as MAX_QUERY_BYTES,
    AskForToken as AskForToken,
    TokenQuery as TokenQuery,
    TokenVerdict as TokenVerdict,
)
