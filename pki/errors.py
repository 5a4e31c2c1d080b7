"""Errors of the online authority, on both sides of the wire."""

from __future__ import annotations

from sluice.core import PkiError


class EnrolmentRefused(PkiError):
    """The join token is not ours, was used, has expired, or is for another identity."""


class IssuanceRefused(PkiError):
    """The requester may not have what it requests, whatever its request contains."""


class CertificateSuperseded(IssuanceRefused):
    """The certificate is not the newest of its identity: two holders have it, or an old copy came back."""


class CertificateUnknown(PkiError):
    """This authority knows no such unexpired certificate."""


class LedgerError(PkiError):
    """The ledger of issued certificates is damaged, or cannot be written: nothing is issued."""


class RateLimited(PkiError):
    """Too many requests from one requester; ``retry_after`` is in seconds."""

    def __init__(self, what: str, retry_after: float) -> None:
        super().__init__(what, f"try again in {retry_after:.1f} s")
        self.retry_after = retry_after


class CaUnavailable(PkiError):
    """The online authority could not be reached, did not prove its identity, or failed to answer."""


class AttestationUnavailable(CaUnavailable):
    """The authority cannot verify the requester now, because its attestation service does not answer."""
