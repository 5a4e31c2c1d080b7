"""Errors of the audit."""

from __future__ import annotations

from sluice.core import SluiceError


class AuditError(SluiceError):
    """The audit cannot do what was asked."""


class InputError(AuditError):
    """A target file, baseline or option that means nothing."""


class WireError(AuditError):
    """A peer sent what is not TLS, or not by its rules."""
