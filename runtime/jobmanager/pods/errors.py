"""Errors about the pods of TaskManagers."""

from __future__ import annotations

from sluice.core import SluiceError


class PodError(SluiceError):
    """Base of the errors of package ``sluice.runtime.jobmanager.pods``."""


class PodsMisconfigured(PodError):
    """The settings or the pod template are not valid."""


class PodsUnavailable(PodError):
    """The API server gives no usable answer; the request may have been carried out."""


class PodsRefused(PodError):
    """The API server refuses a request: missing rights, an exceeded quota, or an admission check."""


class PodChanged(PodError):
    """The pod is gone, or has changed since it was listed; nothing was done."""
