"""Errors about secrets. No message reveals anything about a value."""

from __future__ import annotations

from sluice.core import SluiceError
from sluice.runtime.rpc import remotable


class SecretError(SluiceError):
    """Base of the errors of package ``sluice.runtime.jobmanager.secrets``."""


class InvalidSecret(SecretError):
    """A name, a value, a grant or a file name is not valid."""


class SecretUnknown(SecretError):
    """No such secret exists, or no such version of it."""


@remotable
class SecretRefused(SecretError):
    """The secret does not exist, or is not granted to the job. The message does not say which."""


@remotable
class SecretUseless(SecretError):
    """A secret is not given, because others could see it, or because its use cannot be recorded."""


@remotable
class SecretKeyMissing(SecretError):
    """The key that a secret is encrypted with is not on this JobManager, or its file has another content."""


class SecretsFull(SecretError):
    """The maximum number of secrets, or of grants of a secret, is reached."""
