"""The private network of an attempt: one namespace for its boxes on this machine, with the services for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sluice.runtime.sandbox.network.broker import BoxCalls, Broker, CallHandler, NetworkContext, Tracker
from sluice.runtime.sandbox.network.broker.broker import broker
from sluice.runtime.sandbox.network.events import Connection, ConnectionObserver, Gate, Rules
from sluice.runtime.sandbox.network.names import Names, Resolver, network_files
from sluice.runtime.sandbox.network.namespace import Namespace
from sluice.runtime.sandbox.network.packet_monitor import PacketMonitor
from sluice.runtime.sandbox.network.refusals import Refusals
from sluice.runtime.sandbox.network.sockets import LastCounters, SocketTable
from sluice.runtime.sandbox.seccomp import network_filter


class Network:
    """One network namespace with its broker, resolver and packet monitor.

    It may be used from any thread except the broker's. It works until :meth:`close` or the end of this process. After
    that, every connection attempt of its boxes fails.
    """

    def __init__(
        self,
        namespace: Namespace,
        rules: Rules,
        observer: ConnectionObserver,
        uid: int | None,
        hosts: Mapping[str, str],
        *,
        gate: Gate | None = None,
    ) -> None:
        self._namespace = namespace
        self._broker: Broker = broker()
        self._files = network_files(hosts)
        self._filter = network_filter()
        self._calls: list[BoxCalls] = []
        self._closed = False
        self._broker.run(self._start(rules, observer, uid, gate or Gate()))

    @classmethod
    def open(
        cls,
        rules: Rules,
        observer: ConnectionObserver,
        *,
        uid: int | None = None,
        hosts: Mapping[str, str] | None = None,
        gate: Gate | None = None,
    ) -> Network:
        """Create the network; takes about 50 ms.

        Args:
            rules: decides about connections and host names.
            observer: receives reports about them.
            uid: the job's own uid, see :meth:`sluice.runtime.sandbox.Sandbox.uid`; None: the job has the uid of this
                process, in a user namespace.
            hosts: addresses by host name for the hosts file of its boxes, besides ``localhost``.
            gate: the caller may open and close it at any time; None: it stays open.

        Raises:
            SandboxUnavailable: this machine does not allow it. The error contains the cause and a remedy.
        """
        namespace = Namespace.make(own_user=uid is None)
        try:
            return cls(namespace, rules, observer, uid, hosts or {}, gate=gate)
        except BaseException:
            namespace.close()
            raise

    async def _start(self, rules: Rules, observer: ConnectionObserver, uid: int | None, gate: Gate) -> None:
        names = Names()
        self._refusals = Refusals(observer)
        self._table = SocketTable()
        self._last = LastCounters()
        asyncio.get_running_loop().add_reader(self._last, self._last.read)
        self._tracker = Tracker(observer, self._table, self._last, self._namespace.inode)
        cookie = self._namespace.cookie
        self._context = NetworkContext(cookie, rules, names, self._tracker, self._refusals, uid, {}, {}, gate)
        self._resolver = Resolver(rules, names, self._refusals)
        await self._resolver.start(self._namespace.questions, self._namespace.streams)
        self._monitor = PacketMonitor(self._namespace.packets, names, self._refusals)
        self._monitor.start()

    def attach(self, box: str) -> Attachment:
        """The attachment of one box, named ``box`` in rows, for :meth:`sluice.runtime.sandbox.Sandbox.box`."""
        return Attachment(self, box)

    def end(self, wanted: Callable[[Connection], bool], reason: str) -> int:
        """End open connections at once, with ``reason`` in their rows; return their number."""
        return self._broker.run(self._tracker.end(wanted, reason))

    def close(self) -> None:
        """Close the network. Its boxes should have ended: programs still running in them cannot connect any more."""
        if self._closed:
            return
        self._closed = True
        self._broker.run(self._stop())
        self._namespace.close()

    async def _stop(self) -> None:
        for calls in self._calls:
            calls.close()
        await self._tracker.end(lambda _: True, "box_ended")
        self._tracker.close("box_ended")
        self._monitor.close()
        await self._resolver.close()
        self._refusals.flush()
        self._table.close()
        asyncio.get_running_loop().remove_reader(self._last)
        self._last.close()

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Descriptors of its namespaces, in the order to enter them."""
        return self._namespace.descriptors

    @property
    def files(self) -> Mapping[str, bytes]:
        """Contents of files by path for its boxes."""
        return self._files

    @property
    def filter(self) -> bytes:
        """The seccomp filter of its boxes."""
        return self._filter

    @contextlib.contextmanager
    def channel(self, box: str) -> Iterator[int]:
        """Open a new channel; yields the end for the box, while the broker waits at the other end."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            calls = BoxCalls(box, CallHandler(box, self._context))

            def serve() -> None:
                self._calls = [each for each in self._calls if not each.ended]
                self._calls.append(calls)
                calls.begin(ours)

            self._broker.loop.call_soon_threadsafe(serve)
            yield theirs.fileno()


@dataclass(frozen=True, slots=True)
class Attachment:
    """Attaches one box to a network."""

    network: Network
    box: str

    @property
    def filter(self) -> bytes:
        """The seccomp filter for the calls that the broker answers."""
        return self.network.filter

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Descriptors of the namespaces to enter, in order."""
        return self.network.namespaces

    @property
    def files(self) -> Mapping[str, bytes]:
        """The box's files for resolving host names."""
        return self.network.files

    def channel(self) -> contextlib.AbstractContextManager[int]:
        """The box's end of a channel to the broker."""
        return self.network.channel(self.box)
