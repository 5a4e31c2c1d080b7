"""Errors of the egress relay."""

from __future__ import annotations

from sluice.core import SluiceError


class RelayFailed(SluiceError):
    """The relay did not start, or rejected the identity of a job."""
