"""The principal of a request, and its credential.

Values only. Ids of different kinds must not be confused, so each kind is its own type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NewType

TokenId = NewType("TokenId", str)
"""Of an API token."""
SessionId = NewType("SessionId", str)
"""Of a session of a browser or of ``sluice login``."""
CertificateId = NewType("CertificateId", str)
"""The SHA-256 of a client certificate's DER encoding, in hexadecimal."""
ForeignJwtId = NewType("ForeignJwtId", str)
"""Of a bearer JWT of an outside issuer."""
Jti = NewType("Jti", str)
"""Of an access token or assertion of the gateway (the claim ``jti``); empty when there is none."""

CredentialKind = Literal["token", "session", "certificate", "jwt"]
"""API token; session of a browser or of ``sluice login``, however it was begun; client certificate; bearer JWT."""

Method = Literal["token", "session", "jwt", "certificate", "user"]
"""How a principal was authenticated: API token, identity provider, bearer JWT, client certificate, local user file."""


@dataclass(frozen=True, slots=True, order=True)
class Credential:
    """The credential of a request; ``id`` is public, never a secret.

    A session that was begun with an API token is a session: the token's id is in the session's record. Create one with
    the method for its kind; the constructor is for decoding.
    """

    kind: CredentialKind
    id: str

    @classmethod
    def of_token(cls, identifier: TokenId) -> Credential:
        """An API token."""
        return cls("token", identifier)

    @classmethod
    def of_session(cls, identifier: SessionId) -> Credential:
        """A session."""
        return cls("session", identifier)

    @classmethod
    def of_certificate(cls, identifier: CertificateId) -> Credential:
        """A client certificate."""
        return cls("certificate", identifier)

    @classmethod
    def of_jwt(cls, identifier: ForeignJwtId) -> Credential:
        """A JWT of an outside issuer."""
        return cls("jwt", identifier)

    @property
    def token_id(self) -> TokenId | None:
        """The id of an API token; None for other kinds."""
        return TokenId(self.id) if self.kind == "token" else None

    @property
    def session_id(self) -> SessionId | None:
        """The id of a session; None for other kinds."""
        return SessionId(self.id) if self.kind == "session" else None


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    Attributes:
        name: its name, safe in a header and a log line.
        roles: the roles that grant permissions.
        method: how it was authenticated; for a session: how the session was begun.
        credential: the credential of the request.
        groups: its groups according to its identity provider or the user file.
        scopes: operations, or patterns of them, that limit the credential; empty: no limit beyond the roles. An
            assertion has none: it lists the granted operations.
    """

    name: str
    roles: tuple[str, ...]
    method: Method
    credential: Credential
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
