"""The rules for connections that lead out of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.sandbox.network import Answer, Connect, Decision


@dataclass(frozen=True, slots=True)
class WouldRefuse:
    """The note of a decision to let a connection through only to record it: why it would be refused otherwise."""

    reason: str


class EgressRules(Protocol):
    """Decide about destinations outside of the job, for one box. Called in the broker's thread."""

    async def decide(self, connect: Connect) -> Decision:
        """What becomes of a connection to something that is not the job's."""
        ...

    async def resolve(self, name: str) -> Answer:
        """What the box's resolver answers for a name that is no host of the job."""
        ...

    def close(self) -> None:
        """The box has ended; from any thread."""
        ...
