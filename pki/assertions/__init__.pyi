from .keys import (
    MAX_JWKS_BYTES as MAX_JWKS_BYTES,
    AssertionKeys as AssertionKeys,
    assertion_keys_file as assertion_keys_file,
)
from .open_streams import (
    MAX_CHECKED as MAX_CHECKED,
    MAX_QUESTION_BYTES as MAX_QUESTION_BYTES,
    CheckHolders as CheckHolders,
    Holders as Holders,
    OpenStreams as OpenStreams,
    StreamEnded as StreamEnded,
    StreamHolder as StreamHolder,
)
from .principal import (
    CertificateId as CertificateId,
    Credential as Credential,
    CredentialKind as CredentialKind,
    ForeignJwtId as ForeignJwtId,
    Jti as Jti,
    Method as Method,
    Principal as Principal,
    SessionId as SessionId,
    TokenId as TokenId,
)
from .tokens import (
    ACCESS_TOKEN_AUDIENCE as ACCESS_TOKEN_AUDIENCE,
    ACCESS_TOKEN_SCHEME as ACCESS_TOKEN_SCHEME,
    ALGORITHM as ALGORITHM,
    CONNECT_AUDIENCE as CONNECT_AUDIENCE,
    HEADER as HEADER,
    ISSUER as ISSUER,
    REST_AUDIENCE as REST_AUDIENCE,
    Assertion as Assertion,
    AssertionClaims as AssertionClaims,
    AssertionVerifier as AssertionVerifier,
    KeySet as KeySet,
    decode_jwks as decode_jwks,
    query_digest as query_digest,
)
