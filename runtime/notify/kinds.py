"""The kinds of notifications."""

from __future__ import annotations

import enum


class Kind(enum.StrEnum):
    """The kinds of notifications as the configuration names them, most urgent first. Tenants cause the last kind."""

    SUPERSEDED_RENEWAL = "superseded-renewal"
    CERTIFICATE_NOT_RENEWED = "certificate-not-renewed"
    AUTHORITY_ENDS = "authority-ends"
    AUDIT_FINDING = "audit-finding"
    WORKER_EXCLUDED = "worker-excluded"
    JOB_FAILED = "job-failed"
