"""The registered TaskManagers: their gateways, and what is known of each besides its slots."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.core import EgressMode
from sluice.runtime.gateways import ENDED_UI, EndedUiGateway, TaskExecutorGateway
from sluice.runtime.jobmanager.errors import LogNotFound, TaskManagerNotFound
from sluice.runtime.jobmanager.slots.slot_ledger import TaskManagerSlots
from sluice.runtime.jobmanager.views import SlotView, TaskManagerView
from sluice.runtime.messages import WarmJvms
from sluice.runtime.rpc import RemotePeer
from sluice.runtime.sandbox import IsolationLevel


@dataclass(slots=True)
class Registered:
    """A TaskManager that is registered; ``last_heartbeat`` in epoch milliseconds."""

    peer: RemotePeer
    gateway: TaskExecutorGateway
    last_heartbeat: int
    draining: bool | None = None
    """Whether it should drain; None: nobody has decided since it registered, so its own report counts."""
    leaving: bool = False
    """It has been told to leave."""
    isolation: IsolationLevel = IsolationLevel.NONE
    egress: EgressMode = EgressMode.OFF
    warm: WarmJvms | None = None

    def view(self, slots: TaskManagerSlots, drivers: TaskManagerSlots) -> TaskManagerView:
        """The view of it for users; ``slots`` are those for executors."""
        return TaskManagerView(
            id=slots.name,
            identity=str(self.peer.identity),
            host=slots.host,
            slots_total=slots.defaults,
            slots_free=slots.free,
            slots=tuple(
                SlotView(
                    slot=slot.index,
                    state=slot.state,
                    job_id=slot.job_id,
                    cores=slot.profile.cores,
                    memory_mb=slot.profile.memory_mb,
                )
                for _, slot in sorted(slots.slots.items())
            ),
            last_heartbeat=self.last_heartbeat,
            total=slots.total,
            free=slots.free_total,
            draining=slots.draining,
            isolation=self.isolation,
            egress=self.egress,
            driver_slots_total=drivers.defaults,
            driver_slots_free=drivers.free,
            drivers=tuple(slot.job_id for _, slot in sorted(drivers.slots.items()) if slot.job_id),
            warm=self.warm,
        )


class RegisteredTaskManagers(dict[str, Registered]):
    """All of them, by name."""

    def named(self, name: str) -> Registered:
        """The TaskManager of this name; raises ``TaskManagerNotFound``."""
        if (found := self.get(name)) is None:
            raise TaskManagerNotFound(f"no TaskManager {name[:64]!r} is registered", "see the list of TaskManagers")
        return found

    def with_logs(self, name: str) -> TaskExecutorGateway:
        """The gateway that reads the logs of this TaskManager; raises ``LogNotFound``."""
        if (found := self.get(name)) is None:
            raise LogNotFound(f"TaskManager {name} is not there any more, and its logs with it")
        return found.gateway

    def with_ended_uis(self, name: str) -> EndedUiGateway:
        """The gateway that shows Spark's UI of ended jobs; raises ``TaskManagerNotFound``."""
        return self.named(name).peer.gateway(EndedUiGateway, ENDED_UI)

    def ended_ui_hosts(self) -> tuple[str, ...]:
        """The TaskManagers with a sandbox; draining ones only while there is no other."""
        able = {name: each for name, each in self.items() if each.isolation is IsolationLevel.SANDBOX}
        return tuple(name for name, each in able.items() if not each.draining) or tuple(able)
