"""Errors of the sandbox."""

from __future__ import annotations

from sluice.core import SluiceError


class SandboxUnavailable(SluiceError):
    """This machine does not support the configured isolation, so no process of a job may be started."""


class SandboxRefused(SluiceError):
    """A job must not get the requested view, path or box."""
