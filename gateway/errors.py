"""Errors of the gateway: one base, specific subclasses."""

from __future__ import annotations

from sluice.core import SluiceError


class GatewayError(SluiceError):
    """Base of the errors of package ``gateway``."""


class InvalidTokenRequest(GatewayError):
    """A token cannot be made as asked: its name or lifetime is not acceptable."""


class TokenNotFound(GatewayError):
    """No token has this id."""


class TokenStoreError(GatewayError):
    """The token file is damaged, badly protected, too large, or locked by another process."""


class RouteListError(GatewayError):
    """The published route list is missing, malformed or ambiguous."""


class AuditLogError(GatewayError):
    """The audit log cannot be written or continued; without it nothing is decided."""


class EnvoyIdentityError(GatewayError):
    """An identity meant for Envoy is not the gateway's, or of the wrong side."""


class EdgeCertificateError(GatewayError):
    """The files of ``certificate_file`` and ``key_file`` do not hold what the gateway could show to clients."""


class AcmeError(GatewayError):
    """The ACME server does not certify the gateway's names, or cannot be asked."""


class BootstrapError(GatewayError):
    """Envoy's configuration source is missing, or refers to an unknown value."""


class ListenError(GatewayError):
    """The address or socket to listen on is taken or not ours to take."""


class EnvoyFailed(GatewayError):
    """Envoy did not start, or ended by itself."""


class PassKeyError(GatewayError):
    """The keys that passes are signed with are missing or damaged."""


class RevocationError(GatewayError):
    """The set of revoked ids cannot be read, or an id cannot be added to it."""


class PolicyError(GatewayError):
    """The policy file does not say clearly who may do what; it is not used."""


class IssuerError(GatewayError):
    """An issuer of tokens cannot be reached, or answers what cannot be used."""


class SessionError(GatewayError):
    """The session file is damaged or full, or no session has this id."""


class SharedStoreError(GatewayError):
    """The store that auth services share cannot be used; without it nobody signs in."""


class UserFileError(GatewayError):
    """The user file is damaged, or does not have, or already has, this user."""


class LoginError(GatewayError):
    """Signing in did not work; the caller learns little, the log all of it."""
