"""Errors of high availability."""

from __future__ import annotations

from sluice.core import SluiceError
from sluice.runtime.rpc import remotable


class HaError(SluiceError):
    """Base of the errors of package ``sluice.runtime.ha``."""


class HaMisconfigured(HaError):
    """The settings of section ``[ha]`` do not go together."""


@remotable
class StorageUnavailable(HaError):
    """The HA storage directory cannot be read or written now, or is not the one it was."""


class EntryMissing(HaError):
    """The storage directory has no entry of that name."""


class EntryDamaged(HaError):
    """An entry of the HA storage is not what was written: truncated, changed, or of an unknown form."""


class PointerExists(HaError):
    """There is a pointer of that name already."""


class PointerConflict(HaError):
    """The pointer was changed or removed by somebody else since it was read."""


@remotable
class PointersFull(HaError):
    """There is no room for another pointer."""


class ElectionUnavailable(HaError):
    """The service that elects leaders cannot be reached, or refuses this process."""


@remotable
class LeadershipLost(HaError):
    """This process does not lead (any more): it decides nothing and writes nothing."""


@remotable
class OutcomeUnknown(LeadershipLost):
    """Leadership was lost while a write was under way: it may have been done."""


@remotable
class NotReconciled(HaError):
    """A new leader knows of this driver, and not yet enough to go on with it.

    It starts no other one for as long as a lease from the asking, so the driver may go on and asks again.
    """
