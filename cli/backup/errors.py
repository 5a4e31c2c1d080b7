"""Errors of backups."""

from __future__ import annotations

from sluice.core import SluiceError


class BackupDamaged(SluiceError):
    """The file is not a backup, was changed or cut off, or does not open with the given key."""


class BackupFailed(SluiceError):
    """The backup could not be written, or the home not be read."""


class RestoreRefused(SluiceError):
    """The backup is not restored here, or not like this; nothing was changed."""
