"""The hosts and ports on which the processes of one job listen for each other, as assigned by TaskManagers. No I/O.

A sandbox can reach only these addresses, and what the policy allows. The job itself reports none of them: a driver's
agent and the TaskManagers of executors report the ports that they hold, and the slots say on which hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sluice.core import ANY_PORT
from sluice.runtime.jobmanager.attempt.decisions import Executor, ExecutorState
from sluice.runtime.messages import MAX_LISTENER_HOSTS, SlotOffer


class JobListeners:
    """The ports of one job's driver and executors, by host.

    Args:
        executors: returns the executors of the attempt, ended ones included.
        driver: returns the slot of the driver; None until it has one.
    """

    def __init__(self, executors: Callable[[], Iterable[Executor]], driver: Callable[[], SlotOffer | None]) -> None:
        self._executors = executors
        self._driver = driver
        self._of_driver: frozenset[int] = frozenset()
        self._of_executors: dict[int, frozenset[int]] = {}

    def driver(self, ports: Iterable[int]) -> None:
        """Set the ports of the driver on its host."""
        self._of_driver = frozenset(ports)

    def executor(self, executor_id: int, ports: Iterable[int]) -> None:
        """Set the ports of an executor on its host."""
        running = {each.id for each in self._executors() if each.state is not ExecutorState.EXITED}
        self._of_executors = {number: held for number, held in self._of_executors.items() if number in running}
        self._of_executors[executor_id] = frozenset(ports)

    def on(self, port: int, others: Sequence[str] = ()) -> tuple[str, ...]:
        """The hosts on which the job's processes listen on ``port``, or :data:`ANY_PORT`, and ``others``; each once."""
        hosts = dict.fromkeys(others)
        slot = self._driver()
        if slot is not None and _has(self._of_driver, port):
            hosts[slot.host] = None
        for each in self._executors():
            if each.state is not ExecutorState.EXITED and _has(self._of_executors.get(each.id, frozenset()), port):
                hosts[each.slot.host] = None
        return tuple(hosts)[:MAX_LISTENER_HOSTS]


def _has(ports: frozenset[int], port: int) -> bool:
    return bool(ports) if port == ANY_PORT else port in ports
