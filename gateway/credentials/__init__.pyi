from .access_tokens import (
    ACCESS_TOKEN_COOKIE as ACCESS_TOKEN_COOKIE,
    AUDIENCE as AUDIENCE,
    CSRF_COOKIE as CSRF_COOKIE,
    CSRF_HEADER as CSRF_HEADER,
    ISSUER as ISSUER,
    LEEWAY_SECONDS as LEEWAY_SECONDS,
    SAFE_METHODS as SAFE_METHODS,
    SESSION_COOKIE as SESSION_COOKIE,
    InvalidAccessToken as InvalidAccessToken,
    issue as issue,
    role_access_token_prefix as role_access_token_prefix,
    verify as verify,
)
from .api_tokens import (
    Refusal as Refusal,
    TokenBook as TokenBook,
    TokenRecord as TokenRecord,
    Unauthenticated as Unauthenticated,
    redact as redact,
)
from .assertion import AssertionSigner as AssertionSigner, publish_keys as publish_keys
from .authenticated import Authenticated as Authenticated
from .revocations import FOREVER as FOREVER, Revocations as Revocations, RevocationSet as RevocationSet
from .session_store import (
    FLUSH_SECONDS as FLUSH_SECONDS,
    SessionStore as SessionStore,
    read_sessions as read_sessions,
    revoke_sessions as revoke_sessions,
    session_snapshot as session_snapshot,
)
from .sessions import (
    NoSession as NoSession,
    SessionLimits as SessionLimits,
    SessionRecord as SessionRecord,
    is_session as is_session,
)
from .signing_keys import AccessTokenKeys as AccessTokenKeys, encode_jwks as encode_jwks
from .token_file import TokenStore as TokenStore, create_token as create_token, token_snapshot as token_snapshot
from .token_last_used import TokensLastUsed as TokensLastUsed, read_last_used as read_last_used
from .users import (
    MAX_PASSWORD_BYTES as MAX_PASSWORD_BYTES,
    UserBook as UserBook,
    UserRecord as UserRecord,
    UserStore as UserStore,
    user_snapshot as user_snapshot,
)
