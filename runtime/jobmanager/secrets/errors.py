"""Errors about secrets. None says anything of a value."""

from __future__ import annotations

from sluice.core import SluiceError
from sluice.runtime.rpc import remotable


class SecretError(SluiceError):
    """Base of the errors of package ``sluice.runtime.jobmanager.secrets``."""


class InvalidSecret(SecretError):
    """A name, a value, a grant or a file name that cannot be taken."""


class SecretUnknown(SecretError):
    """There is no such secret, or no such version of it."""


@remotable
class SecretRefused(SecretError):
    """The secret does not exist, or is not granted to the job; the answer does not say which."""


@remotable
class SecretUseless(SecretError):
    """A secret cannot be given without being seen by others, or without being recorded. So it is not given."""


@remotable
class SecretKeyMissing(SecretError):
    """The key that a secret is encrypted with is not on this JobManager, or not the one that it was."""


class SecretsFull(SecretError):
    """The limit of secrets, or of grants of a secret, is reached."""
