"""Answers the ``connect`` and ``listen`` calls of one box.

The original call never continues in the kernel. Instead, this module makes the call on the program's own socket, which
belongs to the box's namespace; or it replaces that socket by a socket of the machine's network; or the call fails. A
socket of the machine's network that a program already has is never connected by such a call, only replaced. It listens
only if the program got it for listening.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address

from sluice.runtime.sandbox.network.broker.refused_calls import REASON, RefusedCall
from sluice.runtime.sandbox.network.broker.tracker import Tracker
from sluice.runtime.sandbox.network.events import (
    Address,
    Connect,
    Connection,
    Decision,
    Gate,
    HostAddress,
    Refusal,
    Refuse,
    Rules,
)
from sluice.runtime.sandbox.network.names import Names
from sluice.runtime.sandbox.network.refusals import Refusals
from sluice.runtime.sandbox.network.sockets import (
    NOT_THERE,
    Call,
    acting_as,
    connect_unix,
    cookie_of,
    copy_options,
    family_of,
    for_family,
    foreign_name,
    kernel,
    parse,
    send_timeout,
)

_LOG = logging.getLogger(__name__)

DECISION_SECONDS = 10.0
"""Timeout of a decision; after that the call is refused."""
CONNECT_SECONDS = 130.0
"""Connect timeout for a program that sets none; the kernel's own is about the same."""
PREAMBLE_SECONDS = 5.0
"""Connect timeout for the peer that receives a preamble."""
MAX_PREAMBLE_BYTES = 4096
MAX_CONNECTIONS = 4096
"""Maximum number of connections out of one network at a time."""
MAX_LISTENERS = 256
"""Maximum number of listeners remembered for one network; an older one cannot listen a second time."""
NOT_ITS_OWN = "not_its_own_socket"
"""The reason when a socket of the machine's network may not connect or listen."""
_UNIX_RETRY_SECONDS = 0.01
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class NetworkContext:
    """What all boxes of a network share."""

    cookie: int
    """The cookie of the network namespace."""
    rules: Rules
    names: Names
    tracker: Tracker
    refusals: Refusals
    uid: int | None
    """The job's own uid; None: the uid of this process."""
    listeners: dict[int, None]
    """Cookies of the machine's sockets on which its programs have listened, the latest :data:`MAX_LISTENERS`."""
    owed: dict[int, int]
    """Results of calls that were interrupted after their socket was connected, by the socket's cookie. The repeated
    call returns this result."""
    gate: Gate = field(default_factory=Gate)


