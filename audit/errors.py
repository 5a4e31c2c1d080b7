"""Errors of the audit."""

from __future__ import annotations

from sluice.core import SluiceError


class AuditError(SluiceError):
    """The audit cannot do what was asked."""


class InputError(AuditError):
    """An invalid target file, baseline or option."""


class WireError(AuditError):
    """A peer sent data that is not TLS, or breaks its rules."""
