"""Errors of high availability."""

from __future__ import annotations

from sluice.core import SluiceError
from sluice.runtime.rpc import remotable


class HaError(SluiceError):
    """Base of the errors of package ``sluice.runtime.ha``."""


class HaMisconfigured(HaError):
    """The settings of section ``[ha]`` are invalid or inconsistent."""


@remotable
class StorageUnavailable(HaError):
    """The HA storage directory cannot be read or written now, or is not the one that this cluster has used before."""


class EntryMissing(HaError):
    """The storage directory has no entry of that name."""


class EntryDamaged(HaError):
    """An entry of the HA storage is not what was written: truncated, changed, or in an unknown format."""


class PointerExists(HaError):
    """A pointer of that name exists already."""


class PointerConflict(HaError):
    """The pointer was changed or removed since it was read."""


@remotable
class PointersFull(HaError):
    """There is no room for another pointer."""


class ElectionUnavailable(HaError):
    """The service that elects leaders cannot be reached, or refuses this process."""


@remotable
class LeadershipLost(HaError):
    """This process does not lead (any more), so it must neither decide nor write anything."""


@remotable
class OutcomeUnknown(LeadershipLost):
    """Leadership was lost during a write, which may or may not have been carried out."""


@remotable
class NotReconciled(HaError):
    """A new leader knows this driver but does not yet know enough to continue with it.

    The leader starts no other driver for this job for one lease after the request. The driver keeps running and asks
    again.
    """
