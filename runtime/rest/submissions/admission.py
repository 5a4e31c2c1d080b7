"""The parts of the assertion that admitted a submission, which are kept for the receipt of its job."""

from __future__ import annotations

import secrets

from sluice.pki.assertions import Assertion
from sluice.runtime.messages import Admission

SALT_BYTES = 32


def admission_of(who: Assertion) -> Admission:
    """The record of how the gateway admitted the submission of ``who``."""
    return Admission(
        method=who.principal.method,
        credential_kind=who.principal.credential.kind,
        credential=who.principal.credential.id,
        operation=who.operation,
        request_id=who.request_id,
        assertion_id=who.id or "",
        policy=who.policy,
    )


def new_salt() -> str:
    """A salt for the commitment to the parameters of a job."""
    return secrets.token_hex(SALT_BYTES)
