"""What can be wrong with a sandbox."""

from __future__ import annotations

from sluice.core import SluiceError


class SandboxUnavailable(SluiceError):
    """This machine cannot give jobs the configured isolation; nothing of a job may be started."""


class SandboxRefused(SluiceError):
    """A view or a path that must not be given to a job."""
