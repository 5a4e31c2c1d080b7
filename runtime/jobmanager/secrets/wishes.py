"""Which secrets a submission may name."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.runtime.jobmanager.secrets.errors import InvalidSecret
from sluice.runtime.jobmanager.secrets.records import check_secret_name
from sluice.runtime.messages import SecretWish

MAX_SECRETS_OF_A_JOB = 32


def check_wishes(wishes: Sequence[SecretWish]) -> None:
    """Raise :class:`InvalidSecret` unless each has a name and a plain file name of its own."""
    if len(wishes) > MAX_SECRETS_OF_A_JOB:
        raise InvalidSecret(f"{len(wishes)} secrets for one job", f"at most {MAX_SECRETS_OF_A_JOB}")
    files = [check_secret_name(wish.file or check_secret_name(wish.name)) for wish in wishes]
    for wish in wishes:
        check_secret_name(wish.name)
    if len(set(files)) != len(files):
        raise InvalidSecret("two secrets of the job have the same file name", "name another: --secret NAME=FILE")
