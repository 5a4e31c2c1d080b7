"""What goes wrong when people are notified."""

from __future__ import annotations

from sluice.core import SluiceError


class NotifyError(SluiceError):
    """A notification was not confirmed; perhaps the receiver has it."""
