"""The secrets that a process of a job was given: as files of its box, and as what its logs must not show."""

from __future__ import annotations

import resource
from collections.abc import Iterable

from sluice.runtime.masking import Masker
from sluice.runtime.messages import GivenSecret
from sluice.runtime.sandbox import SecretFile


def secret_files(given: Iterable[GivenSecret]) -> tuple[SecretFile, ...]:
    """The files of the secrets that the process may see."""
    return tuple(SecretFile(each.file, each.content) for each in given if each.file)


def masker_of(given: Iterable[GivenSecret]) -> Masker:
    """Masks all of them; two versions of one secret are told apart by nobody."""
    return Masker({each.name: each.content for each in given})


def forbid_core_dumps() -> None:
    """From now on neither this process nor its children leave their memory on disk when they crash (setrlimit(2))."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
