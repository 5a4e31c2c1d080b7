"""What a box needs of a network of its own; :mod:`sluice.runtime.sandbox.network` has it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol


class NetworkAttachment(Protocol):
    """The place of one box in a network that it may share with other boxes of its job."""

    @property
    def filter(self) -> bytes:
        """The filter of system calls whose calls somebody outside answers."""

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Descriptors of the namespaces to enter, in this order."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """Files of the box, by path, in the place of the machine's."""

    def channel(self) -> AbstractContextManager[int]:
        """The socket over which the box gives away the right to answer; open within the context."""
