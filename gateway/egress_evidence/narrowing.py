"""Open destinations whose rules have become narrower: the name is allowed as ever, the connection perhaps not.

Which address a connection leads to only the proxy knows, and what it speaks nobody after its first bytes. So when a
rule for its destination loses an address, a protocol or more, every connection there ends, and may be made again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from sluice.core import EgressTarget
from sluice.gateway.authz import EgressRuling

REFUSE_SECONDS = 2.0
"""How long a destination is refused then: an answer may be lost on its way to who ends connections."""
MAX_DESTINATIONS = 20_000
"""That are remembered; those that were asked about longest ago are forgotten first."""


class Narrowing:
    """What rules allowed when a destination was asked about before.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[EgressTarget, tuple[frozenset[tuple[str, ...]], float]] = OrderedDict()

    def refuses(self, target: EgressTarget, ruling: EgressRuling) -> bool:
        """Whether connections to ``target``, which ``ruling`` allows, must be made anew."""
        breadth, now = ruling.breadth, self._clock()
        before, until = self._seen.pop(target, (breadth, 0.0))
        if not before <= breadth:
            until = now + REFUSE_SECONDS
        self._seen[target] = breadth, until
        while len(self._seen) > MAX_DESTINATIONS:
            self._seen.popitem(last=False)
        return now < until
