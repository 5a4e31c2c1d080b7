"""Errors of the relay."""

from __future__ import annotations

from sluice.core import SluiceError


class RelayFailed(SluiceError):
    """The relay did not start, or does not take the identity of a job."""
