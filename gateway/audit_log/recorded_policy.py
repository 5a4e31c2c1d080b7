"""A policy file that records each change in the audit log before the first decision that uses it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from sluice.core import SluiceError, read_bounded
from sluice.gateway.audit_log.log import AuditLog
from sluice.gateway.authz import MAX_POLICY_BYTES, Policy, PolicyFile

AUTH_SERVICE = "local:auth-service"
"""The principal of policy changes in the log, because the author of the file is unknown."""


class RecordedPolicy(PolicyFile):
    """A policy file whose loading, changes and rejections are recorded as acts in the audit log."""

    def __init__(self, locate: Callable[[], Path], operations: Callable[[], frozenset[str]], log: AuditLog) -> None:
        super().__init__(locate, operations)
        self._place = locate
        self._log = log
        self._seen: tuple[Policy, str] | None = None
        self._digest = ""

    def get(self) -> Policy:
        """The current policy. Raises if a change to it cannot be recorded; then no decision may use it."""
        policy = super().get()
        if self._seen is None or policy is not self._seen[0] or self.rejected != self._seen[1]:
            self._record()
            self._seen = (policy, self.rejected)
        return policy

    def _record(self) -> None:
        path = self._place()
        try:
            digest = hashlib.sha256(read_bounded(path, MAX_POLICY_BYTES)).hexdigest()
        except SluiceError:
            digest = "unreadable"
        facts = {"file": path.name, "sha256": digest}
        if self.rejected:
            self._log.event("policy.rejected", AUTH_SERVICE, {**facts, "why": self.rejected})
        elif digest != self._digest:
            kind = "policy.changed" if self._digest else "policy.loaded"
            self._log.event(kind, AUTH_SERVICE, {**facts, "before": self._digest})
            self._digest = digest
