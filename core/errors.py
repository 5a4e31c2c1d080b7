"""Errors that several parts of the package share: one base, specific subclasses, each with its remedy."""

from __future__ import annotations


class SluiceError(Exception):
    """Base of every error that Sluice raises on purpose.

    Args:
        what: what was wrong, with the value it concerns (never a secret).
        remedy: what the reader can do about it; empty when there is nothing to do.
    """

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what} ({remedy})" if remedy else what)
        self.what = what
        self.remedy = remedy


class PkiError(SluiceError):
    """Base of the errors of package ``pki``."""


class InvalidIdentity(PkiError):
    """A SPIFFE ID, role or name that does not follow the rules."""


class StoreError(PkiError):
    """The PKI store or an identity directory is missing, damaged or badly protected."""


class CertificateRejected(PkiError):
    """A certificate or CSR that does not meet its profile or does not verify."""


class PeerRefused(PkiError):
    """The channel does not admit the other end of the connection."""


class CrlRejected(PkiError):
    """A certificate revocation list that is damaged, foreign, expired, older than the one in use, or not understood."""


class AssertionRefused(PkiError):
    """No valid assertion proves the caller: none, not the gateway's, for another audience, or for another time."""
