"""Errors of receipts."""

from __future__ import annotations

from sluice.core import SluiceError


class ReceiptUnavailable(SluiceError):
    """There is no receipt of the job, or none yet."""


class ReceiptNotRecorded(SluiceError):
    """The audit log cannot record the receipt, so it is not issued."""
