"""The DNS resolver of a box. It queries no server: a name that the policy allows gets a placeholder address.

So DNS queries cannot carry data out of the box, and answers cannot carry data in. The resolver listens on 127.0.0.53 in
the box's namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Any

from sluice.runtime.sandbox.network.events import Address, Refusal, Rules
from sluice.runtime.sandbox.network.names.names import Names, normal
from sluice.runtime.sandbox.network.refusals import Refusals

if TYPE_CHECKING:
    import dns.message

_LOG = logging.getLogger(__name__)

TTL_SECONDS = 60
MAX_QUESTION_BYTES = 1232
"""Maximum length of a message; a query is much shorter."""
MAX_QUESTIONS_AT_ONCE = 16
PAUSE_SECONDS = 0.02
"""The pause after so many UDP queries and after each TCP query, so that a job that floods the resolver costs little."""
MAX_WAITING = 64
"""Maximum number of UDP queries that wait for a decision; further ones wait in the kernel."""
DECISION_SECONDS = 4.0
"""Timeout of a decision, shorter than the timeout of a program's query."""
WHY = "the policy of the cluster does not allow this job to connect to any port of it"
"""The extended DNS error (RFC 8914) of a refused name."""
MAX_STREAMS = 16
"""Maximum number of TCP connections to the resolver at a time."""
STREAM_SECONDS = 10.0
"""Idle timeout of a TCP connection."""
_LENGTH = struct.Struct("!H")


class _NotDecided(Exception):
    """There is currently no decision whether a name exists for the job."""


