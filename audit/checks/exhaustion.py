"""Resource exhaustion: handshakes that never end, and oversized handshakes and records."""

from __future__ import annotations

import socket
import time

from sluice.audit.check import Check
from sluice.audit.checks import references as ref
from sluice.audit.model import Evidence, Foreign, Severity, finding, not_examined, passed
from sluice.audit.subject import Subject
from sluice.audit.wire import ClientHello, Content, Message, number

DRIP_SECONDS = 0.25
"""Pause between two bytes of the slow handshake."""
OVERSIZED_BYTES = 4 << 20
"""Most bytes sent of an endless ClientHello."""
_FRAGMENT_BYTES = 1 << 14
_CLOSING_SECONDS = 5.0


def _slow(subject: Subject) -> Evidence:
    limit = subject.options.handshake_limit
    done = f"sent a ClientHello one byte each {DRIP_SECONDS} s, and waited for at most {limit:.0f} s"
    hello = ClientHello().encode()
    record = number(Content.HANDSHAKE, 1) + b"\x03\x01" + number(len(hello), 2) + hello
    started = time.monotonic()
    with socket.create_connection(subject.listener.address, timeout=subject.options.timeout) as slow:
        slow.settimeout(DRIP_SECONDS)
        for byte in record:
            if _ended(slow, bytes([byte])):
                return passed(done, f"ended after {time.monotonic() - started:.1f} s")
            if time.monotonic() - started > limit:
                return finding(done, f"still waiting for the rest after {limit:.0f} s", silence=True)
    return not_examined("the whole hello was sent before the limit was over")


def _ended(slow: socket.socket, byte: bytes) -> bool:
    """Send one byte and wait a little; returns whether the peer has ended the connection."""
    try:
        slow.sendall(byte)
        return slow.recv(1 << 12) == b"" or _ended_after_alert(slow)
    except TimeoutError:
        return False
    except OSError:
        return True


def _ended_after_alert(slow: socket.socket) -> bool:
    """Whether the peer ended the connection after data, which before a complete hello can only be a refusal."""
    slow.settimeout(_CLOSING_SECONDS)
    return slow.recv(1) == b""


def _oversized(subject: Subject) -> Evidence:
    done = f"announced a ClientHello of 16 MiB and sent up to {OVERSIZED_BYTES >> 20} MiB of it"
    header = number(Message.CLIENT_HELLO, 1) + number((1 << 24) - 1, 3)
    sent = 0
    with socket.create_connection(subject.listener.address, timeout=subject.options.timeout) as large:
        large.settimeout(subject.options.handshake_limit)
        try:
            while sent < OVERSIZED_BYTES:
                fragment = (header + bytes(_FRAGMENT_BYTES))[:_FRAGMENT_BYTES] if not sent else bytes(_FRAGMENT_BYTES)
                large.sendall(number(Content.HANDSHAKE, 1) + b"\x03\x01" + number(_FRAGMENT_BYTES, 2) + fragment)
                sent += _FRAGMENT_BYTES
            while large.recv(1 << 12):
                pass
        except TimeoutError:
            return finding(done, f"took {sent >> 10} KiB without an objection")
        except OSError:
            return passed(done, f"ended, {sent >> 10} KiB after the announcement at most")
    return passed(done, f"ended, {sent >> 10} KiB after the announcement at most")


def _record(subject: Subject) -> Evidence:
    done = "sent the header of a record of 65,535 bytes (16,640 is the most there may be)"
    with socket.create_connection(subject.listener.address, timeout=subject.options.timeout) as large:
        large.settimeout(subject.options.handshake_limit)
        try:
            large.sendall(number(Content.HANDSHAKE, 1) + b"\x03\x01\xff\xff" + bytes(64))
            while large.recv(1 << 12):
                pass
        except TimeoutError:
            seen = f"still waiting for the rest after {subject.options.handshake_limit:.0f} s"
            return finding(done, seen, silence=True)
        except OSError:
            return passed(done, "connection reset")
    return passed(done, "ended")


CHECKS = (
    Check(
        id="TLS-11",
        title="Slow handshakes are ended",
        problem="no deadline for handshakes",
        severity=Severity.MEDIUM,
        expected="the connection is ended within the limit for handshakes (--handshake-limit)",
        references=(ref.ASVS_LIMITS,),
        remedy="Set a deadline for the whole handshake, not only for pauses in it (ssl_handshake_timeout; "
        "transport_socket_connect_timeout in Envoy; handshakeTimeout in Netty).",
        run=_slow,
        foreign=Foreign(severity=Severity.LOW),
    ),
    Check(
        id="TLS-12",
        title="Oversized handshakes are refused",
        problem="oversized handshake accepted",
        severity=Severity.MEDIUM,
        expected="alert or end of the connection long before 16 MiB",
        references=(ref.RFC8446_LIMITS, ref.ASVS_LIMITS),
        remedy="Limit the size of handshake messages; a current TLS library does.",
        run=_oversized,
        foreign=Foreign(severity=Severity.LOW),
    ),
    Check(
        id="TLS-17",
        title="Oversized records are refused",
        problem="oversized record accepted",
        severity=Severity.MEDIUM,
        expected="alert record_overflow or end of the connection",
        references=(ref.RFC8446_LIMITS,),
        remedy="Refuse records of more than 2^14+256 bytes by their header.",
        run=_record,
        foreign=Foreign(severity=Severity.LOW),
    ),
)
