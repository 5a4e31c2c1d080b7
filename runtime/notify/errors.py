"""Errors of notifications."""

from __future__ import annotations

from sluice.core import SluiceError


class NotifyError(SluiceError):
    """The receiver did not confirm a notification, though it may have received it."""