class CallHandler:
    """Answers the calls of one box."""

    def __init__(self, box: str, context: NetworkContext) -> None:
        self._box = box
        self._context = context

    async def connect(self, call: Call) -> int:
        """Answer a ``connect`` call; return the error number, or 0."""
        if self._gate_is_closed():
            return errno.EACCES
        sockaddr = call.sockaddr()
        own = call.namespace == self._context.cookie
        family = call.socket.family
        is_tcp = family in _INTERNET and call.socket.type == socket.SOCK_STREAM
        if is_tcp and family_of(sockaddr) != socket.AF_UNSPEC:
            return await self._connect_tcp(call, sockaddr, own=own)
        if not own:
            return self._refused(call, "tcp" if is_tcp else "other", NOT_ITS_OWN, errno.EINVAL)
        if family == socket.AF_UNIX:
            return await self._connect_unix(call, sockaddr)
        if family in _INTERNET:
            return kernel.connect(call.socket.fileno(), sockaddr)
        return self._refused(call, "other", "no_such_family", errno.EAFNOSUPPORT)

    def refuse(self, call: RefusedCall) -> int:
        """Report a call that is always refused; return the error number."""
        address, name = "" if call.address is None else str(call.address), call.what
        if call.address is not None:
            name = self._context.names.name_of(call.address) or ""
        self._context.refusals.add(Refusal(self._box, call.protocol, address, call.port, name, REASON))
        return call.error

    async def _connect_unix(self, call: Call, sockaddr: bytes) -> int:
        """Connect to a Unix socket in the box. Sockets outside are not visible to the box, so they do not exist."""
        if (owed := self._owed(call)) is not None:
            return owed
        try:
            error = await self._connect_without_blocking(call, lambda: connect_unix(call, sockaddr, self._context.uid))
        except OSError as failure:
            error = failure.errno or errno.EPERM
        name = foreign_name(sockaddr)
        if error in NOT_THERE and name:
            self._context.refusals.add(Refusal(self._box, "unix", "", 0, name, "no_such_socket"))
        return error

    async def _connect_tcp(self, call: Call, sockaddr: bytes, *, own: bool) -> int:
        if (owed := self._owed(call)) is not None:
            return owed
        if not own and (answer := self._repeated_connect(call)) is not None:
            return answer
        address, port = parse(sockaddr, call.socket.family)
        name = self._context.names.name_of(address)
        wanted = Connect(self._box, call.process(), call.thread, address, port, name)
        if name is None and self._context.names.is_reserved(address):
            decision: Decision = Refuse(errno.ECONNREFUSED, "no_such_name")
        else:
            decision = await self._decision(wanted)
        if isinstance(decision, Refuse):
            self._refuse(wanted, decision.reason)
            return decision.error
        if isinstance(decision, HostAddress):
            return await self._connect_outside(call, wanted, decision)
        if own:
            return await self._connect_without_blocking(call, lambda: kernel.connect(call.socket.fileno(), sockaddr))
        return self._refused(call, "tcp", NOT_ITS_OWN, errno.EINVAL)

    async def listen(self, call: Call) -> int:
        """Answer a ``listen`` call; return the error number, or 0."""
        if self._gate_is_closed():
            return errno.EACCES
        backlog = call.arguments[1] & 0x7FFFFFFF
        if call.namespace != self._context.cookie:
            if call.cookie in self._context.listeners:
                return kernel.listen(call.socket.fileno(), backlog)
            return self._refused(call, "listen", NOT_ITS_OWN, errno.EINVAL)
        if call.socket.family in _INTERNET and call.socket.type == socket.SOCK_STREAM:
            address, port = _listening_on(call.socket)
            given = self._context.rules.listener(address, port) if port else None
            if given is not None:
                return self._listen_outside(call, given, backlog)
        with acting_as(self._context.uid):
            return kernel.listen(call.socket.fileno(), backlog)

    def _gate_is_closed(self) -> bool:
        gate = self._context.gate
        gate.refused += not gate.open
        return not gate.open

    def _listen_outside(self, call: Call, given: socket.socket, backlog: int) -> int:
        with given:
            if error := kernel.listen(given.fileno(), backlog):
                return error
            copy_options(call.socket, given)
            call.put(given)
            listeners = self._context.listeners
            listeners[cookie_of(given)] = None
            while len(listeners) > MAX_LISTENERS:
                del listeners[next(iter(listeners))]
            return 0

    async def _decision(self, wanted: Connect) -> Decision:
        try:
            async with asyncio.timeout(DECISION_SECONDS):
                return await self._context.rules.decide(wanted)
        except TimeoutError:
            return Refuse(errno.ETIMEDOUT, "no_decision")
        except Exception:  # noqa: BLE001 - any error refuses the connection
            _LOG.exception("the decision about a connection of a job failed; the connection is refused")
            return Refuse(errno.EACCES, "no_decision")

    async def _connect_without_blocking(self, call: Call, attempt: Callable[[], int]) -> int:
        """Connect the program's own socket without blocking this thread, even if the socket is blocking."""
        fd = call.socket.fileno()
        if not os.get_blocking(fd):
            return attempt()
        until = time.monotonic() + (send_timeout(call.socket) or CONNECT_SECONDS)
        while True:
            os.set_blocking(fd, False)
            try:
                error = attempt()
            finally:
                os.set_blocking(fd, True)
            if error not in (errno.EINPROGRESS, errno.EALREADY, errno.EAGAIN) or time.monotonic() > until:
                return error
            if error == errno.EAGAIN:  # the queue of a Unix socket is full
                await asyncio.sleep(_UNIX_RETRY_SECONDS)
            else:
                await _writable(call.socket, until)
            if not call.waits():
                return errno.EINTR

    async def _connect_outside(self, call: Call, wanted: Connect, to: HostAddress) -> int:
        if len(self._context.tracker) >= MAX_CONNECTIONS or len(to.preamble) > MAX_PREAMBLE_BYTES:
            self._refuse(wanted, "too_many_connections")
            return errno.ENOBUFS
        if _is_connected(call.socket):
            return errno.EISCONN
        with socket.socket(call.socket.family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as made:
            made.setblocking(False)
            copy_options(call.socket, made)
            if made.family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            target = for_family(to.address, to.port, made.family)
            error = made.connect_ex(target)
            waits = bool(to.preamble) or os.get_blocking(call.socket.fileno())
            limit = PREAMBLE_SECONDS if to.preamble else send_timeout(call.socket) or CONNECT_SECONDS
            if error == errno.EINPROGRESS and await _writable(made, time.monotonic() + (limit if waits else 0.0)):
                error = made.connect_ex(target)  # returns the result of the attempt
            if error == errno.EINPROGRESS and to.preamble:
                return errno.ETIMEDOUT
            if error not in (0, errno.EINPROGRESS):
                return error
            if to.preamble and made.send(to.preamble) != len(to.preamble):
                return errno.ECONNABORTED
            connection = Connection(next(_ids), wanted, to, time.time())
            call.put(made)
            self._context.tracker.add(connection, made)
            return error

    def _repeated_connect(self, call: Call) -> int | None:
        """The result of another ``connect`` on a socket of the machine; None: it may start a new connection."""
        if _is_connected(call.socket):
            return errno.EISCONN
        if call.cookie in self._context.listeners:
            return errno.EINVAL
        error = call.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            return error
        return errno.EALREADY if not _is_writable(call.socket) else None

    def answer_lost(self, call: Call, error: int) -> None:
        """Remember the result of a call that was interrupted: the program repeats it with its current socket."""
        owed = self._context.owed
        if call.given is not None:
            owed[call.given] = error
        elif error == 0:
            owed[call.cookie] = 0
        while len(owed) > MAX_CONNECTIONS:  # drop results of programs that did not repeat the call
            del owed[next(iter(owed))]

    def _owed(self, call: Call) -> int | None:
        """The result that the program has not received; None: none, or the socket is not connected any more."""
        owed = self._context.owed.pop(call.cookie, None)
        return None if owed == 0 and not _is_connected(call.socket) else owed

    def _refuse(self, wanted: Connect, reason: str) -> None:
        address = str(wanted.address)
        self._context.refusals.add(Refusal(self._box, "tcp", address, wanted.port, wanted.name or "", reason))

    def _refused(self, call: Call, protocol: str, reason: str, error: int) -> int:
        self._context.refusals.add(Refusal(self._box, protocol, "", 0, call.process(), reason))
        return error


def _listening_on(of: socket.socket) -> tuple[Address, int]:
    host, port = of.getsockname()[:2]
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address, port


def _is_connected(which: socket.socket) -> bool:
    try:
        which.getpeername()
    except OSError:
        return False
    return True


def _is_writable(which: socket.socket) -> bool:
    poll = select.poll()
    poll.register(which, select.POLLOUT)
    return bool(poll.poll(0))


async def _writable(which: socket.socket, until: float) -> bool:
    """Wait until an attempt to connect has succeeded or failed; False: not before ``until``."""
    if _is_writable(which):
        return True
    if until <= time.monotonic():
        return False
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(which, writable.set)
    try:
        async with asyncio.timeout(until - time.monotonic()):
            await writable.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_writer(which)
    return True
