"""The rules for connections to destinations outside of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sluice.runtime.sandbox.network import Answer, Connect, Decision


@dataclass(frozen=True, slots=True)
class WouldRefuse:
    """The note on a connection that is allowed only because the policy is not enforced: why it would be refused."""

    reason: str


class EgressRules(Protocol):
    """Decides about destinations outside of the job, for one sandbox. Called in the broker's thread."""

    async def decide(self, connect: Connect) -> Decision:
        """The decision about a connection to a destination outside of the job."""
        ...

    async def resolve(self, name: str) -> Answer:
        """The answer of the sandbox's resolver for a name that is not a host of the job."""
        ...

    def close(self) -> None:
        """Release everything after the end of the sandbox. May be called from any thread."""
        ...
