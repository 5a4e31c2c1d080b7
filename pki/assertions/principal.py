"""The principal of a request, and the credential that it showed. Values only.

A public id means something only together with what it is the id of, so each kind of id is a type of its own.
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
"""Of one of the gateway's own passes or assertions (the claim ``jti``); empty when there is none."""

CredentialKind = Literal["token", "session", "certificate", "jwt"]
"""API token; session of a browser or of ``sluice login``, however it was begun; client certificate; bearer JWT."""

Method = Literal["token", "session", "jwt", "certificate", "user"]
"""How a principal was authenticated: API token, identity provider, bearer JWT, client certificate, local user file."""


@dataclass(frozen=True, slots=True, order=True)
class Credential:
    """The credential of a request; ``id`` is public, never a secret.

    A session that was begun with an API token is a session: the token's id is in the session's record. Make one with a
    method for its kind; the constructor is for what is decoded from a file or a token.
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
        roles: those that permissions follow from.
        method: how it was authenticated; for a session: how the session was begun.
        credential: the credential of the request.
        groups: its groups according to its identity provider or the user file.
        scopes: operations, or patterns of them, that the credential is narrowed to; empty: all that the roles grant.
            An assertion has none: it lists the granted operations.
    """

    name: str
    roles: tuple[str, ...]
    method: Method
    credential: Credential
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
