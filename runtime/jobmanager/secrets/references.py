"""Checks of the secrets that a submission refers to."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.runtime.jobmanager.secrets.errors import InvalidSecret
from sluice.runtime.jobmanager.secrets.records import check_secret_name
from sluice.runtime.messages import SecretReference

MAX_SECRETS_OF_A_JOB = 32


def check_secret_references(references: Sequence[SecretReference]) -> None:
    """Raise :class:`InvalidSecret` unless each reference has a valid name and its own plain file name."""
    if len(references) > MAX_SECRETS_OF_A_JOB:
        raise InvalidSecret(f"{len(references)} secrets for one job", f"at most {MAX_SECRETS_OF_A_JOB}")
    files = [check_secret_name(reference.file or check_secret_name(reference.name)) for reference in references]
    for reference in references:
        check_secret_name(reference.name)
    if len(set(files)) != len(files):
        raise InvalidSecret("two secrets of the job have the same file name", "choose another one: --secret NAME=FILE")
