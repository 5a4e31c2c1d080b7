"""Errors of pods."""

from __future__ import annotations

from sluice.core import SluiceError


class PodError(SluiceError):
    """Base of the errors of package ``sluice.runtime.jobmanager.pods``."""


class PodsMisconfigured(PodError):
    """The settings or the template of pods cannot be used."""


class PodsUnavailable(PodError):
    """The API server does not answer, or not so that it can be used: what was asked may have been done."""


class PodsRefused(PodError):
    """The API server refuses a request: no right, no quota, or an admission check."""


class PodChanged(PodError):
    """The pod is gone, or is not what it was when it was looked at: nothing was done."""
