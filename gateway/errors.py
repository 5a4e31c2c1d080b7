"""Errors of the gateway: one base, specific subclasses."""

from __future__ import annotations

from sluice.core import SluiceError


class GatewayError(SluiceError):
    """Base of the errors of package ``gateway``."""


class InvalidTokenRequest(GatewayError):
    """The requested token cannot be created: its name, role, scopes or lifetime is invalid."""


class TokenNotFound(GatewayError):
    """No token has this id."""


class TokenStoreError(GatewayError):
    """The token file is damaged, badly protected, too large, or locked by another process."""


class RouteListError(GatewayError):
    """The published route list is missing, malformed or ambiguous."""


class AuditLogError(GatewayError):
    """The audit log cannot be written or continued. The auth service then refuses to decide requests."""


class EnvoyIdentityError(GatewayError):
    """An identity meant for Envoy belongs to another role, or to the wrong side (edge or internal)."""


class EdgeCertificateError(GatewayError):
    """``certificate_file`` and ``key_file`` do not hold a certificate that the gateway can present to clients."""


class AcmeError(GatewayError):
    """The ACME server refuses to issue a certificate for the gateway's names, or cannot be reached."""


class BootstrapError(GatewayError):
    """Envoy's configuration source is missing, or refers to an unknown value."""


class ListenError(GatewayError):
    """The address or socket to listen on is in use, or this process may not use it."""


class EnvoyFailed(GatewayError):
    """Envoy did not start, or exited unexpectedly."""


class AccessTokenKeyError(GatewayError):
    """The signing keys of access tokens are missing or damaged."""


class RevocationError(GatewayError):
    """The set of revoked ids cannot be read, or an id cannot be added to it."""


class PolicyError(GatewayError):
    """The policy file is invalid or ambiguous; it is not used."""


class IssuerError(GatewayError):
    """A token issuer cannot be reached, or sends an unusable response."""


class SessionError(GatewayError):
    """The session file is damaged or full, or there is no session with this id."""


class SharedStoreError(GatewayError):
    """The store that the auth services share is unavailable; without it no user can sign in."""


class UserFileError(GatewayError):
    """The user file is damaged, the user does not exist, or a user with this name exists already."""


class LoginError(GatewayError):
    """The sign-in failed. The caller gets few details; the log gets all of them."""
