"""Which workers keep a shuffle. Values in, values out."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that may get a shuffle; shares are between 0 and 1.

    ``avoided``: only when there is nobody else.
    """

    name: str
    host: str
    disk_used: float = 0.0
    memory_used: float = 0.0
    bytes_kept: int = 0
    avoided: bool = False


def choose(
    candidates: Sequence[Candidate],
    assigned: Mapping[str, int],
    *,
    partitions: int,
    replicas: int,
    limit: int,
) -> tuple[str, ...]:
    """Names of the workers for one shuffle, in the order in which maps are spread over them; empty: too few.

    The least loaded ones: a worker's load is the sum of how full its disks are, how full its memory is, what it keeps,
    and how many partitions of live shuffles it was given already (``assigned``), the latter two in comparison with the
    worker that has most. Data lags behind assignments, so that ``assigned`` is what spreads shuffles that begin at the
    same time. Neighbours in the order are on different hosts where that can be, because the replica of a map's output
    is kept by the neighbour.
    """
    if len(candidates) < replicas:
        return ()
    most_assigned = max((assigned.get(each.name, 0) for each in candidates), default=0) or 1
    most_kept = max((each.bytes_kept for each in candidates), default=0) or 1

    def rank(each: Candidate) -> tuple[bool, float, str]:
        load = each.disk_used + each.memory_used + each.bytes_kept / most_kept
        return each.avoided, load + assigned.get(each.name, 0) / most_assigned, each.name

    wished = max(replicas, min(limit, partitions))
    ranked = sorted(candidates, key=rank)
    chosen = [each for each in ranked if not each.avoided][:wished]
    chosen += [each for each in ranked if each.avoided][: max(0, replicas - len(chosen))]
    return tuple(each.name for each in _spread(chosen))


def _spread(chosen: Sequence[Candidate]) -> list[Candidate]:
    """The same, the hosts taking turns, the one with most workers first."""
    by_host: dict[str, deque[Candidate]] = defaultdict(deque)
    for each in chosen:
        by_host[each.host].append(each)
    order: list[Candidate] = []
    previous = ""
    while by_host:
        others = [host for host in by_host if host != previous] or list(by_host)
        previous = max(others, key=lambda host: len(by_host[host]))
        order.append(by_host[previous].popleft())
        if not by_host[previous]:
            del by_host[previous]
    return order
