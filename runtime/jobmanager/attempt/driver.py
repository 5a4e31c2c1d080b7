"""The process of an attempt's driver: its identity, and its end."""

from __future__ import annotations

import logging

from sluice.core.errors import StoreError
from sluice.runtime.ha.errors import LeadershipLost
from sluice.runtime.jobmanager.attempt.state import AttemptState
from sluice.runtime.jobmanager.views import Failure
from sluice.runtime.messages import JobState
from sluice.runtime.node.identity_renewal import LOOK_SECONDS, RenewalWatch

_LOG = logging.getLogger(__name__)

CANCEL_MARGIN_SECONDS = 5.0
"""A driver that was told to end gets its grace and this, then it is killed."""
RENEWAL_RETRY_SECONDS = 30.0
KILL_GRACE_SECONDS = 2.0
"""What a driver that had its time gets between SIGTERM and SIGKILL."""


class AttemptDriver(AttemptState):
    """Sees to it that a driver that is to end does, and that one that goes on has a fresh certificate."""

    def _fail(self, error: str, traceback: str = "") -> None:
        if not self._life.may(JobState.FAILING) or self._life.state is JobState.RESTARTING:
            return
        _LOG.warning("job %s fails: %s", self.job_id, error)
        self._failure = Failure(error=error, traceback=traceback)
        self._life.to(JobState.FAILING, self._now_ms())
        self._end_driver()
        self._publish()

    def _end_driver(self) -> None:
        """Ask the driver to end, and see to it that it does."""
        if self._child is None or not self._child.running:
            return  # `_driver_started` or `_driver_ended` is on its way and sees the state
        grace = self._services.cancel_grace
        if self._driver is None or self._driver_peer is None or self._driver_peer.closed:
            self._stop_driver(grace)
            return
        self.hand_off(self._driver.cancel(grace), failed=lambda _: self._stop_driver(grace))
        self.call_later(grace + CANCEL_MARGIN_SECONDS, self._kill_driver)

    def _stop_driver(self, grace: float) -> None:
        """SIGTERM (the agent then ends its JVM and Python in order), and SIGKILL after ``grace`` seconds."""
        if self._child is not None and self._child.running:
            self.hand_off(self._child.stop(grace))

    def _kill_driver(self) -> None:
        """It had its time."""
        self._stop_driver(KILL_GRACE_SECONDS)

    def _last_grace(self) -> float:
        """What the driver gets to end in order: nothing when another leader may start the job at any moment."""
        try:
            self._services.check_leadership()
        except LeadershipLost:
            return 0.0
        return self._services.cancel_grace

    def _check_registered(self) -> None:
        if self._driver is None:
            self._fail(f"the driver did not register within {self._services.driver_start_timeout:g} s")

    def _watch_driver_identity(self) -> None:
        try:
            watch = self._attempt.renewal_watch()
        except StoreError as error:  # it is being replaced, or the disk fails: it is renewed all the same
            _LOG.error("job %s: cannot read the driver's identity: %s", self.job_id, error)
            self.call_later(RENEWAL_RETRY_SECONDS, self._renew_driver_identity)
        else:
            self.call_later(LOOK_SECONDS, self._look_at_driver_identity, watch)

    def _look_at_driver_identity(self, watch: RenewalWatch) -> None:
        if watch.is_due():
            self._renew_driver_identity()
        elif self._child is not None and self._child.running:
            self.call_later(LOOK_SECONDS, self._look_at_driver_identity, watch)

    def _renew_driver_identity(self) -> None:
        if self._child is None or not self._child.running:
            return

        def renewed(_: None) -> None:
            self._watch_driver_identity()

        def failed(error: BaseException) -> None:
            _LOG.error("job %s: cannot renew the driver's identity: %s", self.job_id, error)
            self.call_later(RENEWAL_RETRY_SECONDS, self._renew_driver_identity)

        self.hand_off(self._attempt.renew_identity(), then=renewed, failed=failed)
