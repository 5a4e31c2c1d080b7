"""Errors of the online authority, on both sides of the wire."""

from __future__ import annotations

from sluice.core import PkiError


class EnrolmentRefused(PkiError):
    """The join token is none of ours, was used, has expired, or is for somebody else."""


class IssuanceRefused(PkiError):
    """The requester may not have what it asks for, whatever its request looks like."""


class CertificateSuperseded(IssuanceRefused):
    """The certificate that was shown is not the newest of its identity: two have it, or an old copy came back."""


class CertificateUnknown(PkiError):
    """No certificate like that lives, as far as this authority knows."""


class LedgerError(PkiError):
    """The ledger of issued certificates is damaged, or cannot be written: nothing is issued."""


class RateLimited(PkiError):
    """Too many requests from one side; ``retry_after`` is in seconds."""

    def __init__(self, what: str, retry_after: float) -> None:
        super().__init__(what, f"try again in {retry_after:.1f} s")
        self.retry_after = retry_after


class CaUnavailable(PkiError):
    """The online authority could not be reached, did not prove who it is, or failed to answer."""


class AttestationUnavailable(CaUnavailable):
    """The authority cannot verify now who asks: whoever verifies it for the authority does not answer."""
