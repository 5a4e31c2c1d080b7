"""The secrets of a job's process: as files in its box, and as values to mask in its logs."""

from __future__ import annotations

import resource
from collections.abc import Iterable

from sluice.runtime.masking import Masker
from sluice.runtime.messages import GivenSecret
from sluice.runtime.sandbox import SecretFile


def secret_files(given: Iterable[GivenSecret]) -> tuple[SecretFile, ...]:
    """The files of those secrets that the process may read."""
    return tuple(SecretFile(each.file, each.content) for each in given if each.file)


def masker_of(given: Iterable[GivenSecret]) -> Masker:
    """A masker for all given secrets, with every version of each."""
    return Masker((each.name, each.content) for each in given)


def forbid_core_dumps() -> None:
    """Disable core dumps of this process and its children from now on (setrlimit(2))."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
