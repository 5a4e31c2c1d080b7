"""The interface between a box and its private network; :mod:`sluice.runtime.sandbox.network` implements it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol


class NetworkAttachment(Protocol):
    """Attaches one box to a private network. Boxes of the same job may share a network."""

    @property
    def filter(self) -> bytes:
        """The seccomp filter for the system calls that a process outside the box answers."""

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Descriptors of the namespaces to enter, in order."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """Contents of files by path that replace the machine's files in the box."""

    def channel(self) -> AbstractContextManager[int]:
        """The socket over which the box sends its seccomp listener; open within the context."""
