"""Detects open destinations whose rules have become stricter: the name is allowed, but perhaps not the connection.

Only the proxy knows which address a connection uses, and nobody knows its protocol after the first bytes. So if a rule
for a destination loses an address or a protocol, or becomes stricter otherwise, every connection to it is ended. The
job may connect again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from sluice.core import EgressTarget
from sluice.gateway.authz import EgressRuling

REFUSE_SECONDS = 2.0
"""How long the destination is then refused, in case an answer to the process that ends connections is lost."""
MAX_DESTINATIONS = 20_000
"""Maximum number of remembered destinations. Those with the oldest requests are dropped first."""


class Narrowing:
    """What the rules allowed when each destination was last checked.

    Args:
        clock: monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: OrderedDict[EgressTarget, tuple[frozenset[tuple[str, ...]], float]] = OrderedDict()

    def refuses(self, target: EgressTarget, ruling: EgressRuling) -> bool:
        """Whether connections to ``target``, which ``ruling`` allows, must be closed and made again."""
        scope, now = ruling.scope, self._clock()
        before, until = self._seen.pop(target, (scope, 0.0))
        if not before <= scope:
            until = now + REFUSE_SECONDS
        self._seen[target] = scope, until
        while len(self._seen) > MAX_DESTINATIONS:
            self._seen.popitem(last=False)
        return now < until
