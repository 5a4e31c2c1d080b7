"""The slot of an attempt's driver. Decisions only; no I/O."""

from __future__ import annotations

from collections.abc import Collection

from sluice.runtime.jobmanager.attempt.decisions.actions import Outbox, RequireDriverSlot, StartTimer, Timer
from sluice.runtime.jobmanager.attempt.decisions.job_status import JobStatus
from sluice.runtime.jobmanager.errors import DriverUnknown
from sluice.runtime.messages import SlotOffer

DRIVER_REQUIREMENT_REPEAT_SECONDS = 2.0
"""How often the requirement of a slot for the driver is repeated, and the reason for waiting refreshed."""


class DriverPlacement:
    """Requires a slot for the driver, and starts the driver when one is offered.

    Attributes:
        slot: the slot of the driver; None until one was offered.
        given_up: why the driver may no longer register or renew its lease; empty while it may.
    """

    def __init__(self, status: JobStatus, outbox: Outbox) -> None:
        self._status = status
        self._outbox = outbox
        self.slot: SlotOffer | None = None
        self.given_up = ""

    def require(self) -> None:
        """Require a slot, and repeat that later."""
        self._outbox.add(RequireDriverSlot(), StartTimer(Timer.DRIVER_REQUIREMENT, DRIVER_REQUIREMENT_REPEAT_SECONDS))

    def required(self, reason: str) -> None:
        """Note the ResourceManager's answer: why there is no slot; empty when one is on its way."""
        if self.slot is None and not self._status.over and reason != self._status.pending_reason:
            self._status.pending_reason = reason
            self._outbox.publish()

    def take(self, offer: SlotOffer) -> None:
        """Take an offered slot for the driver. The history tells the next leader, and readers of logs, where it is."""
        self.slot = offer
        self._status.pending_reason = ""
        self._status.history.placed(offer.taskmanager)
        self._status.keep_history()
        self._outbox.add(StartTimer(Timer.DRIVER_PLACED, 0))  # after the offer is answered
        self._outbox.publish()

    def take_held(self, offer: SlotOffer) -> None:
        """Take the slot in which the driver has run since an earlier leader."""
        self.slot = offer
        self._status.history.placed(offer.taskmanager)
        self._status.history_changed()

    def holds(self, allocation_id: str) -> bool:
        """Whether the driver's slot has this allocation."""
        return self.slot is not None and self.slot.allocation_id == allocation_id

    def is_among(self, allocation_ids: Collection[str]) -> bool:
        """Whether the driver's slot has one of these allocations."""
        return self.slot is not None and self.slot.allocation_id in allocation_ids

    def check_on(self, taskmanager: str) -> None:
        """Raise :class:`DriverUnknown` unless ``taskmanager`` was told to launch the driver."""
        if self.slot is None or self.slot.taskmanager != taskmanager:
            raise DriverUnknown(f"{taskmanager} was not asked to run the driver of job {self._status.job_id}")