class Resolver:
    """The resolver of one network; used in the broker's thread."""

    def __init__(self, rules: Rules, names: Names, refusals: Refusals) -> None:
        self._rules = rules
        self._names = names
        self._refusals = refusals
        self._questions: socket.socket | None = None
        self._pausing: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._streams: set[asyncio.StreamWriter] = set()
        self._waiting: set[asyncio.Task[None]] = set()

    async def start(self, questions: socket.socket, streams: socket.socket) -> None:
        """Answer queries over duplicates of these sockets."""
        self._questions = questions.dup()
        self._questions.setblocking(False)
        self._resume()
        self._server = await asyncio.start_server(self._stream, sock=streams.dup())

    async def close(self) -> None:
        """Stop answering."""
        if self._pausing is not None:
            self._pausing.cancel()
        if self._questions is not None:
            asyncio.get_running_loop().remove_reader(self._questions)
            self._questions.close()
        if self._server is not None:
            self._server.close()
        for writer in self._streams:
            writer.transport.abort()
        for task in self._waiting:
            task.cancel()

    def _resume(self) -> None:
        self._pausing = None
        if self._questions is not None:
            asyncio.get_running_loop().add_reader(self._questions, self._asked, self._questions)

    def _asked(self, questions: socket.socket) -> None:
        for _ in range(MAX_QUESTIONS_AT_ONCE):
            try:
                question, sender = questions.recvfrom(MAX_QUESTION_BYTES + 1)
            except OSError:  # no more queries, or an earlier sender is gone
                return
            task = asyncio.get_running_loop().create_task(self._reply(questions, question, sender))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
            if len(self._waiting) >= MAX_WAITING:
                break
        loop = asyncio.get_running_loop()
        loop.remove_reader(questions)
        self._pausing = loop.call_later(PAUSE_SECONDS, self._resume_when_free)

    def _resume_when_free(self) -> None:
        if len(self._waiting) < MAX_WAITING:
            self._resume()
        else:
            self._pausing = asyncio.get_running_loop().call_later(PAUSE_SECONDS, self._resume_when_free)

    async def _reply(self, questions: socket.socket, question: bytes, sender: tuple[Any, ...]) -> None:
        reply = await self.answer(question, limit=MAX_QUESTION_BYTES)
        if reply is not None:
            with contextlib.suppress(OSError):
                questions.sendto(reply, sender)

    async def answer(self, question: bytes, *, limit: int | None = None) -> bytes | None:
        """The answer as a message of at most ``limit`` bytes; None: ``question`` is not a valid query."""
        import dns.exception  # takes a tenth of a second, and only processes with boxes need it
        import dns.flags
        import dns.message
        import dns.opcode
        import dns.rcode

        if len(question) > MAX_QUESTION_BYTES:
            return None
        try:
            message = dns.message.from_wire(question, ignore_trailing=True)
            if message.flags & dns.flags.QR or len(message.question) != 1:
                return None
            reply = dns.message.make_response(message, recursion_available=True)
            if message.opcode() != dns.opcode.QUERY:
                reply.set_rcode(dns.rcode.NOTIMP)
            else:
                await self._fill(message, reply)
            return reply.to_wire(max_size=limit or 0)
        except dns.exception.TooBig:
            return None
        except (dns.exception.DNSException, ValueError, struct.error):
            return None

    async def _fill(self, message: dns.message.Message, reply: dns.message.Message) -> None:
        import dns.edns
        import dns.name
        import dns.rcode
        import dns.rdataclass
        import dns.rdatatype
        import dns.rrset

        asked = message.question[0]
        name = normal(asked.name.to_text())
        if asked.rdclass != dns.rdataclass.IN or name is None:
            self._refuse(asked.name.to_text(), "no_host_name")
            reply.set_rcode(dns.rcode.NXDOMAIN)
            return
        if name.endswith((".in-addr.arpa", ".ip6.arpa")):
            address = _reversed(asked.name)
            found = self._names.name_of(address) if address is not None else None
            if found is None:
                reply.set_rcode(dns.rcode.NXDOMAIN)
            elif asked.rdtype == dns.rdatatype.PTR:
                reply.answer.append(dns.rrset.from_text(asked.name, TTL_SECONDS, "IN", "PTR", f"{found}."))
            return
        try:
            addresses = await self._addresses(name)
        except _NotDecided:
            self._refuse(name, "not_decided")
            reply.set_rcode(dns.rcode.SERVFAIL)
            return
        if addresses is None:
            reply.set_rcode(dns.rcode.NXDOMAIN)
            if message.edns >= 0:
                reply.use_edns(options=[dns.edns.EDEOption(dns.edns.EDECode.PROHIBITED, WHY)])
            return
        for kind, of in ((dns.rdatatype.A, IPv4Address), (dns.rdatatype.AAAA, IPv6Address)):
            chosen = [str(address) for address in addresses if isinstance(address, of)]
            if asked.rdtype == kind and chosen:
                reply.answer.append(dns.rrset.from_text(asked.name, TTL_SECONDS, "IN", kind.name, *chosen))

    async def _addresses(self, name: str) -> tuple[Address, ...] | None:
        if name == "localhost" or name.endswith(".localhost"):
            return (IPv4Address("127.0.0.1"), IPv6Address("::1"))
        try:
            async with asyncio.timeout(DECISION_SECONDS):
                answer = await self._rules.resolve(name)
        except TimeoutError:
            answer = None
        except Exception:  # noqa: BLE001 - on any error the name does not exist
            _LOG.exception("the decision about a host name failed; the name does not exist for the job")
            answer = False
        if answer is None:
            raise _NotDecided
        if answer is False:
            self._refuse(name, "not_allowed")
            return None
        if answer is True:
            stand_for = self._names.addresses(name)
            if stand_for is None:
                self._refuse(name, "too_many_names")
            return stand_for
        return tuple(answer)

    def _refuse(self, name: str, reason: str) -> None:
        self._refusals.add(Refusal("", "dns", "", 0, name[:255], reason))

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._streams) >= MAX_STREAMS:
            writer.transport.abort()
            return
        self._streams.add(writer)
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                while True:
                    async with asyncio.timeout(STREAM_SECONDS):
                        length = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
                        reply = await self.answer(await reader.readexactly(length))
                        if reply is None:
                            break
                        writer.write(_LENGTH.pack(len(reply)) + reply)
                        await writer.drain()
                        await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._streams.discard(writer)
            writer.transport.abort()


def _reversed(name: object) -> Address | None:
    import dns.exception
    import dns.reversename

    try:
        return ip_address(dns.reversename.to_address(name))  # type: ignore[arg-type]  # a dns.name.Name
    except (dns.exception.DNSException, ValueError):
        return None
