"""Errors of the client: one base, :class:`ClientError`, and a subclass for each thing that a caller can do about it."""

from __future__ import annotations

from sluice.core import SluiceError


class ClientError(SluiceError):
    """The client could not do what was asked. No message contains a token.

    Raised itself only for a fault of the cluster: an answer with a status of 500 or 501, or one that cannot be read.
    """


class UsageError(ClientError):
    """An argument, the environment or a configuration file is wrong; nothing was sent."""


class UnreachableError(ClientError):
    """The gateway could not be reached, did not prove its identity, or did not accept the token (401)."""


class AwayError(UnreachableError):
    """Nobody answers, or a part of the cluster is unavailable (502 to 504): the same call may succeed in a moment."""


class RefusedError(ClientError):
    """The gateway or the cluster refused the request (403 and other 4xx): it would be refused again."""


class JobFailed(ClientError):
    """The awaited job failed or was cancelled."""

    def __init__(self, job_id: str, state: str, error: str) -> None:
        why = f": {error}" if error else ""
        super().__init__(f"job {job_id} is {state}{why}", f"see `sluice jobs logs {job_id}`")
        self.job_id = job_id
        self.state = state
        self.error = error
