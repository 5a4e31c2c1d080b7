"""Chooses the workers of a shuffle. Pure functions."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that may get a shuffle. ``disk_used`` and ``memory_used`` are fractions from 0 to 1.

    A worker that is ``avoided`` is chosen only if there are not enough others.
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
    """Choose the least loaded workers for one shuffle.

    Returns their names in the order in which maps are spread over them; empty if there are fewer than ``replicas``.

    The load of a worker is the sum of four fractions: used disk space, used memory, the bytes that it keeps, and the
    partitions of live shuffles that it was assigned (``assigned``), the last two relative to the worker that has most.
    Data lags behind assignments, so ``assigned`` is what spreads shuffles that start at the same time. Neighbours in
    the order are on different hosts if possible, because the neighbour keeps the replica of a map's output.
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
    """Order the candidates so that hosts alternate, beginning with the host that has most workers."""
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
